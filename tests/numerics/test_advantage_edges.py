# SPDX-License-Identifier: Apache-2.0
"""Empty, single and constant things: no NaN, no surprise."""

import math

import numpy as np
import pytest
import torch
from episodes import lay_out, make_episodes, scored

from verl_entropy.batch.numerics import AGGREGATIONS, aggregate, masked_mean
from verl_entropy.batch.turns import build_turns, nested_token_weight
from verl_entropy.methods.estimators.gigpo import anchor_groups, gigpo
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.heads.seal import mixed_group_weight, seal_loss, seal_parts, success_label
from verl_entropy.methods.regularizers.epo import epo_beta, epo_regularizer, epo_released_weight
from verl_entropy.methods.transforms.aem import aem, aem_weights, sign_mask

ANCHOR = {"anchor": "s", "reward": 1.0}


def with_anchors(pairs, turns_each=None):
    return scored(pairs, turns_each, turn_fields=[[ANCHOR]] * (sum(turns_each) if turns_each else len(pairs)))


@pytest.mark.parametrize("statistics", ["trajectory", "row"])
@pytest.mark.parametrize("norm", ["mean", "mean_std"])
def test_group_of_one(statistics, norm):
    turns = with_anchors([("a", 3.0), ("b", 1.0), ("b", 0.0)])
    zero, _ = gigpo(turns, norm=norm, statistics=statistics)
    raw, _ = gigpo(turns, norm=norm, statistics=statistics, singleton="raw")
    assert zero[0] == 0
    assert raw[0] == pytest.approx(3.0, rel=2e-6)
    assert torch.equal(zero[1:], raw[1:])
    assert loop(turns, statistics=statistics)[0][0] == 0
    assert loop(turns, statistics=statistics, singleton="raw")[0][0] == 3


@pytest.mark.parametrize("statistics", ["trajectory", "row"])
@pytest.mark.parametrize("norm", ["mean", "mean_std"])
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e6])
def test_equal_scores_give_exactly_zero(statistics, norm, value):
    turns = with_anchors([("a", value)] * 7)
    assert not gigpo(turns, norm=norm, statistics=statistics)[0].any()
    assert not loop(turns, statistics=statistics)[0].any()


@pytest.mark.parametrize("norm", ["mean", "mean_std"])
def test_equal_returns_give_exactly_zero(norm):
    """The mean of seven times 0.95 x 0.1 is not 0.95 x 0.1; that rounding error over eps is no advantage."""
    fields = [[{"anchor": f"s{t}", "reward": 0.1 * t}] for _ in range(7) for t in range(2)]
    turns = scored([("a", 1.0)] * 7, turns_each=[2] * 7, turn_fields=fields)
    assert not gigpo(turns, norm=norm)[0].any()


def test_observation_seen_once_has_no_step_advantage():
    fields = [[{"anchor": name, "reward": r}] for name, r in (("s", 5.0), ("t", 1.0), ("t", 2.0))]
    turns = scored([("a", 1.0)] * 3, turn_fields=fields)
    torch.testing.assert_close(gigpo(turns, norm="mean")[0], torch.tensor([0.0, -0.5, 0.5]))


def test_equal_scores_still_prefer_the_shorter_way():
    """A^E = 0, but the discounted return tells the turns of a loop apart."""
    turns = scored(
        [("a", 1.0), ("a", 1.0)],
        turns_each=[3, 1],
        turn_fields=[[{"anchor": "s", "reward": float(r)}] for r in (0, 0, 1, 1)],
    )
    advantages, _ = gigpo(turns, gamma=0.9)
    assert advantages.tolist() == sorted(advantages.tolist())
    assert advantages[0] < 0 < advantages[2]


def test_penalty_is_taken_off_its_own_turn_only():
    fields = [[{"anchor": "s", "reward": 0.0, "penalty": p}] for p in (0.0, 0.1, 0.0)]
    turns = scored([("a", 0.0), ("a", 0.0)], turns_each=[2, 1], turn_fields=fields)
    torch.testing.assert_close(gigpo(turns, norm="mean")[0], torch.tensor([1 / 30, -2 / 30, 1 / 30]))


def test_batch_without_turns():
    turns = build_turns(torch.zeros(2, 4), ["a", "a"], [0, 1], [0, 0], [False, True], torch.tensor([1.0, 0.0]))
    assert (turns.num_turns, turns.num_trajectories, turns.num_groups) == (0, 1, 1)
    x = torch.full((2, 4), float("nan"))
    assert gigpo(turns, omega=0.0)[0].shape == loop(turns)[0].shape == turns.mean(x).shape == (0,)
    assert torch.equal(aem(torch.ones(2, 4), turns, x).advantages_RT, torch.ones(2, 4))
    assert not turns.to_tokens(turns.sum(x)).any()
    assert not nested_token_weight(turns).any() and not success_label(turns).any()
    nothing = build_turns(torch.zeros(1, 4), ["a"], [0], [0], [True], torch.tensor([math.nan]))
    assert (nothing.num_trajectories, nothing.num_groups, gigpo(nothing, omega=0.0)[0].shape) == (0, 0, (0,))


def test_trajectory_without_a_turn_still_counts_in_its_group():
    """A rollout that said nothing and got 0 is part of the baseline."""
    mask = torch.tensor([[1, 1], [0, 0]])
    turns = build_turns(mask, ["a", "a"], [0, 1], [0, 0], [False, False], torch.tensor([1.0, 0.0]))
    assert loop(turns)[0].tolist() == [1.0]


# ----------------------------------------------------------------------------- AEM


def test_temperature_zero_is_the_same_tensor():
    batch = lay_out(make_episodes(0), "step-wise")
    advantages = torch.randn_like(batch.entropy)
    before = advantages.clone()
    assert aem(advantages, batch.turns(), batch.garbage, temperature=0.0).advantages is advantages
    assert torch.equal(advantages, before)


def entropies(*values):
    turns = scored([("a", 0.0)] * len(values))
    return torch.tensor(values), turns


@pytest.mark.parametrize(
    "values, settings",
    [
        ([0.7], {}),  # group of one
        ([0.7, 0.7, 0.7], {}),  # no range
        ([0.7, 0.7 + 1e-6], {"min_range": 1e-5}),
        ([0.1, 0.9], {"min_group": 3}),
        ([0.1, math.nan, math.inf], {}),  # one finite turn is left
    ],
)
def test_weight_is_exactly_one_without_a_spread(values, settings):
    entropy_K, turns = entropies(*values)
    assert torch.equal(aem_weights(entropy_K, turns, **settings), torch.ones(len(values)))
    advantages = torch.randn(len(values), 2)
    assert torch.equal(aem(advantages, turns, entropy_K[:, None].expand(-1, 2), **settings).advantages_RT, advantages)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_weights_average_to_one_and_keep_the_sign(temperature):
    batch = lay_out(make_episodes(8), "one-row")
    turns = batch.turns()
    alpha = aem_weights(turns.mean(batch.garbage), turns, temperature=temperature)
    assert (alpha >= 0).all() and torch.isfinite(alpha).all()
    for group in range(turns.num_groups):
        assert float(alpha[turns.group_K == group].double().mean()) == pytest.approx(1.0, abs=1e-6)


def test_turn_that_is_not_finite_is_left_out_of_its_group():
    entropy_K, turns = entropies(0.3, 0.8, 1.5, math.nan)
    alpha = aem_weights(entropy_K, turns)
    assert alpha[3] == 1
    assert torch.equal(alpha[:3], aem_weights(*entropies(0.3, 0.8, 1.5)))


@pytest.mark.parametrize(
    "drop, kept",
    [("positive", [False, True, True, True, True]), ("negative", [True, False, True, True, True])],
)
def test_sign_mask_drops_turns_that_move_the_entropy_one_way(drop, kept):
    """Turns: above the mean and up, above and down, not finite, at A = 0, and alone in its group."""
    turns = scored([("a", 0.0)] * 4 + [("b", 0.0)])
    entropy = torch.tensor([2.0, 2.0, math.nan, 0.1, 5.0])[:, None].expand(-1, 2)
    advantages = torch.tensor([1.0, -1.0, 1.0, 0.0, 1.0])[:, None].expand(-1, 2)
    assert sign_mask(advantages, entropy, turns, drop=drop)[:, 0].tolist() == kept
    with pytest.raises(ValueError, match="drop='both': allowed are positive, negative"):
        sign_mask(advantages, entropy, turns, drop="both")


def test_aem_takes_no_gradient_into_the_entropy():
    entropy_K, turns = entropies(0.3, 0.8)
    entropy = entropy_K[:, None].expand(-1, 2).clone().requires_grad_()
    assert not aem(torch.ones(2, 2), turns, entropy).advantages_RT.requires_grad


# ----------------------------------------------------------------------------- losses


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_empty_mask_gives_zero_value_and_gradient(mode):
    x = torch.full((2, 3), float("nan"), requires_grad=True)
    value = aggregate(x, torch.zeros(2, 3), mode, num_tokens=0, num_rows=0, weight=torch.zeros(2, 3), scale_factor=1.0)
    value.backward()
    assert value == 0 and not x.grad.any()
    assert masked_mean(x, torch.zeros(2, 3)) == 0
    assert masked_mean(x, torch.zeros(2, 3), dim=1).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_half_precision_are_fp32(dtype):
    x = torch.full((4, 4096), 0.1, dtype=dtype)
    value = aggregate(x, torch.ones(4, 4096), "token-sum", num_tokens=None, num_rows=None)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(float(x[0, 0]) * 4 * 4096, rel=1e-5)
    turns = scored([("a", 0.0)])
    assert turns.mean(torch.ones(1, 2, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("penalty", ["hinge", "indicator"])
@pytest.mark.parametrize("hbar", [None, 0.0, math.nan])
def test_epo_without_history_or_with_a_collapsed_one(penalty, hbar):
    entropy = torch.tensor([[0.5, 1.0], [0.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    loss, parts = epo_regularizer(entropy, mask, hbar=hbar, beta=2.0, penalty=penalty)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(entropy.grad).all()
    if hbar != 0.0:  # no history: the plain entropy bonus
        assert not parts["penalty"].any() and not parts["outside"].any()
        torch.testing.assert_close(loss, -0.001 * torch.tensor([[0.5, 1.0], [0.0, 0.0]]))
    else:  # everything above zero lies outside
        assert parts["outside"].tolist() == [[1, 1], [0, 0]]


def test_kappa_low_zero_never_pushes_up():
    entropy = torch.tensor([[-1e-7]], requires_grad=True)  # rounding can make an entropy negative
    loss, _ = epo_regularizer(entropy, torch.ones(1, 1), hbar=0.5, beta=1.0, entropy_coeff=1.0)
    loss.sum().backward()
    assert entropy.grad.item() == -1.0


@pytest.mark.parametrize("total", [1, 2, 3, 10])
def test_schedules_of_short_runs(total):
    for k in range(total + 3):
        assert math.isfinite(epo_beta(k, total)) and math.isfinite(epo_released_weight(k, total))
    assert (epo_beta(0, total), epo_released_weight(0, total)) == (2.0, 1.0)


def test_seal_loss_is_finite_at_extreme_logits():
    logits = torch.tensor([[1e4, -1e4], [math.nan, -1e4]], requires_grad=True)
    mask = torch.tensor([[1, 1], [0, 1]])
    loss = seal_loss(logits, torch.tensor([False, True]), mask)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logits.grad).all()
    assert loss.tolist() == [[1e4, 0], [0, 1e4]]
    assert all(torch.isfinite(part).all() for part in seal_parts(logits, torch.tensor([0, 1]), mask).values())


def test_uniform_groups_get_no_weight():
    turns = scored(
        [("mixed", 1.0), ("mixed", 0.0), ("good", 1.0), ("good", 2.0), ("bad", 0.0)],
        turns_each=[2, 1, 1, 1, 1],
    )
    assert mixed_group_weight(turns).tolist() == [1, 1, 1, 0, 0, 0]
    assert success_label(turns).tolist() == [True, True, False, True, True, False]


# ----------------------------------------------------------------------------- observations


class Plain:
    """Equal to itself alone: grouping by it would never find a group."""


def grouped(*anchors, similarity=None):
    turns = scored([("a", 0.0)] * len(anchors), turn_fields=[[{"anchor": a}] for a in anchors])
    return anchor_groups(turns, similarity).tolist()


@pytest.mark.parametrize(
    "same, other",
    [
        ("room", "hall"),
        (b"a", b"b"),
        (3, 4),
        (np.int64(3), 4),
        (np.arange(6).reshape(2, 3), np.arange(6)),
        (np.array(["a", "b"], dtype=object), np.array(["a", "c"], dtype=object)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
        ({"grid": [1, 2], "text": "x"}, {"grid": [2, 1], "text": "x"}),
        ([["a"], ["b"]], [["a", "b"]]),
    ],
)
def test_equal_observations_of_any_kind_share_a_group(same, other):
    import copy

    first, second, third = grouped(same, other, copy.deepcopy(same))
    assert first == third != second


def test_an_observation_is_not_shared_between_prompts():
    turns = scored([("a", 0.0), ("b", 0.0)], turn_fields=[[{"anchor": "s"}]] * 2)
    assert len(set(anchor_groups(turns).tolist())) == 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: gigpo(scored([("a", 0.0)])), r"needs the observation.*omega=0"),
        (lambda: grouped(Plain()), "anchor of type Plain cannot be grouped"),
        (lambda: grouped({1, 2}), "anchor of type set cannot be grouped"),
        (lambda: grouped(3, 4, similarity=0.9), r"compares texts, got a int.*Set similarity to null"),
        (lambda: grouped("a", similarity=1.5), r"similarity=1.5: must be in \(0, 1\]"),
        (lambda: gigpo(scored([("a", 0.0)]), statistics="turn"), "statistics='turn': allowed are"),
        (lambda: loop(scored([("a", 0.0)]), statistics="turn"), "statistics='turn': allowed are"),
        (lambda: gigpo(scored([("a", 0.0)]), norm="std"), "norm='std': allowed are"),
        (lambda: gigpo(scored([("a", 0.0)]), singleton="one"), "singleton='one': allowed are"),
        (lambda: aem_weights(*entropies(1.0), temperature=-1.0), "temperature=-1.0: must be >= 0"),
        (lambda: epo_beta(-1, 10), "k=-1, total_steps=10"),
    ],
)
def test_wrong_settings_name_the_key_and_the_fix(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"penalty": "square"}, "penalty='square': allowed are hinge, indicator"),
        ({"kappa_low": 1.5, "kappa_high": 0.5}, "kappa_low=1.5 is above kappa_high=0.5"),
    ],
)
def test_wrong_corridor(settings, message):
    with pytest.raises(ValueError, match=message):
        epo_regularizer(torch.ones(1, 1), torch.ones(1, 1), hbar=1.0, beta=1.0, **settings)
