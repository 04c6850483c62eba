# SPDX-License-Identifier: Apache-2.0
"""verl's own V1 trainer under Ray on the CPU backend, with the plugin as a user has it."""

import json
import math
import time

import pytest
from runs import stop

pytestmark = pytest.mark.real

OURS = "+entropy=[gigpo,aem,seal,epo]"
# Timing, memory and throughput differ between runs, and so do the rollout server's own log-probs in their last bits, which depend on
# which requests happen to share a batch; nothing is trained on them. Everything else of verl's metrics must not differ.
UNSTABLE = (
    "rollout_corr/",
    "rollout_probs_diff",
    "rollout_actor_probs",
    "timing",
    "perf/",
    "throughput",
    "staleness",
    "/mfu",
    "num_turns/",
    "agent_loop",
    "memory",
)


def stable(step: dict) -> dict:
    return {k: v for k, v in step.items() if not any(part in k for part in UNSTABLE)}


def same(a: dict, b: dict) -> list[str]:
    a, b = stable(a), stable(b)
    return [k for k in sorted(a.keys() & b.keys()) if a[k] != b[k] and not (a[k] != a[k] and b[k] != b[k])]


def test_every_seam_from_the_first_step(runner):
    """Step-wise rows, FSDP2: estimator, transform, regulariser and head act in verl's own metrics from step 1."""
    result = runner.run("all", OURS, "algorithm.adv_estimator=gigpo", "trainer.test_freq=2")
    assert sorted(result.steps) == [1, 2]
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0
        keys = ("entropy", "turns", "success", "gigpo/anchor_groups", "epo/entropy", "epo/beta", "seal/loss")
        for key in (*keys, "timing_s/queue", "timing_s/turns", "timing_s/advantages"):
            assert math.isfinite(step[f"verl_entropy/{key}"]), key
        assert math.isfinite(step["verl_entropy/turn_entropy/0"])
        assert step["verl_entropy/entropy"] == pytest.approx(step["actor/entropy"], abs=1e-5)
        # On policy: trainer and rollout compute the same probabilities.
        assert step["training/rollout_probs_diff_max"] < 1e-5
    assert "[verl-entropy] advantages: gigpo -> aem" in result.log
    assert any(k.startswith("val-core/colours/acc") for k in result.steps[2])


def test_neutral_settings_equal_verls_own_grpo_bit_for_bit(runner):
    """The same two steps with nothing of ours chosen and with neutral settings: every number that verl logs is the same."""
    stock = runner.run("stock")
    neutral = runner.run(
        "neutral",
        "+entropy=[aem,seal,epo]",
        "algorithm.entropy.aem.temperature=0",
        "actor_rollout_ref.actor.seal.alpha=0",
        "actor_rollout_ref.actor.policy_loss.epo.entropy_coeff=0",
    )
    assert not any("verl_entropy" in key for key in stock.steps[1])
    assert "[verl-entropy]" not in stock.log
    for step in (1, 2):
        assert same(stock.steps[step], neutral.steps[step]) == []
    assert stock.steps[2]["actor/grad_norm"] != 0


def test_save_kill_resume_gives_the_same_next_step(runner):
    """A run that is killed after its checkpoint of step 2 and started again has the step 3 and 4 of the run that was not."""
    settings = (OURS, "algorithm.adv_estimator=gigpo", "trainer.save_freq=2", "trainer.total_training_steps=4")
    whole = runner.run("whole", *settings)
    process = runner.start("broken", *settings)
    marker = runner.folder / "broken" / "latest_checkpointed_iteration.txt"
    deadline = time.time() + 600
    while not marker.exists() and process.poll() is None and time.time() < deadline:
        time.sleep(0.2)
    stop(process)
    assert marker.read_text().strip() == "2", runner.result("broken", -9).log[-4000:]
    state = json.loads((runner.folder / "broken" / "global_step_2" / "verl_entropy.json").read_text())
    assert state["state"]["epo"]["count"] == 2
    resumed = runner.run("broken", *settings)
    assert min(resumed.steps) == 3
    for step in (3, 4):
        assert same(whole.steps[step], resumed.steps[step]) == []


def test_a_checkpoint_without_our_state_stops_at_start(runner):
    """Resuming the killed run's folder with a method whose state it lacks ends with one message, and damages nothing."""
    folder = runner.folder / "broken"
    before = sorted(p.name for p in folder.rglob("*"))
    process = runner.start("broken", "+entropy=[gigpo,repo_r,seal,epo]", "algorithm.adv_estimator=gigpo")
    try:
        code = process.wait(timeout=600)
    finally:
        stop(process)
    result = runner.result("broken", code)
    assert code != 0
    assert "the checkpoint has no state of repo_r" in result.log
    assert sorted(p.name for p in folder.rglob("*")) == before


def test_one_row_layout_on_fsdp1_with_a_broken_environment(runner):
    """One row per trajectory, FSDP1; an episode whose environment crashes fails alone, and the batch trains on."""
    result = runner.run(
        "spans",
        OURS,
        "algorithm.adv_estimator=gigpo",
        "actor_rollout_ref.rollout.agent.default_agent_loop=span_env",
        "data.max_response_length=96",
        "actor_rollout_ref.rollout.response_length=96",
        "+data.env.kwargs.crash_seed=2",
        "+data.env.max_tokens_per_turn=16",
        strategy="fsdp",
    )
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0 and step["verl_entropy/turns"] > 1
    assert "the simulator crashed" in result.log


def test_two_ranks(runner):
    result = runner.run("ranks", OURS, "algorithm.adv_estimator=gigpo", world=2)
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0
        assert step["verl_entropy/entropy"] == pytest.approx(step["actor/entropy"], abs=1e-5)
        assert step["verl_entropy/epo/entropy"] == pytest.approx(step["actor/entropy_loss"], abs=1e-4)


def test_colocate_async(runner):
    result = runner.run("colocate", OURS, "algorithm.adv_estimator=gigpo", "trainer.v1.trainer_mode=colocate_async")
    assert all(step["verl_entropy/active"] == 1.0 for step in result.steps.values())


def test_environments_that_cannot_be_built_end_an_asynchronous_run(runner):
    """verl alone takes every failed prompt for one to be replaced, and would ask for another for ever."""
    process = runner.start("unbuilt", "trainer.v1.trainer_mode=colocate_async", "+data.env.kwargs.colour=mauve")
    try:
        assert process.wait(timeout=600) != 0
    finally:
        stop(process)
    log = runner.result("unbuilt", 1).log
    assert "verl-entropy: an agent-loop worker cannot go on: the environment cannot be built" in log
    assert "unexpected keyword argument 'colour'" in log and "data.env.kwargs" in log
