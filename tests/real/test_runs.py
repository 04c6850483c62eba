# SPDX-License-Identifier: Apache-2.0
"""verl's own V1 trainer under Ray on the CPU backend, with the plugin as a user has it."""

import json
import math
import time

import pytest
from runs import OURS, differing, stop

pytestmark = pytest.mark.real

SAVED = (*OURS, "trainer.save_freq=2", "trainer.test_freq=2", "trainer.total_training_steps=4")


@pytest.fixture(scope="module")
def whole(runner):
    return runner.run("whole", *SAVED)


@pytest.fixture(scope="module")
def killed(runner):
    """The folder of a run that was killed as soon as verl called its checkpoint of step 2 complete."""
    process = runner.start("killed", *SAVED)
    folder = runner.folder / "killed"
    marker = folder / "latest_checkpointed_iteration.txt"
    deadline = time.time() + 600
    while not marker.exists() and process.poll() is None and time.time() < deadline:
        time.sleep(0.2)
    stop(process)
    assert marker.read_text().strip() == "2", runner.result("killed", -9).log[-4000:]
    return folder


def test_every_seam_from_the_first_step(whole):
    """Step-wise rows, FSDP2: estimator, transform, regulariser and head act in verl's own metrics from step 1."""
    assert sorted(whole.steps) == [1, 2, 3, 4]
    for step in whole.steps.values():
        assert step["verl_entropy/active"] == 1.0
        keys = ("entropy", "turns", "success", "gigpo/anchor_groups", "epo/entropy", "epo/beta", "seal/loss")
        for key in (*keys, "timing_s/queue", "timing_s/turns", "timing_s/advantages"):
            assert math.isfinite(step[f"verl_entropy/{key}"]), key
        assert math.isfinite(step["verl_entropy/turn_entropy/0"])
        assert step["verl_entropy/entropy"] == pytest.approx(step["actor/entropy"], abs=1e-5)
        # On policy: trainer and rollout compute the same probabilities.
        assert step["training/rollout_probs_diff_max"] < 1e-5
    assert "[verl-entropy] advantages: gigpo -> aem" in whole.log
    assert any(k.startswith("val-core/colours/acc") for k in whole.steps[2])


def test_save_kill_resume_gives_the_same_next_step(runner, whole, killed):
    """A run that is killed after its checkpoint of step 2 and started again has the step 3 and 4 of the run that was not."""
    state = json.loads((killed / "global_step_2" / "verl_entropy.json").read_text())
    assert state["state"]["epo"]["count"] == 2
    resumed = runner.run("killed", *SAVED)
    assert min(resumed.steps) == 3
    for step in (3, 4):
        assert differing(whole.steps[step], resumed.steps[step]) == []


def test_a_checkpoint_without_our_state_stops_at_start(runner, killed):
    """Resuming with a method whose state it lacks ends with one message, and damages nothing."""
    before = sorted(p.name for p in killed.rglob("*"))
    process = runner.start("killed", "+entropy=[gigpo,repo_r,seal,epo]", "algorithm.adv_estimator=gigpo")
    try:
        code = process.wait(timeout=600)
    finally:
        stop(process)
    result = runner.result("killed", code)
    assert code != 0
    assert "the checkpoint has no state of repo_r" in result.log
    assert sorted(p.name for p in killed.rglob("*")) == before
