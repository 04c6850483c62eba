# SPDX-License-Identifier: Apache-2.0
"""Gymnasium's FrozenLake as text: a new 4 x 4 map every episode, no slipping; held-out maps are never trained on."""

from __future__ import annotations

import random
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

from bench.small import VERBS, Expert, Small, draw, shortest
from verl_entropy.data.expert_turns import Noise

SIZE, FROZEN = 4, 0.75
"""Side, and share of frozen cells; maps without a way to the goal are not drawn."""
MOVES = ("left", "down", "right", "up")


def draw_map(seed: int, split: str) -> list[str]:
    """The map of a seed, from the maps of its split."""
    return draw(seed, split, lambda number: generate_random_map(SIZE, FROZEN, number), "".join)


class FrozenLake:
    """Reward 1 and ``won`` at the goal, the end in a hole. Letters: p player, f frozen, h hole, g goal."""

    POOL_SIZE = 128

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The map of ``seed`` in ``options["split"]``."""
        self._rows = draw_map(seed, (options or {}).get("split", "train"))
        self._lake = FrozenLakeEnv(desc=self._rows, is_slippery=False)
        self._cell, _ = self._lake.reset(seed=seed)
        self.words = random.Random(seed)
        return self._text(), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move; an unknown one stays where it is."""
        reward, ended = 0.0, False
        if action in MOVES:
            cell, reward, ended, _, _ = self._lake.step(MOVES.index(action))
            self._cell = int(cell)
        return self._text(), float(reward), bool(ended), False, self._info(reward > 0)

    def close(self) -> None:
        """Nothing is held."""

    def expert(self, info: Any) -> Expert:
        """Plays a shortest way from where it is."""
        return Expert(self)

    def _text(self) -> str:
        cells = [c.lower().replace("s", "f") for c in "".join(self._rows)]
        cells[self._cell] = "p"
        return " / ".join(" ".join(cells[i : i + SIZE]) for i in range(0, SIZE * SIZE, SIZE))

    def _info(self, won: bool) -> dict[str, Any]:
        return {"admissible_actions": MOVES, "won": won, "task": "reach g", "task_type": "frozen_lake"}

    def way(self) -> str:
        """The first move of a shortest way to the goal."""
        return (shortest(self._cell, MOVES, self._after, lambda cell: self._kind(cell) == "G") or MOVES)[0]

    def _after(self, cell: int, move: str) -> int:
        """Where a move leads; one into a hole counts as none."""
        ((_, there, _, _),) = self._lake.P[cell][MOVES.index(move)]
        return cell if self._kind(there) == "H" else there

    def _kind(self, cell: int) -> str:
        return self._rows[cell // SIZE][cell % SIZE]


WORLD = Small(
    name="frozen_lake",
    environment="bench.frozen_lake:FrozenLake",
    vocabulary=("p", "f", "h", "g", "/", "reach", *MOVES, *VERBS),
    max_turns=10,
    max_prompt=48,
    max_response=16,
    held_out=320,
    noise=Noise(0.4, 0.1),
)
prepare, words = WORLD.prepare, WORLD.words
