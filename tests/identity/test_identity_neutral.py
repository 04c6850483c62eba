# SPDX-License-Identifier: Apache-2.0
"""A neutral setting changes no bit."""

from __future__ import annotations

import math

import pytest
import torch
from math_batches import random_batch

from verl_entropy.batch.numerics import log_probs_and_entropy
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.losses.aepo import aepo as aepo_loss
from verl_entropy.methods.losses.steer import steer
from verl_entropy.methods.regularizers.entropy_bonus import entropy_bonus
from verl_entropy.methods.regularizers.siren import nucleus_entropy, peak_mask, siren_surrogate
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft, entrocraft_switch
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

LAYOUTS = pytest.mark.parametrize("one_row", [False, True], ids=["step-wise", "one-row"])

TRANSFORMS = {
    "repo_r": lambda b: repo_r(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=0.0),
    "repo_r mean": lambda b: repo_r(b.advantages_RT, b.turns, b.log_prob_RT, zeta=0.0, center="group_mean"),
    "repo_r keep_sign": lambda b: repo_r(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=0.0, keep_sign=True),
    "repo_d": lambda b: repo_d(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=0.0),
    "repo_d token": lambda b: repo_d(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=0.0, scope="per_token"),
    "ea": lambda b: ea(b.advantages_RT, b.turns, b.entropy_RT, alpha=0.0),
    "aepo": lambda b: aepo(b.advantages_RT, b.turns, b.entropy_RT, alpha=0.0),
    "aepo constant": lambda b: aepo(b.advantages_RT, b.turns, torch.full_like(b.entropy_RT, 0.1), alpha=0.2),
    "clip_b": lambda b: clip_b(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, mu=math.inf),
    "clip_v": lambda b: clip_v(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, b.centre_RT, mu=math.inf),
    "clip_b constant": lambda b: clip_b(b.advantages_RT, b.turns, -torch.ones_like(b.entropy_RT), b.entropy_RT * 0 + 0.3, mu=0.0),
    "entrocraft": lambda b: entrocraft(b.advantages_RT, b.turns, entropy=0.5, low=0.0, high=1e9),
    "entrocraft nan": lambda b: entrocraft(b.advantages_RT, b.turns, entropy=math.nan, low=0.4, high=0.6),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@LAYOUTS
def test_transform(name, one_row):
    b = random_batch(11, one_row=one_row)
    result = TRANSFORMS[name](b)
    assert torch.equal(result.advantages_RT, b.advantages_RT)
    assert result.mask_RT is None or torch.equal(result.mask_RT, b.mask_RT)


def test_entrocraft_switch_inside_the_range():
    b = random_batch(11)
    b.turns.score_J.copy_(torch.where(b.turns.score_J > 0.5, 1.0, -1.0))
    result = entrocraft_switch(b.advantages_RT, b.turns, entropy=0.5, low=0.4, high=0.6)
    assert torch.equal(result.advantages_RT, b.advantages_RT)


def grads(loss_RT, log_prob):
    return torch.autograd.grad(loss_RT.sum(), log_prob)[0]


@pytest.mark.parametrize("settings", [{"w_min": 1.0}, {"mode": "linear", "w_min": 1.0, "w_max": 1.0}])
def test_steer_with_equal_weights_is_the_clipped_loss(settings):
    b = random_batch(12)
    log_prob = b.log_prob_RT.requires_grad_()
    args = (log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT)
    plain, _ = ppo_clip(*args, eps_low=0.2, eps_high=0.28, dual_clip=10.0)
    weighted, _ = steer(*args, b.entropy_RT, **settings)
    assert torch.equal(weighted, plain)
    assert torch.equal(grads(weighted, log_prob), grads(plain, log_prob))


def test_aepo_loss_has_ppos_value_and_inside_the_clip_range_its_gradient():
    b = random_batch(13)
    log_prob = b.log_prob_RT.requires_grad_()
    settings = {"eps_low": 0.2, "eps_high": 0.28, "dual_clip": 1.5}
    plain, _ = ppo_clip(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, **settings)
    balanced, _ = aepo_loss(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, **settings)
    assert torch.equal(balanced, plain)
    inside = ~((log_prob - b.old_log_prob_RT).exp() > 1.28) | (b.advantages_RT <= 0)
    assert torch.equal(grads(balanced, log_prob)[inside], grads(plain, log_prob)[inside])


def test_regularisers_at_zero_weight_have_no_gradient():
    b = random_batch(14)
    entropy = b.entropy_RT.requires_grad_()
    for loss in (
        entropy_bonus(entropy, b.mask_RT, coef=0.0),
        siren_surrogate(entropy, b.mask_RT, hbar_global=1.0, anchor=0.5, beta=0.0),
    ):
        assert not bool(loss.any())
        assert not bool(torch.autograd.grad(loss.sum(), entropy)[0].any())


def test_full_nucleus_is_the_entropy_and_no_quantile_the_mask():
    b = random_batch(15)
    _, entropy = log_probs_and_entropy(b.logits_RTV, b.tokens_RT)
    torch.testing.assert_close(nucleus_entropy(b.logits_RTV, 1.0), entropy, atol=1e-6, rtol=1e-6)
    assert peak_mask(b.entropy_RT, b.mask_RT, None) is b.mask_RT
