# SPDX-License-Identifier: Apache-2.0
"""Tokens that a rejection or a transform took away are in no statistic, and one value that is not finite takes nothing with it."""

import dataclasses
import math

import pytest
import torch

pytest.importorskip("verl")
from verl_entropy.batch.turns import build_turns, padded
from verl_entropy.config import plan
from verl_entropy.hosts.common import advantage_side
from verl_entropy.methods.common.equal_returns import zero_equal_returns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.regularizers.epo import EPO, EpoState
from verl_entropy.methods.regularizers.siren import Siren, SirenState
from verl_entropy.methods.transforms.aem import aem, sign_mask
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.repo_d import RepoD, repo_d
from verl_entropy.methods.transforms.repo_r import repo_r


def turns_of(mask, group=None, score=None, spans=None):
    """A turn a row, each its own trajectory."""
    rows = len(mask)
    score = torch.zeros(rows) if score is None else torch.tensor(score)
    return build_turns(mask, group or ["p"] * rows, range(rows), [0] * rows, [False] * rows, score, spans_mask_RT=spans)


def thinned(lost, rows=4, tokens=3):
    """Turns of full rows of which the tokens ``lost`` [(row, token)] are not trained."""
    spans = torch.ones(rows, tokens).bool()
    mask = spans.clone()
    for row, token in lost:
        mask[row, token] = False
    return turns_of(mask, spans=spans), mask


# ----------------------------------------------------------------------------- equal returns


@pytest.mark.parametrize("lost", [[(0, 1)], [(2, 0), (2, 1), (2, 2)]], ids=["one token", "a trajectory"])
def test_equal_returns_are_found_although_tokens_were_rejected(lost):
    turns, mask = thinned(lost)
    rounded = torch.full(mask.shape, -0.1057) * mask  # verl's GRPO multiplies by the thinned mask
    fixed, rounding = zero_equal_returns(rounded, turns, turns.score_J, turns.group_J)
    assert not fixed.any() and rounding == pytest.approx(0.1057)


def test_an_advantage_is_real_where_returns_differ_although_no_other_has_a_token():
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()
    turns = turns_of(mask, score=[1.0, 0.0], spans=torch.ones(2, 3).bool())
    advantages = torch.tensor([[0.7071] * 3, [0.0] * 3])
    assert zero_equal_returns(advantages, turns, turns.score_J, turns.group_J) == (advantages, 0.0)


# ----------------------------------------------------------------------------- turns


ENTROPY = torch.tensor([[0.3], [0.8], [1.5], [0.5]]).expand(4, 3)


def test_trained_mean_is_over_what_is_trained():
    turns, mask = thinned([(0, 0), (2, 0), (2, 1), (2, 2)])
    values = torch.arange(12.0).view(4, 3)
    values[0, 0] = values[2] = math.nan
    assert torch.equal(turns.trained_K, torch.tensor([True, True, False, True]))
    torch.testing.assert_close(turns.trained_mean(values), torch.tensor([1.5, 4.0, math.nan, 10.0]), equal_nan=True)
    full = turns_of(torch.ones(4, 3).bool())
    assert full.trained_K.all() and torch.equal(full.trained_mean(mask.float()), full.mean(mask.float()))


def test_aem_and_its_sign_mask_leave_out_turns_without_a_trained_token():
    lost = [(row, token) for row in (1, 2) for token in range(3)]
    turns, _ = thinned(lost)
    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).expand(4, 3)
    kept = turns_of(torch.ones(2, 3).bool())
    rows = [0, 3]
    torch.testing.assert_close(
        aem(advantages, turns, ENTROPY).advantages_RT[rows], aem(advantages[rows], kept, ENTROPY[rows]).advantages_RT
    )
    assert aem(advantages, turns, ENTROPY).advantages_RT[0, 0] == pytest.approx(
        1.462117, abs=1e-6
    )  # methods' number for two turns
    for drop in ("positive", "negative"):
        alone = sign_mask(advantages[rows], ENTROPY[rows], kept, drop=drop)
        assert torch.equal(sign_mask(advantages, ENTROPY, turns, drop=drop)[rows], alone)


def context(turns, mask, presets=(), entropy=ENTROPY, **algorithm):
    entropy_section = {"presets": dict.fromkeys(presets, True), **algorithm}
    raw = {"algorithm": {"adv_estimator": "grpo", "entropy": entropy_section}, "actor_rollout_ref": {"actor": {}}}
    return AdvantageContext(
        plan=plan.read(raw),
        step=1,
        total_steps=10,
        turns=turns,
        mask_RT=mask,
        entropy_RT=entropy,
        old_log_probs_RT=torch.full(mask.shape, -1.0),
        fields={},
    )


def test_epos_history_by_turn_is_over_trained_tokens():
    turns, mask = thinned([(0, 0), (2, 0), (2, 1), (2, 2)])
    entropy = torch.full((4, 3), 0.1)
    entropy[~mask] = 9.0
    state = EpoState(EPO(history="turn"))
    state.step(context(turns, mask, entropy=entropy))
    assert state.history.mean() == pytest.approx([0.1])


def test_after_a_batch_was_emptied_the_turns_are_as_before():
    mask = torch.ones(4, 3).bool()
    ctx = context(turns_of(mask), mask, transforms=["entrocraft"])
    ctx.entropy = 0.01  # far below the range: what lowers entropy goes, and that is all here
    advantages, keep = advantage_side.apply_transforms(ctx, torch.ones(4, 3))
    assert keep is None and not advantages.any() and ctx.metrics["verl_entropy/empty_after_mask"] == 1
    assert ctx.turns.mask_RT.all()


def test_sirens_peaks_are_those_that_its_hbar_is_over():
    mask = torch.ones(2, 5).bool()
    nucleus = torch.tensor([[0.1, 0.2, 0.3, 0.4, 2.0], [0.1, 0.1, 0.2, 0.2, 0.3]])
    section = {"policy_loss": {"regularizer": "siren", "siren": {}}}
    raw = {"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {"actor": section}}
    ctx = dataclasses.replace(context(turns_of(mask), mask), plan=plan.read(raw), fields={"nucleus_entropy": nucleus})
    said = SirenState(Siren()).step(ctx)
    ctx.mask_RT = torch.tensor([[True] * 4 + [False], [True] * 5])  # a transform took the peak of the first row
    peaks = advantage_side.worker_columns(ctx)["verl_entropy_peak"]
    assert said["hbar"] == pytest.approx((2.0 + 0.3) / 2) and not peaks[0].any() and peaks[1].tolist() == [0, 0, 0, 0, 1]


# ----------------------------------------------------------------------------- groups without a difference


@pytest.mark.parametrize("rounding", [0.0, 1.2e-7])
def test_repo_d_leaves_out_groups_without_a_difference(rounding):
    turns = turns_of(torch.ones(4, 3).bool(), group=["a", "a", "b", "b"])
    advantages = torch.tensor([[1.0], [-1.0], [rounding], [rounding]]).expand(4, 3)
    log_prob = torch.log(torch.rand(4, 3, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1)
    found = repo_d(advantages, turns, log_prob, ENTROPY, zeta=1.0)
    alone = repo_d(advantages[:2], turns_of(torch.ones(2, 3).bool()), log_prob[:2], ENTROPY[:2], zeta=1.0)
    torch.testing.assert_close(padded(found.advantages)[:2], padded(alone.advantages))
    assert torch.equal(padded(found.advantages)[2:], advantages[2:])
    assert found.metrics["beta"] == pytest.approx(alone.metrics["beta"], rel=1e-6)
    assert RepoD().skip_zero_groups


# ----------------------------------------------------------------------------- not finite


@pytest.mark.parametrize("name", ["log_prob", "entropy"])
def test_one_value_that_is_not_finite_does_not_switch_clip_b_and_clip_v_off(name):
    g = torch.Generator().manual_seed(3)
    mask = torch.ones(8, 50).bool()
    turns, x = turns_of(mask), {"log_prob": -0.3 - 0.1 * torch.rand(8, 50, generator=g), "entropy": torch.ones(8, 50)}
    x["log_prob"][0, 0], x["entropy"][0, 0] = -1.0, 0.0  # far below
    centre = torch.zeros(8, 50)
    advantages = -torch.ones(8, 50)
    whole = clip_b(advantages, turns, x["log_prob"], x["entropy"], mu=1.5)
    x[name][5, 5] = -math.inf if name == "log_prob" else math.nan
    found = clip_b(advantages, turns, x["log_prob"], x["entropy"], mu=1.5)
    limited = clip_v(advantages, turns, x["log_prob"], x["entropy"], centre, mu=1.5, max_frac=None)
    assert all(math.isfinite(v) for result in (found, limited) for v in result.metrics.values())
    for result in (whole, found, limited):
        assert not result.mask_RT[0, 0] and result.mask_RT[1:5].any()


def test_repo_r_leaves_a_punished_token_of_probability_zero():
    turns = turns_of(torch.ones(1, 2).bool())
    shaped = repo_r(torch.tensor([[-1.0, 1.0]]), turns, torch.tensor([[-math.inf, -1.0]]), torch.ones(1, 2), zeta=0.1)
    assert padded(shaped.advantages).tolist() == [[-1.0, 1.0]]
