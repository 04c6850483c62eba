# SPDX-License-Identifier: Apache-2.0
"""Two games of TextWorldExpress for a pretrained model on a card; needs Java. No held-out task is one of training."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench import card
from bench.small import Small, draw, thought
from verl_entropy.data.expert_turns import Noise
from verl_entropy.data.experts import ExpertFailed
from verl_entropy.envs.simulators.textworld_express import TextWorldExpressEnv

GAMES = {
    "twc": {"numLocations": 1, "numItemsToPutAway": 1, "includeDoors": 0},
    "mapreader": {"numLocations": 5, "maxDistanceApart": 2, "maxDistractorItemsPerLocation": 0, "includeDoors": 0},
}
"""An object belongs to its usual place, or a coin in another room into a box."""
TURNS = 12
VERBS = ("try", "choose", "want", "will")
IDLE = ("look around", "task")
"""Of the package's own solutions: actions that show nothing new."""
BACK = {"move north": "move south", "move south": "move north", "move east": "move west", "move west": "move east"}


class Game(TextWorldExpressEnv):
    """A game of ``GAMES``, with an expert that finds its way again."""

    def __init__(self) -> None:
        super().__init__(games=list(GAMES), params=GAMES, max_turns=TURNS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The game of ``seed``, from the games of ``options["split"]``: folds of the package share some."""
        split = (options or {}).get("split", "train")
        start = super().reset
        return draw(seed, split, lambda number: start(seed=number, options={"split": split}), lambda seen: seen[1]["anchor"])

    def expert(self, info: Any) -> Expert:
        """Plays the package's solution."""
        return Expert(self, self.expert_actions() or [])

    @property
    def last(self) -> str | None:
        """The action that was played last."""
        return self._played[-1] if self._played else None


class Expert:
    """One episode's expert: goes back where another action than its own led away, and leaves out what was done already."""

    def __init__(self, game: Game, actions: Sequence[str]) -> None:
        self._game, self._left = game, deque(action for action in actions if action not in IDLE)
        self._words = random.Random("/".join(actions))
        self._chosen: str | None = None
        self.thought = ""

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """The next action of the solution that is possible; ExpertFailed if there is none."""
        played = self._game.last
        if self._chosen is not None and played != self._chosen:
            self._left.appendleft(self._chosen)
            if played in BACK:
                self._left.appendleft(BACK[played])
        while self._left and self._left[0] not in admissible:
            self._left.popleft()
        if not self._left:
            raise ExpertFailed("nothing of its solution is left")
        self._chosen = self._left.popleft()
        self.thought = thought(self._words, self._chosen, VERBS)
        return self._chosen


@dataclass(frozen=True)
class Games(Small):
    """Their prompts list the admissible actions."""

    def agent(self) -> dict[str, Any]:
        """``data.env``."""
        return super().agent() | {"history_length": 2, "show_admissible": True, "prompt_template": "compact", "num_envs": 16}


WORLD = Games(
    name="textworld_express",
    environment="bench.textworld_express_card:Game",
    vocabulary=(),
    max_turns=TURNS,
    max_prompt=512,
    max_response=48,
    held_out=256,
    noise=Noise(0.3, 0.1),
    episodes=1500,
    warm_steps=150,
)
prepare, words = partial(card.prepare, WORLD), partial(card.words, WORLD)
