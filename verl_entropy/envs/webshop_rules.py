# SPDX-License-Identifier: Apache-2.0
"""What a shopping environment is scored by, and how its actions are written: ``search[words]`` and ``click[button]``."""

from __future__ import annotations

import re

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)

SEARCH_FORM = "search[<your query>]"
"""How the search page's action is shown; verl-agent's words."""
WIN_REWARD = 10.0  # what WebShop's users train on: 10 for a task score of 1, 0 for everything else
REWARDS = ("success", "score")
"""``success``: 10 for a perfect purchase, else 0. ``score``: the task score, 0 to 1."""


def parse_action(action: str) -> tuple[str, str]:
    """(``search`` or ``click``, its argument); ("", "") for anything else."""
    match = _ACTION.fullmatch(action)
    return (match[1].lower(), " ".join(match[2].split())) if match else ("", "")


def task_score(type_match: float, attributes: int, options: int, price: bool, wanted: tuple[int, int]) -> float:
    """r = r_type (matched attributes + matched options + price within bound) / (attributes + options wanted + 1).

    ``wanted`` is (attributes, options) of the goal.
    """
    return type_match * (attributes + options + price) / (sum(wanted) + 1)


def reward_of(score: float, kind: str) -> float:
    """The reward of a purchase under ``REWARDS``."""
    if kind == "score":
        return score
    return WIN_REWARD if is_perfect(score) else 0.0


def is_perfect(score: float) -> bool:
    """A task score of 1, up to rounding of the quotient."""
    return score > 1.0 - 1e-9
