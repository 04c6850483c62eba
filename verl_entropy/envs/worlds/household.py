# SPDX-License-Identifier: Apache-2.0
"""A household in text, in ALFWorld's manner: find things, clean, heat or cool them, and bring them where they belong."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

from verl_entropy.envs.tasks import Answer, TurnEnv, choose, some_of
from verl_entropy.envs.worlds.household_expert import HouseholdExpert
from verl_entropy.envs.worlds.household_world import (
    APPLIANCES,
    DIFFICULTIES,
    GOALS,
    LAMPS,
    LOOK,
    OBJECTS,
    OPENABLE,
    PICK_TWO,
    PLACES,
    ROOMS,
    SPLITS,
    TASK_TYPES,
    TASK_VERB,
    Episode,
    draw_episode,
    kind,
    possible_tasks,
)

__all__ = ["DIFFICULTIES", "SPLITS", "TASK_TYPES", "HouseholdEnv", "HouseholdExpert", "household_vocabulary"]

WIN_REWARD = 10.0  # what ALFWorld's users train on: 10 for a solved task, 0 for everything else
DEFAULT_EPISODES = {"train": 1024, "seen": 128, "unseen": 128}
"""Episodes of a data set that does not say how many; there are far more."""
SEEDS_PER_SET = 1_000_000
FAILED = "That does not work."
_PHRASES = f"{FAILED} You are in at see. On it: In nothing. It is closed. Doors: hold look go to open close take from move with use on places"


class HouseholdEnv(TurnEnv):
    """Six families of household tasks under partial observation; Gymnasium's interface without Gymnasium.

    What is inside a receptacle is seen only from there, and inside a closed one not at all. One thing can be carried.
    Reward is 10 on the turn that solves the task (`terminated`) and 0 otherwise; `truncated` after `max_turns` turns.
    An action that is not in `info["admissible_actions"]` costs a turn and changes nothing.

    `list_places` adds the names of all receptacles to the task, for models too small to remember a first look around.

    `reset(seed=...)` chooses the task: the same seed gives the same episode, so the members of a group are equal.
    Splits: `train`; `seen` (train's layouts, episodes never in train); `unseen` (layouts never in train).
    """

    SPLITS = SPLITS
    SNAPSHOT = "clone"

    def __init__(
        self,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_turns: int | None = None,
        difficulty: str = "full",
        list_places: bool = False,
    ) -> None:
        choose("split", split, SPLITS)
        choose("difficulty", difficulty, tuple(DIFFICULTIES))
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be at least 1; leave it out for the difficulty's default")
        self.split, self.difficulty, self.list_places = split, difficulty, list_places
        self.task_types = some_of("task_types", task_types, possible_tasks(difficulty))
        self.max_turns = max_turns or DIFFICULTIES[difficulty].max_turns
        self._seeds = random.Random()
        self._episode: Episode | None = None

    @classmethod
    def episodes(cls, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
        """Rows of a data set: `count` episodes of a split (None: 1,024 of train, 128 of another); `seed` chooses others."""
        env = cls(split=split, **kwargs)
        count = DEFAULT_EPISODES[split] if count is None else count
        if not 1 <= count <= SEEDS_PER_SET or seed < 0:
            raise ValueError(f"count={count!r}, seed={seed!r}: choose a count from 1 to {SEEDS_PER_SET} and a seed of 0 or more")
        rows = []
        for number in range(seed * SEEDS_PER_SET, seed * SEEDS_PER_SET + count):
            options = {"split": split}
            info = env.reset(number, options)[1]
            rows.append({"seed": number, "options": options, "task_type": info["task_type"], "prompt": info["task"]})
        return rows

    def expert(self, info: Mapping[str, Any]) -> HouseholdExpert:
        """A scripted player for the episode of ``info``."""
        return HouseholdExpert(info["task"])

    def expert_actions(self) -> list[str] | None:
        """What `HouseholdExpert` does from here to the goal, on a copy; None if the turns left are too few."""
        if not self._playing:
            return None
        twin, expert, actions = copy.deepcopy(self), HouseholdExpert(self._task()), []
        observation, done = twin._describe(), False
        while not done:
            actions.append(expert.act(observation, list(twin._actions)))
            observation, _, terminated, truncated, _ = twin.step(actions[-1])
            done = terminated or truncated
        return actions if terminated else None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of `seed` (None: the next of this environment's own sequence).

        `options={"task_type": ..., "split": ...}` restricts the draw to one family, or takes another split, for this episode.
        """
        if seed is None:
            seed = self._seeds.randrange(2**31)
        else:
            self._seeds.seed(seed)
        task_types = self.task_types
        if options and "task_type" in options:
            choose("options['task_type']", options["task_type"], possible_tasks(self.difficulty))
            task_types = (options["task_type"],)
        split = (options or {}).get("split", self.split)
        choose("options['split']", split, SPLITS)
        self._episode = episode = draw_episode(int(seed), self.difficulty, split, task_types)
        self._room_of = episode.layout.room_of
        self._contents: dict[str, list[str]] = {receptacle: [] for receptacle in self._room_of}
        for item, receptacle in (*episode.layout.lamps.items(), *episode.places.items()):
            self._contents[receptacle].append(item)
        self._states: dict[str, set[str]] = {item: set() for item in episode.places}
        self._room, self._here, self._held = episode.room, "", ""
        self._open: set[str] = set()
        self._lit: set[str] = set()
        self._won = False
        self._start()
        self._actions = self._admissible()
        return self._describe(), self._info()

    def _act(self, action: str) -> Answer:
        parsed = self._actions.get(" ".join(action.lower().split()))
        if parsed is None:
            observation = f"{FAILED} {self._describe()}"
        else:
            self._apply(*parsed)
            observation = self._describe(overview=parsed[0] == "look")
            self._actions = self._admissible()
        self._won = self._solved()
        return observation, WIN_REWARD if self._won else 0.0, self._won

    def close(self) -> None:
        """End the episode; the environment can be reset again."""
        self._playing = False

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_actions": list(self._actions),
            "won": self._won,
            "task": self._task(),
            "task_type": self._episode.task_type,
            "turns": self._turns,
        }

    def _task(self) -> str:
        places = f"{PLACES}{', '.join(sorted(self._room_of))}" if self.list_places else ""
        return f"{self._episode.task}{places}"

    def _closed(self, receptacle: str) -> bool:
        return kind(receptacle) in OPENABLE and receptacle not in self._open

    def _admissible(self) -> dict[str, tuple[str, str]]:
        """Every action that works now -> (verb, thing it is done to)."""
        here, held, rooms = self._here, self._held, self._episode.layout.rooms
        found = {f"go to {room}": ("room", room) for room in rooms if room != self._room}
        found.update({f"go to {place}": ("go", place) for place in rooms[self._room] if place != here})
        if here:
            if kind(here) in OPENABLE:
                verb = "open" if self._closed(here) else "close"
                found[f"{verb} {here}"] = (verb, here)
            if not self._closed(here):
                for item in self._contents[here]:
                    if kind(item) in LAMPS.values():
                        found[f"use {item}"] = ("use", item)
                    elif not held:
                        found[f"take {item} from {here}"] = ("take", item)
                if held:
                    found[f"move {held} to {here}"] = ("move", here)
            for verb, (appliance, _) in APPLIANCES.items():
                if held and kind(here) == appliance and verb in OBJECTS[kind(held)][1]:
                    found[f"{verb} {held} with {here}"] = (verb, held)
        found["look"] = ("look", "")
        return found

    def _apply(self, verb: str, thing: str) -> None:
        if verb == "room":
            self._room, self._here = thing, ""
        elif verb == "go":
            self._here = thing
        elif verb == "open":
            self._open.add(thing)
        elif verb == "close":
            self._open.discard(thing)
        elif verb == "take":
            self._contents[self._here].remove(thing)
            self._held = thing
        elif verb == "move":
            self._contents[thing].append(self._held)
            self._held = ""
        elif verb == "use":
            self._lit.add(thing)
        elif verb in APPLIANCES:
            self._states[thing] -= {"hot", "cool"} if verb != "clean" else set()
            self._states[thing].add(APPLIANCES[verb][1])

    def _solved(self) -> bool:
        episode = self._episode
        if episode.task_type == LOOK:
            lit = [item for item in self._contents.get(self._here, ()) if item in self._lit]
            return bool(self._held) and kind(self._held) == episode.object and episode.target in map(kind, lit)
        verb, wanted = TASK_VERB.get(episode.task_type), 2 if episode.task_type == PICK_TWO else 1
        return any(
            sum(kind(item) == episode.object and (verb is None or APPLIANCES[verb][1] in self._states[item]) for item in items)
            >= wanted
            for receptacle, items in self._contents.items()
            if kind(receptacle) == episode.target
        )

    def _name(self, item: str) -> str:
        return " ".join((*sorted(self._states.get(item, ())), item))

    def _describe(self, overview: bool = False) -> str:
        """What is seen now; about 5 to 30 words."""
        here, rooms = self._here, self._episode.layout.rooms
        text = f"You are at {here} in {self._room}." if here else f"You are in {self._room}."
        if overview or not here:
            others = [room for room in rooms if room != self._room]
            text += f" You see {', '.join(rooms[self._room])}."
            text += f" Doors: {', '.join(others)}." if others else ""
        elif self._closed(here):
            text += " It is closed."
        else:
            items = ", ".join(map(self._name, self._contents[here])) or "nothing"
            text += f" {'In' if kind(here) in OPENABLE else 'On'} it: {items}."
            text += "".join(f" {item} is on." for item in self._contents[here] if item in self._lit)
        return f"{text} You hold {self._name(self._held)}." if self._held else text


def household_vocabulary() -> frozenset[str]:
    """Every word (lower case, without punctuation) a task, an observation or an action can hold."""
    words = set(_PHRASES.replace(".", "").replace(":", "").lower().split())
    for goal in GOALS.values():
        words |= set(goal.replace("{object}", "").replace("{target}", "").split())
    for room, groups in ROOMS.items():
        words |= {room, *(name for group in groups for name in group)}
    words |= {*OBJECTS, *LAMPS.values(), *APPLIANCES, *(state for _, state in APPLIANCES.values())}
    return frozenset(words | {str(number) for number in range(10)})
