# SPDX-License-Identifier: Apache-2.0
"""ScienceWorld, the real simulator (Wang et al. 2022): 30 tasks of elementary science, 7,207 variations; needs Java."""

from __future__ import annotations

import functools
import importlib.metadata
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_entropy.agent.environment import few_per_core
from verl_entropy.batch.foreign import read_bool
from verl_entropy.envs import cache
from verl_entropy.envs.simulators.jvm import Jvm, find_java
from verl_entropy.envs.tasks import Answer, TurnEnv, choose, enough, in_turn, need, some_of

SIMPLIFICATIONS = ("teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction")
EASY = "easy"
"""The package's own name for all of them but openContainers."""
REWARDS = ("sparse", "dense")
FOLDS = ("train", "dev", "test")
SPLITS = {"train": "train", "dev": "dev", "test": "test", "iid": "train", "ood": "test"}
"""iid and ood as EPO evaluates: variants seen in training, and unseen variants of the same tasks."""
SAME_ORDER = ("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""The simulator keeps objects in sets ordered by identity hash. With one hash for all, an episode lists them alike every time."""


class ScienceWorldEnv(TurnEnv):
    """A task in a variation, chosen by ``seed`` or named in ``options={"task": ..., "variation": ...}``.

    ``options["split"]`` is another split for this episode.

    ``simplifications``: "easy", "" or a list. ``reward``: sparse (``win_reward`` on the step that brings the score to
    100, else 0) or dense (the step's change of score, so that a solved episode sums to ``win_reward``; a failure
    brings the score to -100). A negative score is a failure and ends the episode. ``admissible``: list the valid
    actions in ``info``, several hundred of them, which makes a step about five times slower. The simulator's action templates
    and the objects in reach are always there as ``action_forms``.
    """

    SPLITS = tuple(SPLITS)
    POOL_SIZE = few_per_core()

    def __init__(
        self,
        *,
        split: str = "train",
        tasks: Sequence[str] | None = None,
        simplifications: str | Sequence[str] = EASY,
        reward: str = "sparse",
        win_reward: float = 10.0,
        admissible: bool = False,
        max_turns: int = 100,
        memory_mb: int = 512,
    ) -> None:
        choose("split", split, self.SPLITS)
        choose("reward", reward, REWARDS)
        if max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be at least 1; ScienceWorld's own limit is 100")
        if memory_mb < 256:
            raise ValueError(f"memory_mb={memory_mb!r} must be at least 256: the simulator does not start with less")
        self.split, self.reward, self.win_reward = split, reward, win_reward
        self.admissible, self.max_turns, self.memory_mb = admissible, max_turns, memory_mb
        self.tasks = _task_names(tasks)
        self._simplifications = _simplification_text(simplifications)
        self._folds = variations()
        self._seeds = random.Random()
        self._jvm, self._gold_jvm = _start(memory_mb), None
        self._server = _server(self._jvm)
        self._forms: list[str] = []
        self._task, self._variation = "", -1

    @classmethod
    def episodes(cls, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
        """Rows of a data set: every variation of the split, or ``count`` of them, the tasks in turn."""
        choose("split", split, cls.SPLITS)
        folds, rng = variations(), random.Random(f"scienceworld/{split}/{seed}")
        left = {task: list(folds[task][SPLITS[split]]) for task in _task_names(kwargs.get("tasks"))}
        for numbers in left.values():
            rng.shuffle(numbers)
        found = in_turn(left, enough(count, sum(map(len, left.values())), split), rng)
        return [_row(task, variation, number) for number, (task, variation) in enumerate(found)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the variation that ``options`` name, or the one that ``seed`` draws from the split."""
        if seed is None:
            seed = self._seeds.randrange(2**31)
        options = options or {}
        split = choose("options['split']", options.get("split", self.split), self.SPLITS)
        rng = random.Random(f"{split}/{seed}")
        task = options.get("task") or rng.choice(self.tasks)
        choose("options['task']", task, tuple(self._folds))
        variation = options.get("variation")
        if variation is None:
            variation = rng.choice(self._folds[task][SPLITS[split]])
        _check_variation(self._folds, task, variation, options.get("split"))
        self._task, self._variation = task, int(variation)
        _load(self._jvm, self._server, task, self._variation, self._simplifications_of(task))
        # The package's own reset looks around too: before the first step the score is still that of the last episode.
        observation = self._server.step("look around")
        self._goal = self._server.getTaskDescription().removeprefix("Task Description:").strip()
        self._score = self._read_score()
        self._forms = [form for form in self._jvm.strings(self._server.getPossibleActions()) if form != "reset task"]
        self._start()
        return observation, self._info()

    def _act(self, action: str) -> Answer:
        observation = self._server.step(" ".join(action.split()))
        before, self._score = self._score, self._read_score()
        won, failed = self._score >= 100, self._score < 0
        terminated = won or failed or read_bool(self._server.getCompleted(), "scienceworld: getCompleted()")
        reward = self.win_reward * float(won)
        if self.reward == "dense":
            reward = self.win_reward * (self._score - before) / 100
        return observation, reward, terminated

    def expert_actions(self) -> list[str] | None:
        """The simulator's own gold path, from a second Java process (it would slow this one down) or the cache.

        None if it is longer than ``max_turns``.
        """
        path = _gold_file(self._task, self._variation, self._simplifications_of(self._task))
        actions = cache.read_json(path)
        if actions is None:
            if self._gold_jvm is None:
                self._gold_jvm = _start(self.memory_mb)
            server = _server(self._gold_jvm)
            _load(self._gold_jvm, server, self._task, self._variation, self._simplifications_of(self._task), True)
            actions = self._gold_jvm.strings(server.getGoldActionSequence())
            cache.write_json(path, actions)
        return actions if len(actions) <= self.max_turns else None

    def kill(self) -> None:
        """End a call that hangs: the simulator dies, and this object with it."""
        for jvm in (self._jvm, self._gold_jvm):
            if jvm is not None:
                jvm.kill()

    def close(self) -> None:
        """End the Java processes."""
        self._playing = False
        for jvm in (self._jvm, self._gold_jvm):
            if jvm is not None:
                jvm.close()

    def _read_score(self) -> int:
        return round(100 * self._server.getScore())

    def _simplifications_of(self, task: str) -> str:
        """Electrical tasks cannot do without electrical actions."""
        electrical = "power-component" in task or "conductivity" in task
        names = self._simplifications.split(",")
        return ",".join(name for name in names if not (electrical and name == "noElectricalAction"))

    def _info(self) -> dict[str, Any]:
        info = {
            "task": self._goal,
            "task_type": self._task,
            "variation": self._variation,
            "won": self._score >= 100,
            "score": self._score,
        }
        if self._playing:
            objects = ", ".join(self._jvm.strings(self._server.getPossibleObjects()))
            info["action_forms"] = [*self._forms, f"where OBJ is one of: {objects}"]
        if self.admissible and self._playing:
            info["admissible_actions"] = self._jvm.strings(self._server.getValidActionObjectCombinations())
        return info


@functools.cache
def variations() -> dict[str, dict[str, list[int]]]:
    """The simulator's own train / dev / test variations of every task; asked once and kept on disk."""
    path = cache.folder() / "scienceworld" / f"variations-{_version()}.json"
    found = cache.read_json(path)
    if found is None:
        jvm = _start(512)
        try:
            server, found = _server(jvm), {}
            for task in sorted(jvm.strings(server.getTaskNames())):
                server.load(task, 0, "", False)
                lists = (server.getVariationsTrain(), server.getVariationsDev(), server.getVariationsTest())
                found[task] = {fold: list(numbers) for fold, numbers in zip(FOLDS, lists, strict=True)}
        finally:
            jvm.close()
        cache.write_json(path, found)
    return found


def _start(memory_mb: int) -> Jvm:
    find_java()
    return Jvm(_package().JAR_PATH, memory_mb=memory_mb, options=SAME_ORDER)


def _load(jvm: Jvm, server: Any, task: str, variation: int, simplifications: str, gold: bool = False) -> None:
    jvm.jvm.util.UniqueIdentifier.reset()  # objects are numbered across episodes otherwise
    server.load(task, variation, simplifications, gold)


def _server(jvm: Jvm) -> Any:
    return jvm.jvm.scienceworld.runtime.pythonapi.PythonInterface()


def _package() -> Any:
    return need("scienceworld.constants", "scienceworld", "pip install scienceworld (and Java 17)")


def _version() -> str:
    _package()
    return importlib.metadata.version("scienceworld")


def _task_names(tasks: Sequence[str] | None) -> tuple[str, ...]:
    return some_of("tasks", tasks, sorted(_package().ID2TASK.values()))


def _simplification_text(given: str | Sequence[str]) -> str:
    names = [name for name in (given.split(",") if isinstance(given, str) else given) if name]
    for name in names:
        choose("simplifications", name, (EASY, *SIMPLIFICATIONS))
    return ",".join(names)


def _check_variation(folds: dict[str, dict[str, list[int]]], task: str, variation: Any, split: str | None) -> None:
    count = sum(map(len, folds[task].values()))
    if not 0 <= int(variation) < count:
        raise ValueError(f"options['variation']={variation!r}: {task} has the variations 0 to {count - 1}")
    if split is not None and int(variation) not in folds[task][SPLITS[split]]:
        raise ValueError(f"options['variation']={variation!r} of {task} is not of split {split!r}; leave one out")


def _row(task: str, variation: int, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "options": {"task": task, "variation": variation},
        "task_type": task,
        "prompt": f"ScienceWorld: {task}, variation {variation}",
    }


def _gold_file(task: str, variation: int, simplifications: str) -> Path:
    name = simplifications.replace(",", "+") or "none"
    return cache.folder() / "scienceworld" / f"gold-{_version()}" / name / task / f"{variation}.json"
