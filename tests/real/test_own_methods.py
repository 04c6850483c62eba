# SPDX-License-Identifier: Apache-2.0
"""A package outside the tree: its transform, regularizer and policy loss, chosen by key, act in a run of verl's trainer."""

import math
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PACKAGE = Path(__file__).parents[2] / "examples" / "own_methods"
LOSS = "actor_rollout_ref.actor.policy_loss"


def test_methods_of_another_package_train(runner, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE), prepend=":")
    result = runner.run(
        "own_methods",
        "+algorithm.entropy.transforms=[own_methods:SURPRISE]",
        "+algorithm.entropy.surprise.weight=0.25",
        f"+{LOSS}.regularizer=own_methods:FLOOR",
        f"+{LOSS}.entropy_floor.floor=0.5",
        f"{LOSS}.loss_mode=own_methods:CISPO",
    )
    assert "advantages: grpo -> surprise" in result.log and "policy loss: own_methods:CISPO" in result.log
    assert "Surprise(weight=0.25)" in result.log and "Floor(coef=0.01, floor=0.5)" in result.log
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0
        for key in ("entropy_floor/below", "own_cispo/clipfrac"):
            assert math.isfinite(step[f"verl_entropy/{key}"]), key
    assert len(result.steps) == 2
