# SPDX-License-Identifier: Apache-2.0
"""What must not matter does not: masked places, padding, row order, micro-batches; and nothing breaks on degenerate batches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from math_batches import Batch, random_batch, subset
from slow_metrics import aem_drift, clip_fractions, windows_by_token, windows_by_turn
from torch.testing import assert_close

from verl_entropy.batch.numerics import aggregate
from verl_entropy.diagnostics import predictors
from verl_entropy.methods.common.gspo import gspo
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.losses.aepo import aepo as aepo_loss
from verl_entropy.methods.losses.steer import steer, steer_omega, steer_range
from verl_entropy.methods.regularizers.entropy_bonus import entropy_bonus
from verl_entropy.methods.regularizers.siren import masked_row_mean, peak_mask, siren_surrogate
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

TRANSFORMS = {
    "repo_r": lambda b: repo_r(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=0.2),
    "repo_r group": lambda b: repo_r(b.advantages_RT, b.turns, b.log_prob_RT, zeta=0.2, center="group_mean", keep_sign=True),
    "repo_d": lambda b: repo_d(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=2.0),
    "repo_d group": lambda b: repo_d(
        b.advantages_RT, b.turns, b.log_prob_RT, zeta=2.0, center="batch_mean", scope="group", skip_zero_groups=True
    ),
    "repo_d token": lambda b: repo_d(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=2.0, scope="per_token"),
    "ea": lambda b: ea(b.advantages_RT, b.turns, b.entropy_RT),
    "aepo": lambda b: aepo(b.advantages_RT, b.turns, b.entropy_RT),
    "clip_b": lambda b: clip_b(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, mu=0.5),
    "clip_b both": lambda b: clip_b(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, mu=0.5, two_sided=True, max_frac=0.1),
    "clip_v": lambda b: clip_v(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, b.centre_RT, mu=0.5, max_frac=0.05),
    "entrocraft": lambda b: entrocraft(b.advantages_RT, b.turns, entropy=0.9, low=0.4, high=0.6),
}
LOSSES = {"ppo_clip": ppo_clip, "aepo": aepo_loss, "steer": steer, "gspo": gspo}
GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
by_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
by_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
by_garbage = pytest.mark.parametrize("value", GARBAGE)


def same(a, b, **tolerance):
    assert_close(a.advantages_RT, b.advantages_RT, **tolerance)
    assert (a.mask_RT is None) == (b.mask_RT is None)
    assert a.mask_RT is None or torch.equal(a.mask_RT, b.mask_RT)


@by_transform
@by_garbage
@pytest.mark.parametrize("one_row", [False, True])
def test_garbage_in_masked_places_leaves_every_bit(transform, value, one_row):
    b = random_batch(41, one_row=one_row)
    dirty_batch = b.garbage(value)
    clean, dirty = transform(b), transform(dirty_batch)
    if dirty.advantages_RT is not dirty_batch.advantages_RT:
        same(clean, dirty, atol=0.0, rtol=0.0)
        assert not bool(dirty.advantages_RT[~b.mask_RT].any())
    assert clean.mask_RT is None or torch.equal(clean.mask_RT, dirty.mask_RT)
    assert clean.metrics == dirty.metrics
    assert clean.mask_RT is None or not bool((clean.mask_RT & ~b.mask_RT).any())


@by_loss
@by_garbage
def test_garbage_reaches_neither_loss_nor_gradient(loss, value):
    b = random_batch(42)

    def run(batch):
        log_prob = batch.log_prob_RT.clone().requires_grad_()
        loss_RT, info = loss(log_prob, batch.old_log_prob_RT, batch.advantages_RT, batch.mask_RT, batch.entropy_RT)
        return loss_RT.detach(), torch.autograd.grad(loss_RT.sum(), log_prob)[0], info

    clean, dirty = run(b), run(b.garbage(value))
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])
    assert not bool(clean[0][~b.mask_RT].any()) and not bool(clean[1][~b.mask_RT].any())
    for name, metric in clean[2].items():
        assert torch.equal(metric[b.mask_RT], dirty[2][name][b.mask_RT])


@by_garbage
def test_garbage_reaches_no_regulariser(value):
    b = random_batch(43, tokens=20)
    dirty = b.garbage(value)
    peaks = peak_mask(dirty.entropy_RT, b.mask_RT, 0.5)
    assert torch.equal(peaks, peak_mask(b.entropy_RT, b.mask_RT, 0.5))
    for function in (
        lambda h: entropy_bonus(h, b.mask_RT, coef=0.1),
        lambda h: siren_surrogate(h, peaks, hbar_global=1.0, anchor=0.5),
        lambda h: masked_row_mean(h, peaks),
    ):
        entropy = dirty.entropy_RT.clone().requires_grad_()
        out = function(entropy)
        assert torch.equal(out, function(b.entropy_RT))
        assert bool(torch.autograd.grad(out.sum(), entropy)[0].isfinite().all())


@by_garbage
def test_garbage_reaches_no_diagnostic(value):
    b = random_batch(44)
    dirty = b.garbage(value)

    def numbers(x: Batch):
        drift = aem_drift(x.advantages_RT, x.log_prob_RT, x.entropy_RT, x.turns)
        return [
            predictors.repo_predictor(x.advantages_RT, x.log_prob_RT, x.entropy_RT, x.mask_RT),
            predictors.covariance_predictor(x.advantages_RT, x.log_prob_RT, x.mask_RT),
            predictors.discriminator_predictor(x.advantages_RT, x.log_prob_RT, x.entropy_RT, x.centre_RT, x.mask_RT),
            *clip_fractions(x.log_prob_RT, x.old_log_prob_RT, x.advantages_RT, x.mask_RT, eps_low=0.2, eps_high=0.2),
            *drift.values(),
            windows_by_token(x.entropy_RT, x.turns, 2),
            windows_by_turn(x.entropy_RT, x.turns, 2),
        ]

    assert numbers(b) == numbers(dirty)


@by_transform
def test_row_order_does_not_matter(transform):
    b = random_batch(45)
    order = torch.randperm(len(b.mask_RT), generator=torch.Generator().manual_seed(0))
    moved = transform(b.rows(order))
    expected = transform(b)
    kept = None if expected.mask_RT is None else expected.mask_RT[order]
    same(moved, replace(expected, advantages=expected.advantages_RT[order], mask_RT=kept), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_group_norm_does_not_depend_on_the_order_of_rows(statistics):
    b = random_batch(45)
    order = torch.randperm(len(b.mask_RT), generator=torch.Generator().manual_seed(0))
    moved = b.rows(order).turns
    before = b.turns.to_tokens(group_norm(b.turns, statistics=statistics)[0])
    assert torch.equal(moved.to_tokens(group_norm(moved, statistics=statistics)[0]), before[order])


@by_transform
def test_padding_rows_and_columns_do_not_matter(transform):
    b = random_batch(46)
    rows, tokens = b.mask_RT.shape
    pad = torch.nn.functional.pad
    tensors = {
        k: pad(v, (0, 0, 0, 3, 0, 4) if v.dim() == 3 else (0, 3, 0, 4)) for k, v in vars(b).items() if isinstance(v, torch.Tensor)
    }
    turns = replace(b.turns, mask_RT=pad(b.mask_RT, (0, 3, 0, 4)), turn_RT=pad(b.turns.turn_RT, (0, 3, 0, 4), value=-1))
    wide, narrow = transform(replace(b, **tensors, turns=turns)), transform(b)
    kept = None if wide.mask_RT is None else wide.mask_RT[:rows, :tokens]
    same(
        replace(wide, advantages=wide.advantages_RT[:rows, :tokens], mask_RT=kept),
        narrow,
        atol=1e-6,
        rtol=1e-5,
    )


@by_transform
def test_a_batch_of_duplicates_is_transformed_like_one(transform):
    b = random_batch(47, one_row=True)
    twice = torch.cat((torch.arange(len(b.mask_RT)),) * 2)
    double = replace(b.rows(torch.arange(len(b.mask_RT))), turns=b.turns)
    parts = {k: v[twice] for k, v in vars(double).items() if isinstance(v, torch.Tensor)}
    turns = duplicate(b.turns, twice)
    result, expected = transform(Batch(turns=turns, **parts)), transform(b)
    # The sample std (AEPO) sees twice as many tokens.
    tolerance = 5e-3 if transform is TRANSFORMS["aepo"] else 1e-6
    assert_close(result.advantages_RT[: len(b.mask_RT)], expected.advantages_RT, atol=tolerance, rtol=tolerance)
    assert torch.equal(result.advantages_RT[: len(b.mask_RT)], result.advantages_RT[len(b.mask_RT) :])


def duplicate(turns, twice):
    """Every row once more, as another trajectory of the same prompt group."""
    one = subset(turns, torch.arange(len(turns.mask_RT)))
    shift = torch.tensor([0, one.num_trajectories])
    return replace(
        one,
        mask_RT=one.mask_RT[twice],
        turn_RT=torch.cat((one.turn_RT, torch.where(one.turn_RT < 0, -1, one.turn_RT + one.num_turns))),
        row_K=torch.cat((one.row_K, one.row_K + len(one.mask_RT))),
        index_K=one.index_K.repeat(2),
        trajectory_K=(one.trajectory_K + shift[:, None]).flatten(),
        group_J=one.group_J.repeat(2),
        score_J=one.score_J.repeat(2),
        success_J=one.success_J.repeat(2),
    )


DEGENERATE = {
    "all masked": lambda b: replace(b, turns=replace(b.turns, mask_RT=torch.zeros_like(b.mask_RT))),
    "no turns": lambda b: b.rows((~b.mask_RT.any(-1)).nonzero().squeeze(-1)),
    "one token": lambda b: replace(b, turns=replace(b.turns, mask_RT=one_token(b.mask_RT))),
    "groups of one": lambda b: replace(b, turns=replace(b.turns, group_J=torch.arange(b.turns.num_trajectories))),
    "zero advantages": lambda b: replace(b, advantages_RT=torch.zeros_like(b.advantages_RT)),
    "all correct": lambda b: replace(b, advantages_RT=b.advantages_RT.abs()),
    "all wrong": lambda b: replace(b, advantages_RT=-b.advantages_RT.abs()),
    "constant entropy": lambda b: replace(b, entropy_RT=torch.full_like(b.entropy_RT, 0.7)),
    "certain": lambda b: replace(b, **{n: torch.zeros_like(getattr(b, n)) for n in ("entropy_RT", "log_prob_RT", "centre_RT")}),
    "unlikely": lambda b: replace(b, log_prob_RT=torch.full_like(b.log_prob_RT, -90.0)),
    "bf16": lambda b: replace(
        b,
        **{n: getattr(b, n).bfloat16() for n in ("advantages_RT", "log_prob_RT", "old_log_prob_RT", "entropy_RT", "centre_RT")},
    ),
}
degenerate = pytest.mark.parametrize("change", DEGENERATE.values(), ids=DEGENERATE.keys())


def one_token(mask):
    out = torch.zeros_like(mask)
    row, column = mask.nonzero()[0].tolist()
    out[row, column] = True
    return out


@by_transform
@degenerate
def test_transforms_stay_finite(transform, change):
    b = change(random_batch(48))
    result = transform(b)
    assert bool(result.advantages_RT.isfinite().all())
    assert all(math.isfinite(v) for v in result.metrics.values())
    if result.advantages_RT is not b.advantages_RT:
        assert result.advantages_RT.dtype == torch.float32
        assert not bool(result.advantages_RT[~b.mask_RT].any())


@by_loss
@degenerate
def test_losses_stay_finite(loss, change):
    b = change(random_batch(49))
    log_prob = b.log_prob_RT.clone().requires_grad_()
    loss_RT, info = loss(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT)
    (grad,) = torch.autograd.grad(loss_RT.sum(), log_prob)
    assert bool(loss_RT.isfinite().all()) and bool(grad.isfinite().all())
    assert all(bool(v.isfinite().all()) for v in info.values())


@degenerate
def test_group_norm_stays_finite_and_is_zero_where_nothing_differs(change):
    turns = change(random_batch(50)).turns
    advantages, metrics = group_norm(turns)
    assert advantages.shape == (turns.num_turns,) and bool(advantages.isfinite().all())
    same_score = replace(turns, score_J=torch.full_like(turns.score_J, 0.1))
    assert not bool(group_norm(same_score)[0].any())
    assert all(math.isfinite(v) for v in metrics.values())


def test_all_correct_at_low_entropy_leaves_nothing():
    b = DEGENERATE["all correct"](random_batch(48))
    result = entrocraft(b.advantages_RT, b.turns, entropy=0.1, low=0.4, high=0.6)
    live = b.mask_RT & (b.advantages_RT > 0)
    assert not bool((result.mask_RT & live).any())
    assert result.metrics["dropped_fraction"] == pytest.approx(float(live.sum() / b.mask_RT.sum()))


@pytest.mark.parametrize("loss", [ppo_clip, aepo_loss, gspo])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("parts", [2, 5])
def test_loss_and_gradient_do_not_depend_on_micro_batches(loss, mode, parts):
    b = random_batch(51)
    check_split(b, loss, mode, parts)


@pytest.mark.parametrize("mode", ["exp", "linear"])
def test_steer_with_global_extrema_does_not_depend_on_micro_batches(mode):
    b = random_batch(52)
    omega = steer_omega(b.log_prob_RT, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT)
    low, high = steer_range(omega, b.mask_RT)
    check_split(b, steer, "token-mean", 3, mode=mode, omega_min=low, omega_max=high)
    with pytest.raises(AssertionError):
        check_split(b, steer, "token-mean", 3, mode=mode)


def check_split(b, loss, aggregation, parts, **settings):
    counts = {"num_tokens": int(b.mask_RT.sum()), "num_rows": int(b.mask_RT.any(-1).sum())}

    def run(split):
        log_prob = b.log_prob_RT.clone().requires_grad_()
        total = 0.0
        for part in torch.arange(len(log_prob)).tensor_split(split):
            args = (x[part] for x in (log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT))
            value = aggregate(loss(*args, **settings)[0], b.mask_RT[part], aggregation, **counts)
            value.backward()
            total += float(value.detach())
        return total, log_prob.grad

    (one, whole), (many, split) = run(1), run(parts)
    assert many == pytest.approx(one, rel=1e-5, abs=1e-7)
    assert_close(split, whole)
