# SPDX-License-Identifier: Apache-2.0
"""Gradients of losses and regularisers: the stated factors, no silent zero, nothing through detached parts."""

from __future__ import annotations

import pytest
import torch
from math_batches import fixture_f, random_batch
from torch.testing import assert_close

from verl_entropy.batch.numerics import aggregate
from verl_entropy.methods.common.gspo import gspo, sequence_ratio
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.losses.aepo import aepo
from verl_entropy.methods.losses.steer import steer
from verl_entropy.methods.regularizers.entropy_bonus import entropy_bonus
from verl_entropy.methods.regularizers.siren import masked_row_mean, nucleus_entropy, peak_mask, siren_loss, siren_surrogate
from verl_entropy.methods.transforms.clip_v import vocab_centre
from verl_entropy.methods.transforms.repo_r import repo_r


def factor(loss, b, **settings):
    """d loss / d log pi divided by -A, per token."""
    log_prob = b.log_prob_RT.clone().requires_grad_()
    loss_RT, _ = loss(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT, **settings)
    (grad,) = torch.autograd.grad(loss_RT.sum(), log_prob)
    return torch.where(b.mask_RT, -grad / b.advantages_RT, 0.0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (aepo, [[1.105171, 0.951229, 1.2], [0, 1.020201, 0]]),
        (ppo_clip, [[1.105171, 0.951229, 0], [0, 1.020201, 0]]),
    ],
)
def test_gradient_factor(loss, expected):
    actual = factor(loss, fixture_f(), eps_low=0.2, eps_high=0.2)
    assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=0.0)


def test_aepo_factor_on_every_side():
    """Columns: ratio .5, 1, 1.1, 2 and 4; rows: positive and negative advantage."""
    old = torch.zeros(2, 5)
    log_prob = torch.tensor([0.5, 1.0, 1.1, 2.0, 4.0]).log().expand(2, 5).clone().requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 5)
    loss, _ = aepo(log_prob, old, advantages, torch.ones(2, 5, dtype=torch.bool), eps_low=0.2, eps_high=0.2, dual_clip=3.0)
    (grad,) = torch.autograd.grad(loss.sum(), log_prob)
    expected = torch.tensor([[0.5, 1, 1.1, 1.2, 1.2], [0, 1, 1.1, 2, 0]])
    assert_close(-grad / advantages, expected, atol=1e-6, rtol=0.0)


def test_steer_scales_the_gradient_by_its_weight_and_passes_none_through_it():
    b = random_batch(31)
    entropy = b.entropy_RT.clone().requires_grad_()
    log_prob = b.log_prob_RT.clone().requires_grad_()
    args = (log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT)
    loss, info = steer(*args, entropy)
    plain, _ = ppo_clip(*args, eps_low=0.2, eps_high=0.28, dual_clip=10.0)
    (got,) = torch.autograd.grad(loss.sum(), log_prob)
    (want,) = torch.autograd.grad(plain.sum(), log_prob)
    assert_close(got, info["steer_weight"] * want)
    assert bool((got != want).any())
    assert not info["steer_weight"].requires_grad and not info["steer_omega"].requires_grad


def test_gspo_gradient_is_the_sequence_forms_when_the_advantage_is_constant():
    b = random_batch(32, one_row=True)
    log_prob = b.log_prob_RT.double().requires_grad_()
    old = b.old_log_prob_RT.double()
    count = b.mask_RT.sum(-1).clamp_min(1)
    advantage = torch.linspace(-1, 1, len(count), dtype=torch.float64)
    token, _ = gspo(log_prob, old, advantage[:, None].expand_as(old), b.mask_RT, eps_low=0.05, eps_high=0.05)
    token = (token.sum(-1) / count).sum()
    ratio = (torch.where(b.mask_RT, log_prob - old, 0.0).sum(-1) / count).exp()
    sequence = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.95, 1.05)).masked_fill(~b.mask_RT.any(-1), 0.0).sum()
    assert_close(token, sequence)
    got, want = (torch.autograd.grad(x, log_prob)[0] for x in (token, sequence))
    assert_close(got, want)
    assert bool(want.any())
    assert sequence_ratio(log_prob, old, b.mask_RT).requires_grad


@pytest.mark.parametrize("loss", [ppo_clip, aepo, steer, gspo])
def test_losses_have_gradient_and_their_metrics_do_not(loss):
    b = random_batch(33)
    log_prob = b.old_log_prob_RT.clone().requires_grad_()
    loss_RT, info = loss(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT)
    (grad,) = torch.autograd.grad(loss_RT.sum(), log_prob)
    live = b.mask_RT & (b.advantages_RT != 0)
    assert torch.equal(grad != 0, live)
    assert all(not x.requires_grad and x.shape == b.mask_RT.shape and bool(x.isfinite().all()) for x in info.values())


def test_transforms_cut_the_graph():
    b = random_batch(34)
    result = repo_r(b.advantages_RT, b.turns, b.log_prob_RT.requires_grad_(), b.entropy_RT.requires_grad_())
    assert not result.advantages_RT.requires_grad


def test_entropy_bonus_gradient():
    b = random_batch(35)
    entropy = b.entropy_RT.requires_grad_()
    (grad,) = torch.autograd.grad(entropy_bonus(entropy, b.mask_RT, coef=0.3).sum(), entropy)
    assert_close(grad, -0.3 * b.mask_RT.float())


@pytest.mark.parametrize("parts", [1, 2, 5, 7])
def test_sirens_surrogate_in_micro_batches_has_the_gradient_of_the_whole_loss(parts):
    b = random_batch(36, tokens=20)
    logits = b.logits_RTV.double()
    entropy = nucleus_entropy(logits, 0.8)
    peaks = peak_mask(entropy, b.mask_RT, 0.5)
    hbar = float(masked_row_mean(entropy, peaks))
    assert hbar > 0

    z = logits.clone().requires_grad_()
    siren_loss(masked_row_mean(nucleus_entropy(z, 0.8), peaks), 0.4, 0.05).backward()
    rows = int(peaks.any(-1).sum())
    shared = logits.clone().requires_grad_()
    for part in torch.arange(len(logits)).tensor_split(parts):
        local = siren_surrogate(nucleus_entropy(shared[part], 0.8), peaks[part], hbar_global=hbar, anchor=0.4, beta=0.05)
        aggregate(local, peaks[part], "seq-mean-token-mean", num_tokens=None, num_rows=rows).backward()
    assert_close(shared.grad, z.grad, atol=1e-12, rtol=1e-6)
    assert bool(z.grad.any())


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_nucleus_entropy_and_clip_vs_centre_divide_by_the_temperature_in_fp32(temperature):
    logits = 4 * torch.randn(9, 50, generator=torch.Generator().manual_seed(2)).bfloat16()
    scale_N = torch.full((9,), temperature)
    exact = logits.double() / temperature
    assert_close(
        nucleus_entropy(logits, 0.8, chunk_size=4, temperature=scale_N).double(),
        nucleus_entropy(exact, 0.8),
        atol=1e-5,
        rtol=1e-5,
    )
    assert_close(vocab_centre(logits, 4, temperature=scale_N).double(), vocab_centre(exact).double(), atol=1e-5, rtol=1e-5)

    z = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    scales = torch.tensor([0.7, 1.0, temperature], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: nucleus_entropy(x, 0.8, chunk_size=2, temperature=scales), (z,), eps=1e-7)


def test_nucleus_entropy_gradcheck():
    logits = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    for crossing in ("include", "exclude"):
        assert torch.autograd.gradcheck(lambda z, c=crossing: nucleus_entropy(z, 0.8, crossing=c), (logits,), eps=1e-7)
