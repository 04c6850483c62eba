# SPDX-License-Identifier: Apache-2.0
"""Sokoban as text: one box in a new 4 x 4 room every episode, in the manner of RAGEN's; held-out rooms are never trained on.

RAGEN draws its rooms with gym-sokoban, which needs gym and pkg_resources, both given up; here a room is drawn at random and kept if a
shortest solution has the right length. A box in a corner cannot be moved again, so one push can lose an episode.
"""

from __future__ import annotations

import functools
import random
from typing import Any, NamedTuple

from bench.small import VERBS, Expert, Small, draw, shortest
from verl_entropy.data.expert_turns import Noise
from verl_entropy.data.experts import ExpertFailed

SIZE, WALLS = 4, 2
"""Side, and walls inside the room; there are walls around it, too, which the text leaves out."""
SHORTEST, LONGEST = 2, 5
"""Moves of a shortest solution."""
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
Cell = tuple[int, int]


class Room(NamedTuple):
    """Where everything is. The walls and the target stay."""

    walls: frozenset[Cell]
    target: Cell
    player: Cell
    box: Cell

    def text(self) -> str:
        """Letters: p player, b box, t target, w wall, e empty, o player on the target."""
        things = {self.target: "t", self.player: "p", self.box: "b"} | dict.fromkeys(self.walls, "w")
        if self.player == self.target:
            things[self.player] = "o"
        return " / ".join(" ".join(things.get((row, column), "e") for column in range(SIZE)) for row in range(SIZE))

    def after(self, move: str) -> Room:
        """The player goes, and pushes the box if it is there; the same room if a wall is in the way."""
        down, right = MOVES[move]
        player, box = (self.player[0] + down, self.player[1] + right), self.box
        if player == box:
            box = (box[0] + down, box[1] + right)
        return Room(self.walls, self.target, player, box) if self._free(player) and self._free(box) else self

    def _free(self, cell: Cell) -> bool:
        return 0 <= cell[0] < SIZE and 0 <= cell[1] < SIZE and cell not in self.walls

    def solution(self) -> list[str] | None:
        """A shortest one; None if there is none."""
        return shortest(self, MOVES, Room.after, lambda room: room.box == room.target)


@functools.lru_cache(maxsize=1024)  # the rollouts of a group share it
def draw_room(seed: int, split: str) -> Room:
    """The room of a seed, from the rooms of its split."""
    return draw(seed, split, _room, Room.text)


def _room(number: int) -> Room:
    rng = random.Random(number)
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE)]
    while True:
        target, player, box, *walls = rng.sample(cells, 3 + WALLS)
        room = Room(frozenset(walls), target, player, box)
        if SHORTEST <= len(room.solution() or ()) <= LONGEST:
            return room


class Sokoban:
    """Reward 1 and ``won`` when the box is on the target."""

    POOL_SIZE = 128

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The room of ``seed`` in ``options["split"]``."""
        self._room = draw_room(seed, (options or {}).get("split", "train"))
        self.words = random.Random(seed)
        return self._room.text(), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One move; an unknown one stays where it is."""
        if action in MOVES:
            self._room = self._room.after(action)
        won = self._room.box == self._room.target
        return self._room.text(), float(won), won, False, self._info(won)

    def close(self) -> None:
        """Nothing is held."""

    def expert(self, info: Any) -> Expert:
        """Plays a shortest solution from where it is."""
        return Expert(self)

    def _info(self, won: bool) -> dict[str, Any]:
        return {"admissible_actions": tuple(MOVES), "won": won, "task": "push b to t", "task_type": "sokoban"}

    def way(self) -> str:
        """The first move of a shortest solution."""
        if not (solution := self._room.solution()):
            raise ExpertFailed("the box cannot be brought to the target any more")
        return solution[0]


WORLD = Small(
    name="sokoban",
    environment="bench.sokoban:Sokoban",
    vocabulary=("p", "b", "t", "w", "e", "o", "/", "push", "to", *MOVES, *VERBS),
    max_turns=10,
    max_prompt=48,
    max_response=16,
    held_out=320,
    noise=Noise(0.3, 0.1),
)
prepare, words = WORLD.prepare, WORLD.words
