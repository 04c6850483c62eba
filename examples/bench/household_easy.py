# SPDX-License-Identifier: Apache-2.0
"""The household in its second size: one of three kinds of rooms, more receptacles and objects, all six families of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.small import Small
from verl_entropy.data.expert_turns import Noise
from verl_entropy.envs.worlds.household import household_vocabulary


@dataclass(frozen=True)
class Household(Small):
    """Its prompts name the room's receptacles and the last turns."""

    def agent(self) -> dict[str, Any]:
        """``data.env``."""
        kwargs = {"difficulty": "easy", "list_places": True}
        return super().agent() | {"kwargs": kwargs, "history_length": 3}


WORLD = Household(
    name="household_easy",
    environment="household",
    vocabulary=tuple(household_vocabulary()),
    max_turns=12,
    max_prompt=128,
    max_response=20,
    held_out=320,
    noise=Noise(0.3, 0.1),
    splits=("seen", "unseen"),
)
prepare, words = WORLD.prepare, WORLD.words
