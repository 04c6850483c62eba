# SPDX-License-Identifier: Apache-2.0
"""Groups whose trajectories all have the same return: verl's GRPO rounds, and the guard takes exactly that away."""

import types

import numpy as np
import pytest
import torch

pytest.importorskip("verl")
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from verl_entropy.batch.turns import build_turns
from verl_entropy.config import plan
from verl_entropy.hosts.common import advantage_side
from verl_entropy.methods.common.equal_returns import unequal_tokens, zero_equal_returns
from verl_entropy.methods.context import AdvantageContext


def batch(scores, turns=3, tokens=4):
    """verl's GRPO advantages of groups of trajectories (their returns in ``scores``), as rows of turns, and the turns."""
    group, session, position, score = [], [], [], []
    for g, returns in enumerate(scores):
        for j, value in enumerate(returns):
            for k in range(turns):
                group.append(f"p{g}")
                session.append(f"p{g}_{j}")
                position.append(k)
                score.append(value)
    mask = torch.ones(len(group), tokens)
    mask[:, -1] = 0
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = torch.tensor(score)
    last = [i for i, k in enumerate(position) if k == turns - 1]
    verls, _ = compute_grpo_outcome_advantage(rewards[last], mask[last], np.array([group[i] for i in last], dtype=object))
    advantages = verls.repeat_interleave(turns, 0)
    made = build_turns(
        mask.bool(),
        group_R=group,
        trajectory_R=session,
        position_R=position,
        padding_R=torch.zeros(len(group), dtype=torch.bool),
        score_R=rewards.sum(-1),
        turn_fields=[[{}] for _ in group],
    )
    return advantages, made


def test_verls_rounding_is_taken_off_and_nothing_else():
    scores = [[-1.2] * 8, [10.0] * 8, [-1.2] * 7 + [9.8], [-0.4] * 8, [0.3], [9.8, -1.2, -1.2, 9.6]]
    verls, turns = batch(scores)
    fixed, rounding = zero_equal_returns(verls, turns, turns.score_J, turns.group_J)
    rows = np.cumsum([0] + [3 * len(s) for s in scores])
    assert verls[0, 0] == pytest.approx(-0.1057, abs=1e-3) and rounding == pytest.approx(0.1057, abs=1e-3)  # what it is about
    for g in (0, 1, 3):
        assert not fixed[rows[g] : rows[g + 1]].any()
    for g in (2, 4, 5):  # a group of one keeps verl's raw score
        assert torch.equal(fixed[rows[g] : rows[g + 1]], verls[rows[g] : rows[g + 1]])
    assert verls[0, 0] != 0  # the input is as it was


def test_a_batch_without_equal_returns_comes_back_as_it_is():
    verls, turns = batch([[1.0, 0.0, 1.0], [0.5, 0.25]])
    fixed, rounding = zero_equal_returns(verls, turns, turns.score_J, turns.group_J)
    assert fixed is verls and rounding == 0.0


def test_what_is_not_finite_stays():
    verls, turns = batch([[-1.2] * 8, [1.0, 0.0]])
    verls[0, 0] = float("nan")
    fixed, _ = zero_equal_returns(verls, turns, turns.score_J, turns.group_J)
    assert torch.equal(fixed.isnan(), verls.isnan()) and torch.equal(fixed[8:], verls[8:])


@pytest.mark.parametrize(
    ("settings", "zeroes"),
    [
        ({}, False),
        ({"presets": {"aem": True}}, True),
        ({"equal_returns": "verl", "presets": {"aem": True}}, False),
        ({"equal_returns": "zero"}, True),
    ],
)
def test_who_gets_it(settings, zeroes, capsys):
    raw = {"algorithm": {"adv_estimator": "grpo", "entropy": dict(settings)}, "actor_rollout_ref": {"actor": {"policy_loss": {}}}}
    if settings.get("presets"):
        raw["algorithm"]["entropy"]["transforms"] = ["aem"]
    chosen = plan.read(raw)
    verls, turns = batch([[-1.2] * 8])
    ctx = types.SimpleNamespace(plan=chosen, turns=turns, metrics={})
    advantage_side._warn_of_rounding.cache_clear()
    assert bool(advantage_side.settle_equal_returns(ctx, verls).any()) != zeroes
    assert ctx.metrics["verl_entropy/equal_returns/rounding"] == pytest.approx(0.1057, abs=1e-3)
    assert ("equal_returns=zero" in capsys.readouterr().err) != zeroes


def drop_context(scores, transforms=(), equal_returns="drop"):
    verls, turns = batch(scores)
    entropy = {"equal_returns": equal_returns, "transforms": list(transforms)}
    chosen = plan.read({"algorithm": {"adv_estimator": "loop", "entropy": entropy}, "actor_rollout_ref": {"actor": {}}})
    given = {"plan": chosen, "step": 1, "total_steps": 1, "turns": turns, "mask_RT": turns.mask_RT, "fields": {}}
    ctx = AdvantageContext(**given, entropy_RT=torch.ones_like(verls), old_log_probs_RT=None)
    return verls, turns, ctx


def test_dropped_groups_leave_the_loss_under_any_estimator():
    verls, turns, ctx = drop_context([[-1.2] * 4, [1.0, 0.0], [0.3], [2.0, 2.0]], ["ea"])
    advantages, keep = advantage_side.apply_transforms(ctx, verls)
    rows = torch.zeros(len(verls), dtype=torch.bool)
    rows[12:21] = True  # the mixed group, and the group of one, which has nothing to compare with
    assert torch.equal(keep & turns.mask_RT, turns.mask_RT & rows[:, None])
    assert ctx.metrics["verl_entropy/equal_returns/dropped_groups"] == 0.5
    assert torch.equal(ctx.turns.mask_RT, keep & turns.mask_RT)  # later statistics are over what is left
    assert torch.equal(advantages[~rows], verls[~rows])


def test_groups_that_fail_or_succeed_as_one_leave_the_loss_though_penalties_tell_them_apart():
    scores = [[-0.1, -0.3, -0.2], [0.9, -0.1], [1.0, 0.8], [0.3]]  # success: a score above 0
    kept = {}
    for setting in ("drop", "drop_by_success"):
        verls, turns, ctx = drop_context(scores, equal_returns=setting)
        advantages, keep = advantage_side.apply_transforms(ctx, verls)
        kept[setting] = torch.ones_like(turns.mask_RT) if keep is None else keep
    rows = torch.zeros(len(verls), dtype=torch.bool)
    rows[9:15] = True  # the group of which one succeeded, ...
    rows[21:] = True  # ... and the group of one
    assert torch.equal(kept["drop_by_success"] & turns.mask_RT, turns.mask_RT & rows[:, None])
    assert bool(kept["drop"][turns.mask_RT].all())
    assert ctx.metrics["verl_entropy/equal_returns/dropped_groups"] == 0.5 and ctx.plan.zeroes_equal_returns
    assert torch.equal(advantages[~rows], verls[~rows])


def test_a_batch_of_equal_returns_alone_has_no_advantage_and_keeps_its_tokens():
    verls, _, ctx = drop_context([[-1.2] * 4, [2.0, 2.0]])
    advantages, keep = advantage_side.apply_transforms(ctx, verls)
    assert keep is None and not advantages.any() and ctx.metrics["verl_entropy/empty_after_mask"] == 1.0


def test_scores_that_differ_in_one_trajectory_are_kept():
    _, turns = batch([[1.0] * 7 + [0.0]])
    keep, share = unequal_tokens(turns)
    assert bool(keep[turns.mask_RT].all()) and share == 0.0
