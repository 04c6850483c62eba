# SPDX-License-Identifier: Apache-2.0
"""Whole training loops of verl-agent's trainer with ours in it (needs VERL_AGENT_HOME; CPU, tiny model, no Ray, no FSDP)."""

from __future__ import annotations

import math

import pytest

SCRIPT = "agent_loop.py"


@pytest.mark.parametrize("estimator", ["grpo", "gigpo"])
def test_neutral_training_is_verl_agents_bit_for_bit(results, estimator):
    found = results(SCRIPT)[estimator]
    assert found["weights"] and found["moved"]
    assert found["different"] == [] and found["compared"] > 20


def test_many_methods_train_together_and_report(results):
    found = results(SCRIPT)["everything"]
    assert found["steps"] == [1, 2, 3]
    assert all(math.isfinite(v) for v in found["metrics"].values())
    for key in ("entropy", "success", "turns", "gigpo/anchor_groups", "repo_r/zeta", "seal/loss", "epo/beta", "active"):
        assert f"verl_entropy/{key}" in found["metrics"]
    assert found["copies"] > 0


def test_checkpoint_holds_head_and_state_beside_the_model_and_resumes_bit_equal(results):
    found = results(SCRIPT)["everything"]
    assert "seal_head.pt" in found["files"] and found["state_file"] and found["head_in_model"] == []
    assert found["resumed_steps"] == [3] and found["resumed_equal"]
    assert found["zeta"][0] == found["zeta"][1]


def test_workers_that_are_not_ours_and_checkpoints_without_head_are_refused(results):
    found = results(SCRIPT)["refusals"]
    assert "they do not run our worker class" in found["stock_worker"]
    assert "has no head" in found["headless"]


def test_task_runner_of_the_launcher_chooses_our_classes_and_trains(results):
    assert results(SCRIPT)["task_runner"] == {"worker": "EntropyActorRolloutRefWorker", "steps": 2}
