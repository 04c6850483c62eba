# SPDX-License-Identifier: Apache-2.0
"""Two things that differ are not told to be one: spellings of actions, and observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from verl_entropy.agent.parsing import parse_response
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.batch.turns import build_turns
from verl_entropy.data.expert_turns import TurnWriter
from verl_entropy.methods.estimators.gigpo import anchor_groups

COMPOSED, APART = "caf\u00e9", "cafe\u0301"


def chosen(content, actions, form="text"):
    parsed = parse_response(f"<think> t </think> <action> {content} </action>", actions, action_format=form)
    return parsed.action, parsed.admissible


@pytest.mark.parametrize(
    ("content", "actions", "action", "admissible"),
    [
        ("k", ["k", "K"], "k", True),
        ("K", ["k", "K"], "K", True),
        ("k", ["K", "k"], "k", True),
        ("Go", ["go", "GO"], "Go", False),  # two could be meant
        ("GO", ["go"], "go", True),
        ("go  north", ["go north", "Go North"], "go north", True),
        ("click [ buy ]", ["click[buy]", "Click[buy]"], "click [ buy ]", False),
        ("go", ["go", "go"], "go", True),
        (APART, [COMPOSED], COMPOSED, True),
        (COMPOSED, [APART, "x"], APART, True),
        (COMPOSED.upper(), [APART], APART, True),
        (APART, [COMPOSED, APART], APART, True),
    ],
)
def test_the_exact_spelling_wins_and_a_folded_one_must_be_unique(content, actions, action, admissible):
    assert chosen(content, actions) == chosen(content, actions, "either") == (action, admissible)


@pytest.mark.parametrize("actions", [("k", "K"), ("K", "k"), (COMPOSED, "x", "K", "k"), ("go", "go")])
def test_the_experts_number_is_the_loops(actions):
    writer = TurnWriter(AgentSettings(action_format="number"), None, 9, 9)
    for action in actions:
        assert chosen(writer._spelled(action, actions), actions, "number") == (action, True)
    with pytest.raises(ValueError, match="is not among the admissible ones"):
        writer._spelled("nothing", actions)


def groups(*anchors):
    n = len(anchors)
    fields = [[{"anchor": a}] for a in anchors]
    turns = build_turns(torch.ones(n, 1), ["g"] * n, list(range(n)), [0] * n, [False] * n, torch.zeros(n), fields)
    return anchor_groups(turns).tolist()


def test_anchors_of_different_types_are_different_observations():
    assert groups(1, True, 1.0, "1") == [0, 1, 2, 3]
    assert groups([1], [True], [1.0], (1,)) == [0, 1, 2, 0]
    assert groups({"a": 1}, {"a": 1.0}, {"a": True}, {"a": 1}) == [0, 1, 2, 0]
    assert groups(np.int64(1), 1, np.bool_(True), True, np.float64(1), 1.0) == [0, 0, 1, 1, 2, 2]
    assert groups(float("nan"), float("nan"), 0.0) == [0, 0, 1]
