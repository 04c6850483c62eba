# SPDX-License-Identifier: Apache-2.0
"""EPO's nested mean, regulariser and histories against slow plain Python."""

import json
import math
from statistics import fmean

import pytest
import torch
from episodes import lay_out, make_episodes

from verl_entropy.batch.numerics import aggregate
from verl_entropy.batch.turns import nested_token_weight
from verl_entropy.methods.regularizers.epo import EntropyHistory, TurnEntropyHistory, epo_regularizer

SETTINGS = {"beta": 1.5, "entropy_coeff": 0.01, "smooth_coeff": 0.1, "kappa_low": 0.7, "kappa_high": 1.3}


def slow_loss(h: float, hbar: float | None, penalty: str) -> float:
    p = 0.0
    if hbar is not None:
        low, high = 0.7 * hbar, 1.3 * hbar
        hinge = 0.1 * (max(0.0, low - h) + max(0.0, h - high))
        p = hinge if penalty == "hinge" else 0.1 * (not low < h < high)
    return -0.01 * (h - 1.5 * p)


def nested_mean(episodes, value) -> float:
    return fmean(fmean(fmean(value(h, i) for h in turn) for i, turn in enumerate(e.tokens)) for e in episodes)


@pytest.mark.parametrize("layout", ["step-wise", "one-row"])
@pytest.mark.parametrize("penalty", ["hinge", "indicator"])
@pytest.mark.parametrize("hbar", [None, 0.0, 0.9])
def test_regularizer_and_nested_mean(layout, penalty, hbar):
    episodes = make_episodes(3)
    batch = lay_out(episodes, layout, shuffle=1, padding=2)
    turns = batch.turns()
    loss, _ = epo_regularizer(batch.garbage, turns.mask_RT, hbar=hbar, penalty=penalty, **SETTINGS)
    value = aggregate(
        loss,
        turns.mask_RT,
        "nested-mean",
        num_tokens=int(turns.mask_RT.sum()),
        num_rows=None,
        weight=nested_token_weight(turns),
    )
    expected = nested_mean(episodes, lambda h, i: slow_loss(h, hbar, penalty))
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_corridor_by_turn_index():
    """A history per turn index gives each token the corridor of its turn, and none where the index is new."""
    episodes = make_episodes(5)
    batch = lay_out(episodes, "one-row")
    turns = batch.turns()
    means = [0.9, 1.4, math.nan]
    table = torch.tensor(means)
    hbar_RT = turns.to_tokens(table[turns.index_K.clamp(max=2)], fill=math.nan)
    loss, _ = epo_regularizer(batch.garbage, turns.mask_RT, hbar=hbar_RT, **SETTINGS)
    value = aggregate(loss, turns.mask_RT, "token-sum", num_tokens=None, num_rows=None)
    expected = sum(
        slow_loss(h, means[i] if i < 2 else None, "hinge") for e in episodes for i, turn in enumerate(e.tokens) for h in turn
    )
    assert float(value) == pytest.approx(expected, rel=1e-5)


def test_history_is_the_mean_of_earlier_steps_and_resumes_bit_equal():
    values = [0.1, 0.7, math.nan, 0.3, math.inf, 1 / 3]
    whole, first = EntropyHistory(), EntropyHistory()
    assert whole.mean() is None
    for value in values[:3]:
        first.append(value)
    second = EntropyHistory()
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for value in values:
        whole.append(value)
    for value in values[3:]:
        second.append(value)
    assert second.mean() == whole.mean() == pytest.approx(fmean(v for v in values if math.isfinite(v)))
    assert (whole.count, whole.skipped) == (4, 2)
    assert second.state_dict() == whole.state_dict()


def test_turn_history_is_aligned_and_counts_each_index():
    steps = [  # (entropy, index) of the turns of a step
        [(1.0, 0), (3.0, 0), (5.0, 1), (math.nan, 1)],
        [(4.0, 0)],
        [(6.0, 0), (2.0, 3)],
    ]
    whole, resumed = TurnEntropyHistory(), TurnEntropyHistory()
    assert whole.mean() == []
    for step in steps:
        entropy_K, index_K = torch.tensor([h for h, _ in step]), torch.tensor([i for _, i in step])
        whole.append(entropy_K, index_K)
        resumed.append(entropy_K, index_K)
        state = json.loads(json.dumps(resumed.state_dict(), allow_nan=False))
        resumed = TurnEntropyHistory()
        resumed.load_state_dict(state)
    assert whole.mean()[:2] == [(2.0 + 4.0 + 6.0) / 3, 5.0]
    assert math.isnan(whole.mean()[2]) and whole.mean()[3] == 2.0
    assert (whole.counts, whole.skipped) == ([3, 1, 0, 1], 1)
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("history", [EntropyHistory, TurnEntropyHistory])
def test_missing_state_is_an_error(history):
    with pytest.raises(ValueError, match=r"lacks .*skipped.*Resume"):
        history().load_state_dict({"something": 1})
