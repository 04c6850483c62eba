# SPDX-License-Identifier: Apache-2.0
"""Presets in verl's own trainer: ten of them together in two runs, and with --full every one alone."""

import math

import pytest

from verl_entropy.config import presets

TOGETHER = {
    "first": (
        ("+entropy=[loop,repo_r,clip_v,steer,siren]", "+algorithm.entropy.target=[[0,0.5],[10,0.3]]"),
        ("entropy_target", "hold/effect", "repo_r/zeta", "steer/steer_weight", "siren/hbar", "siren/loss"),
    ),
    "second": (
        ("+entropy=[group_norm,repo_d,ea,adapo,entropy_bonus]",),
        ("repo_d/zeta", "adapo/eps_high", "entropy_bonus/coef", "entropy_bonus/entropy"),
    ),
}


def check(result, keys):
    assert sorted(result.steps) == [1, 2]
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0
        assert math.isfinite(step["actor/grad_norm"])
        for key in keys:
            assert math.isfinite(step[f"verl_entropy/{key}"]), key


@pytest.mark.real
@pytest.mark.parametrize("name", TOGETHER)
def test_ten_presets_together(runner, name):
    overrides, keys = TOGETHER[name]
    estimator = "loop" if name == "first" else "group_norm"
    check(runner.run(f"together-{name}", *overrides, f"algorithm.adv_estimator={estimator}"), keys)


@pytest.mark.real
@pytest.mark.full
@pytest.mark.parametrize("preset", presets.preset_names())
def test_every_preset_alone(runner, preset):
    estimator = {"gigpo": "gigpo", "loop": "loop", "loop_dapo": "loop", "group_norm": "group_norm"}.get(preset, "grpo")
    extra = ["+data.env.kwargs.signed=true", "+data.env.invalid_action_penalty=0"] if preset == "entrocraft_switch" else []
    check(runner.run(f"alone-{preset}", f"+entropy={preset}", f"algorithm.adv_estimator={estimator}", *extra), ())
