# SPDX-License-Identifier: Apache-2.0
"""Known numbers of the policy losses on the fixture of two rows."""

from __future__ import annotations

import math

import pytest
import torch
from math_batches import fixture_f
from torch.testing import assert_close

from verl_entropy.batch.numerics import aggregate
from verl_entropy.methods.common.gspo import gspo, sequence_ratio
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.losses.aepo import aepo
from verl_entropy.methods.losses.steer import steer, steer_omega, steer_range, steer_weights
from verl_entropy.methods.transforms.repo_r import repo_r

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}


def close(actual, expected):
    assert_close(actual, torch.tensor(expected, dtype=actual.dtype), **TOLERANCE)


def inputs(advantages=None):
    f = fixture_f()
    return f.log_prob_RT, f.old_log_prob_RT, f.advantages_RT if advantages is None else advantages, f.mask_RT, f.entropy_RT


def mean(loss_RT, mode="token-mean"):
    return float(aggregate(loss_RT, fixture_f().mask_RT, mode, num_tokens=5, num_rows=2))


def repo_advantages():
    f = fixture_f()
    return repo_r(f.advantages_RT, f.turns, f.log_prob_RT, f.entropy_RT, zeta=0.1).advantages_RT


@pytest.mark.parametrize(
    ("loss", "settings", "mode", "expected"),
    [
        (ppo_clip, {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": None}, "token-mean", -0.303240),  # DAPO
        (ppo_clip, {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": None}, "token-mean", -0.287240),  # LOOP
        (ppo_clip, {"eps_low": 0.1, "eps_high": 0.1, "dual_clip": None}, "token-mean", -0.246206),  # its appendix B
        (gspo, {}, "seq-mean-token-mean", -0.000350),
        (steer, {"mode": "exp", "w_min": 0.8}, "token-mean", -0.235181),
        (steer, {"mode": "linear", "w_min": 0.8, "w_max": 1.2}, "token-mean", -0.230008),
        (aepo, {"eps_low": 0.2, "eps_high": 0.2}, "token-mean", -0.287240),  # the value is PPO's
    ],
)
def test_aggregated_value(loss, settings, mode, expected):
    assert mean(loss(*inputs(), **settings)[0], mode) == pytest.approx(expected, abs=1e-6)


def test_clipped_loss_per_token():
    loss, info = ppo_clip(*inputs(), eps_low=0.2, eps_high=0.28, dual_clip=None)
    close(loss, [[-1.105171, -0.951229, -1.28], [0.8, 1.020201, 0]])
    close(info["clipfrac_high"], [[0.0, 0, 1], [0, 0, 0]])
    close(info["clipfrac_low"], [[0.0, 0, 0], [1, 0, 0]])


def test_dual_clip_bounds_the_loss_of_tokens_that_became_likelier():
    log_prob, mask = torch.tensor([[2.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool)
    loss, info = ppo_clip(log_prob, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), mask, dual_clip=3.0)
    close(loss, [[3.0, -1.2]])
    close(info["clipfrac_dual"], [[1.0, 0.0]])


def test_repo_on_dapo_and_on_gspo():
    advantages = repo_advantages()
    dapo, _ = ppo_clip(*inputs(advantages), eps_low=0.2, eps_high=0.28, dual_clip=None)
    assert mean(dapo) == pytest.approx(-0.287966, abs=1e-6)
    token_form, _ = gspo(*inputs(advantages))
    assert mean(token_form, "seq-mean-token-mean") == pytest.approx(0.009420, abs=1e-6)
    f = fixture_f()
    row_mean = (advantages.sum(-1) / f.mask_RT.sum(-1))[:, None].expand(2, 3)
    sequence_form, _ = gspo(*inputs(row_mean))
    assert mean(sequence_form, "seq-mean-token-mean") == pytest.approx(0.009420, abs=1e-6)


def test_sequence_ratio():
    f = fixture_f()
    ratio = sequence_ratio(f.log_prob_RT, f.old_log_prob_RT, f.mask_RT)
    close(ratio[:, 0], [1.123745, 0.891366])
    close(ratio[0], [1.123745] * 3)


def test_steer_weights():
    omega = steer_omega(*inputs())
    mask = fixture_f().mask_RT
    close(omega, [[0.199659, 0.240165, 0.068387], [0.168411, 0, 0]])
    close(torch.stack(steer_range(omega, mask)), [0.0, 0.240165])
    close(steer_weights(omega, mask, w_min=0.8), [[0.830682, 0.8, 0.938437], [0.855153, 1, 0]])
    close(steer_weights(omega, mask, w_min=0.7), [[0.743402, 0.7, 0.903424], [0.778714, 1, 0]])
    close(steer_weights(omega, mask, mode="linear"), [[0.867464, 0.8, 1.0861], [0.919508, 1.2, 0]])


def test_steer_takes_global_extrema():
    omega, mask = steer_omega(*inputs()), fixture_f().mask_RT
    whole = steer_weights(omega, mask, mode="linear")
    low, high = steer_range(omega, mask)
    part = steer_weights(omega[1:], mask[1:], mode="linear", omega_min=float(low), omega_max=high)
    assert torch.equal(part, whole[1:])


@pytest.mark.parametrize(("mode", "expected"), [("exp", 0.8), ("linear", 1.0)])
def test_steer_weights_of_equal_changes(mode, expected):
    mask = torch.ones(1, 3, dtype=torch.bool)
    close(steer_weights(torch.full((1, 3), 0.5), mask, mode=mode), [[expected] * 3])


def test_steer_does_not_blow_up_small_changes():
    mask = torch.ones(1, 2, dtype=torch.bool)
    close(steer_weights(torch.tensor([[0.01, 0.005]]), mask, w_min=0.8), [[0.8**0.5, 0.8**0.25]])


def test_log_ratios_are_bounded_before_the_exponential():
    mask, huge, zero = torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), 300.0), torch.zeros(1, 1)
    for loss in (ppo_clip, aepo):
        assert float(loss(huge, zero, -torch.ones(1, 1), mask, dual_clip=None)[0]) == pytest.approx(math.exp(20), rel=1e-5)
        assert float(loss(-huge, zero, torch.ones(1, 1), mask, dual_clip=None)[0]) == pytest.approx(-math.exp(-20), rel=1e-5)
    assert float(gspo(huge, zero, -torch.ones(1, 1), mask)[0]) == pytest.approx(math.exp(10), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "settings", "word"),
    [
        (ppo_clip, {"eps_low": 1.5}, "eps_low"),
        (ppo_clip, {"eps_high": -0.1}, "eps_high"),
        (ppo_clip, {"dual_clip": 1.0}, "dual_clip"),
        (steer, {"w_min": 0.0}, "w_min"),
        (steer, {"mode": "linear", "w_max": 0.5}, "w_max"),
        (steer, {"mode": "log"}, "mode"),
    ],
)
def test_wrong_settings_are_refused(loss, settings, word):
    with pytest.raises(ValueError, match=word):
        loss(*inputs(), **settings)


def test_steer_without_entropy_is_refused():
    with pytest.raises(ValueError, match="entropy"):
        steer(*inputs()[:4], None)
