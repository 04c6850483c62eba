# SPDX-License-Identifier: Apache-2.0
"""Worked numbers of RLOO, GRPO and GiGPO."""

import pytest
import torch
from episodes import scored

from verl_entropy.methods.estimators.gigpo import episode_advantage, gigpo, step_returns
from verl_entropy.methods.estimators.loop import loop

TWO = [("a", 1), ("a", 0)]
FOUR = [("a", 1), ("a", 1), ("a", 0), ("a", 1)]


def close(actual, expected):
    torch.testing.assert_close(actual.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("pairs, expected", [(TWO, [1.0, -1.0]), (FOUR, [1 / 3, 1 / 3, -1.0, 1 / 3])])
@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_rloo(pairs, expected, statistics):
    close(loop(scored(pairs), statistics=statistics)[0], expected)


@pytest.mark.parametrize("pairs, expected", [(TWO, [0.707106, -0.707106]), (FOUR, [0.499999, 0.499999, -1.499997, 0.499999])])
@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_grpo(pairs, expected, statistics):
    close(gigpo(scored(pairs), omega=0.0, statistics=statistics)[0], expected)


def test_statistic_levels_differ_when_lengths_do():
    """3 turns of score 10 and 2 turns of score 0: the row mean is 6, the trajectory mean is 5."""
    turns = scored([("a", 10), ("a", 0)], turns_each=[3, 2])
    close(loop(turns, statistics="trajectory")[0], [10.0] * 3 + [-10.0] * 2)
    close(loop(turns, statistics="row")[0], [5.0] * 3 + [-7.5] * 2)


# trajectory a sees s0, s1, s0 with rewards 0, 0, 10; trajectory b sees s0, s1 with rewards 0, 0
A_E = {
    ("row", "mean"): [4, 4, 4, -6, -6],
    ("row", "mean_std"): [0.730297] * 3 + [-1.095445] * 2,
    ("trajectory", "mean"): [5, 5, 5, -5, -5],
    ("trajectory", "mean_std"): [0.707107] * 3 + [-0.707107] * 2,
}
A_S = {
    "mean": [2.683333, 4.75, 3.658333, -6.341667, -4.75],
    "mean_std": [0.486672, 0.707107, 0.663506, -1.150178, -0.707107],
}
JOINT_ROWS = {
    "mean": [6.683333, 8.75, 7.658333, -12.341667, -10.75],
    "mean_std": [1.216969, 1.437403, 1.393803, -2.245623, -1.802552],
}


@pytest.fixture
def gigpo_turns():
    rewards, anchors = [0, 0, 10, 0, 0], ["s0", "s1", "s0", "s0", "s1"]
    fields = [[{"reward": r, "anchor": a}] for r, a in zip(rewards, anchors, strict=True)]
    return scored([("x", 10), ("x", 0)], turns_each=[3, 2], turn_fields=fields)


def test_gigpo_step_returns(gigpo_turns):
    close(step_returns(gigpo_turns, 0.95), [9.025, 9.5, 10.0, 0.0, 0.0])


@pytest.mark.parametrize("statistics, norm", list(A_E))
def test_gigpo_episode_advantage(gigpo_turns, statistics, norm):
    close(episode_advantage(gigpo_turns, statistics=statistics, norm=norm), A_E[statistics, norm])


@pytest.mark.parametrize("norm", list(A_S))
def test_gigpo_step_advantage(gigpo_turns, norm):
    joint, _ = gigpo(gigpo_turns, gamma=0.95, omega=1.0, norm=norm, statistics="row")
    close(joint, JOINT_ROWS[norm])
    close(joint - gigpo(gigpo_turns, omega=0.0, norm=norm, statistics="row")[0], A_S[norm])
