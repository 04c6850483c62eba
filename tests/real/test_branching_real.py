# SPDX-License-Identifier: Apache-2.0
"""verl's own trainer with rollouts that branch: an environment that clones, and one whose actions are played again."""

from __future__ import annotations

import json
import math

import pytest
from runs import differing

pytestmark = pytest.mark.real

N, PROMPTS = 6, 4
BRANCHING = (
    "+entropy=[aepo]",
    f"actor_rollout_ref.rollout.n={N}",
    "algorithm.entropy.branching.roots=2",
    "algorithm.entropy.branching.penalty=0",
    "algorithm.entropy.branching.alpha=0.52",  # an untrained policy's entropy hardly changes: branch unless it falls by .1
    "algorithm.entropy.branching.shared=mean",
)


def leaves(runner, dumps, step):
    """Sessions of each prompt in a step's dump, without the rows that fill the batch up."""
    rows = [json.loads(line) for line in (dumps / f"{step}.jsonl").read_text().splitlines()]
    keys = [row["uid"].rsplit("_", 1)[0] for row in rows if not row["uid"].startswith("pad")]
    prompts: dict[str, set[str]] = {}
    for key in keys:
        prompts.setdefault(key.rsplit("_", 1)[0], set()).add(key)
    return {prompt: len(found) for prompt, found in prompts.items()}


def check(result, runner, dumps):
    for step, metrics in result.steps.items():
        assert list(leaves(runner, dumps, step).values()) == [N] * PROMPTS
        assert metrics["verl_entropy/active"] == 1.0 and metrics["actor/grad_norm"] > 0
        assert metrics["verl_entropy/rollout/reused_tokens"] > 0 and metrics["verl_entropy/rollout/generated_tokens"] > 0
        assert metrics["verl_entropy/branching/branched_leaves"] > 0
        # what was taken over is trained once: as many tokens left the loss
        assert metrics["verl_entropy/branching/copied_tokens"] == metrics["verl_entropy/rollout/reused_tokens"]
        assert all(math.isfinite(metrics[f"verl_entropy/branching/{part}_entropy"]) for part in ("root", "tool"))
        assert metrics["training/rollout_probs_diff_max"] < 1e-5


@pytest.fixture(scope="module")
def replayed(runner):
    return runner.run(
        "branching-replay", *BRANCHING, "trainer.save_freq=1", f"trainer.rollout_data_dir={runner.folder}/branching-replay-dump"
    )


def test_an_environment_that_is_played_again(runner, replayed):
    check(replayed, runner, runner.folder / "branching-replay-dump")
    assert "[verl-entropy] rollout: branching" in replayed.log
    state = json.loads((replayed.folder / "global_step_1" / "verl_entropy.json").read_text())["state"]["branching"]
    assert state["root"] == pytest.approx(replayed.steps[1]["verl_entropy/branching/root_entropy"])


def test_an_environment_that_is_cloned_and_a_resumed_step_is_the_uninterrupted_one(runner):
    """The household clones. A run that goes on from its first checkpoint has the second step of the run that was not stopped."""
    given = (*BRANCHING, "data.env.name=household", "data.env.action_format=number", "trainer.save_freq=1")
    given += ("data.max_prompt_length=400", "actor_rollout_ref.rollout.prompt_length=400")
    dumps = runner.folder / "branching-clone-dump"
    whole = runner.run("branching-clone", *given, f"trainer.rollout_data_dir={dumps}")
    check(whole, runner, dumps)
    again = runner.run(
        "branching-again", *given, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={whole.folder}/global_step_1"
    )
    assert sorted(again.steps) == [2] and differing(whole.steps[2], again.steps[2]) == []
