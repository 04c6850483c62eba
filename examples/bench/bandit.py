# SPDX-License-Identifier: Apache-2.0
"""A two-armed bandit in the manner of RAGEN's (arXiv 2504.20073): one arm pays a little each time, the other much, but seldom; one pull an
episode. The names of the arms say which is which."""

from __future__ import annotations

import random
from typing import Any

from bench.small import Expert, Small
from verl_entropy.data.expert_turns import Noise

SAFE = ("phoenix", "turtle", "teacher", "clerk", "oak", "stone", "brick", "harbour")
BOLD = ("dragon", "hare", "trader", "pilot", "comet", "flame", "arrow", "storm")
PAYS, CHANCE = 0.15, 0.25
"""What a safe arm pays; how often a bold one pays 1: .25 on average, and 0 in three pulls of four."""
VERBS = ("pull", "take", "choose", "play")


class Bandit:
    """``won``: the arm with the higher mean was pulled, whatever it paid. Rollouts of a group share the luck of their seed."""

    POOL_SIZE = 256

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Two arms in a drawn order."""
        self.words = rng = random.Random(f"{(options or {}).get('split', 'train')}/{seed}")
        self.safe, self.bold = rng.choice(SAFE), rng.choice(BOLD)
        self._arms = tuple(rng.sample([self.safe, self.bold], 2))
        self._lucky = rng.random() < CHANCE
        return "arms " + " , ".join(self._arms), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The pull; anything but an arm pays nothing."""
        reward = PAYS if action == self.safe else float(self._lucky) if action == self.bold else 0.0
        return "done", reward, True, False, self._info(action == self.bold)

    def close(self) -> None:
        """Nothing is held."""

    def expert(self, info: Any) -> Expert:
        """Pulls either arm, the safe one more often: the warm start knows the form, and the wrong answer."""
        return Expert(self, VERBS)

    def way(self) -> str:
        """An arm."""
        return self.safe if self.words.random() < 0.6 else self.bold

    def _info(self, won: bool) -> dict[str, Any]:
        return {"admissible_actions": self._arms, "won": won, "task": "choose one", "task_type": "bandit"}


WORLD = Small(
    name="bandit",
    environment="bench.bandit:Bandit",
    vocabulary=("arms", "choose", "one", "done", *SAFE, *BOLD, *VERBS),
    max_turns=1,
    max_prompt=24,
    max_response=16,
    held_out=640,
    noise=Noise(0.0, 0.1),
    warm_steps=200,
    prompts=16,
    rollouts=16,
)
prepare, words = WORLD.prepare, WORLD.words
