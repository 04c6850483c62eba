# SPDX-License-Identifier: Apache-2.0
"""A scripted player of the household that knows only what an agent knows: task, observations, admissible actions."""

from __future__ import annotations

import re

from verl_entropy.envs.worlds.household_world import APPLIANCES, LAMP_PLACES, OBJECTS, PLACES, ROOMS, kind

_TASK = re.compile(r"(put|look at) (?:(clean|hot|cool|two) )?(\w+) (?:in|under) (\w+)")
_ROOM = re.compile(r"\bin ([a-z]+)\.")
_PLACE = re.compile(r"You are at (\w+ \d+)")
_CONTENTS = re.compile(r"(?:On|In) it: ([^.]*)\.")
_HELD = re.compile(r"You hold ([^.]*)\.")


class HouseholdExpert:
    """Searches the likely places in order, then carries, treats and puts down; solves every task.

    It uses only public history: the task, each observation and each list of admissible actions, one `act` per turn in
    order. It never looks into the environment. Since it reads every observation afresh, another action may be played
    in place of the one it chose, and it goes on from there. `thought` names the sub-goal of the last action.
    """

    def __init__(self, task: str) -> None:
        match = _TASK.fullmatch(task.split(PLACES)[0])
        if match is None:
            raise ValueError(f"task={task!r} is not a household task; pass info['task'] of HouseholdEnv")
        verb, self._state, self._object, self._target = match.groups()
        self._look = verb == "look at"
        self._treatment = next((v for v, (_, state) in APPLIANCES.items() if state == self._state), None)
        self._room_of: dict[str, str] = {}  # receptacles known so far
        self._where: dict[str, str] = {}  # items seen so far
        self._searched: set[str] = set()
        self._room = self._here = self._held = self.thought = ""
        self._states: set[str] = set()
        self._actions: list[str] = []

    def act(self, observation: str, admissible: list[str]) -> str:
        """The next action; call it once per turn with what the environment returned."""
        self._read(observation, admissible)
        if self._held and kind(self._held) != self._object:
            self.thought = f"drop {kind(self._held)}"
            return self._put_down(self._here or min(r for r, room in self._room_of.items() if room == self._room))
        if not self._held:
            return self._fetch()
        if self._look:
            return self._use_lamp()
        if self._treatment and self._state not in self._states:
            self.thought = f"{self._treatment} {self._object}"
            place = self._nearest(APPLIANCES[self._treatment][0])
            return self._at(place, f"{self._treatment} {self._held} with {place}")
        self.thought = f"move {self._object}"
        return self._put_down(self._goal())

    def _read(self, observation: str, admissible: list[str]) -> None:
        """Update what is known; every observation says where one is, what is there and what one holds."""
        self._actions = admissible
        room, place, contents, held = (p.search(observation) for p in (_ROOM, _PLACE, _CONTENTS, _HELD))
        self._room = room[1] if room else self._room
        self._here = place[1] if place else ""
        words = held[1].split() if held else []
        self._held, self._states = " ".join(words[-2:]), set(words[:-2])
        self._where.pop(self._held, None)
        reachable = [action[6:] for action in admissible if action.startswith("go to ") and action[-1].isdigit()]
        self._room_of.update(dict.fromkeys([*reachable, *filter(None, [self._here])], self._room))
        if contents:
            self._searched.add(self._here)
            items = contents[1].split(", ") if contents[1] != "nothing" else []
            self._where.update({" ".join(item.split()[-2:]): self._here for item in items})

    def _fetch(self) -> str:
        done = self._goal() if self._state == "two" else None
        known = [item for item, place in self._where.items() if kind(item) == self._object and place != done]
        if not known:
            self.thought = f"find {self._object}"
            return self._search([p for p in OBJECTS[self._object][0] if p != self._target])
        self.thought = f"take {self._object}"
        item = min(known, key=lambda it: (self._where[it] != self._here, self._room_of[self._where[it]] != self._room, it))
        return self._at(self._where[item], f"take {item} from {self._where[item]}")

    def _use_lamp(self) -> str:
        self.thought = f"find {self._target}"
        lamp = next((item for item in sorted(self._where) if kind(item) == self._target), None)
        if lamp is None:
            return self._search(LAMP_PLACES)
        self.thought = f"use {self._target}"
        return self._at(self._where[lamp], f"use {lamp}")

    def _put_down(self, place: str | None) -> str:
        return self._at(place, f"move {self._held} to {place}")

    def _goal(self) -> str | None:
        """The receptacle to fill: the one that holds most already, then the nearest."""

        def rank(receptacle: str) -> tuple[int, bool, str]:
            filled = sum(place == receptacle and kind(item) == self._object for item, place in self._where.items())
            return -filled, self._room_of[receptacle] != self._room, receptacle

        return min((r for r in self._room_of if kind(r) == self._target), key=rank, default=None)

    def _nearest(self, name: str) -> str | None:
        places = [r for r in self._room_of if kind(r) == name]
        return min(places, key=lambda r: (self._room_of[r] != self._room, r), default=None)

    def _at(self, place: str | None, action: str) -> str:
        """`action` at `place`: do it, or the next step of the way to it (None: in a room not entered yet)."""
        if place is None:
            return self._enter(action.split())
        if place == self._here:
            return action if action in self._actions else f"open {place}"
        return f"go to {place if self._room_of[place] == self._room else self._room_of[place]}"

    def _search(self, likely: list[str] | tuple[str, ...]) -> str:
        """Likely places of this room, then new rooms that may have such places, then other rooms, then anywhere."""
        if self._here and f"open {self._here}" in self._actions and kind(self._here) in likely:
            return f"open {self._here}"
        left = [r for r in self._room_of if r not in self._searched]
        first = [r for r in left if kind(r) in likely]
        here = [r for r in first if self._room_of[r] == self._room]
        if not here and self._new_rooms():
            return self._enter(likely)
        place = min(here or first or left, key=lambda r: (self._room_of[r] != self._room, r))
        return self._at(place, "")

    def _new_rooms(self) -> list[str]:
        seen = {*self._room_of.values(), self._room}
        return [a[6:] for a in self._actions if a.startswith("go to ") and a[6:] in ROOMS and a[6:] not in seen]

    def _enter(self, likely: list[str] | tuple[str, ...]) -> str:
        def fit(room: str) -> int:
            return sum(name in likely for name in (*ROOMS[room][0], *ROOMS[room][1]))

        return f"go to {max(self._new_rooms(), key=fit)}"
