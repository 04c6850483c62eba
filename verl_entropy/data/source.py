# SPDX-License-Identifier: Apache-2.0
"""The episodes of an environment's split, and the rows of verl's RL data set made from them.

An environment class that names its splits offers ``SPLITS`` and ``episodes(split, count=, seed=, **kwargs)``. Any other
class with Gymnasium's interface works too: its episodes are consecutive seeds with ``options={"split": split}``.
"""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from verl_entropy import envs
from verl_entropy.batch.foreign import read_whole

SEEDS_PER_RUN = 100_000
"""``--seed`` moves the first episode by this much, so that two seeds share no episode."""

FIRST_HELD_OUT = 1_000_000
"""Seeds of every split but train start here, for classes whose splits differ in the seed only."""

SEEDS_PER_SPLIT = 1_000_000
"""Every split but train has as many: dev's come first, then test's, then those of other names in places drawn by name."""


@runtime_checkable
class EpisodeSource(Protocol):
    """A class that knows its splits."""

    SPLITS: tuple[str, ...]

    def episodes(self, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict]:
        """Rows with seed, options, task_type and prompt."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A class that makes something for its episodes once, which would else be made when each is first played."""

    def prepare(self, options: Sequence[dict[str, Any]]) -> None:
        """Make it for the episodes of these options, unless it is there."""
        ...


@dataclass(frozen=True)
class Task:
    """One episode of a split: what ``reset`` gets, and what is known of it beforehand."""

    seed: int
    options: dict[str, Any]
    task_type: str = ""
    prompt: str = ""


def tasks(name: str, split: str, *, count: int | None, seed: int = 0, kwargs: Mapping[str, Any] | None = None) -> list[Task]:
    """The first ``count`` episodes of ``split`` (None: all of them); the same for the same arguments."""
    if count is not None and count < 1:
        raise ValueError(f"--count={count}: must be at least 1.")
    settings = {key: value for key, value in (kwargs or {}).items() if key != "split"}
    cls = envs.resolve(name)
    _check_kwargs(name, cls, kwargs or {})
    if not isinstance(cls, EpisodeSource):
        return _seeds(name, split, count, seed, settings)
    if split not in cls.SPLITS:
        raise ValueError(f"--split={split!r}: {name} has {', '.join(cls.SPLITS)}. Choose one of them.")
    rows = cls.episodes(split, count=count, seed=seed, **settings)
    if not rows:
        raise ValueError(f"--split={split}: {name} has no episode there with {settings or 'its default settings'}.")
    seeds = [read_whole(row["seed"], f"{name}.episodes()[{i}]['seed']") for i, row in enumerate(rows)]
    return [
        Task(seed, dict(row.get("options") or {}), row.get("task_type") or "", row.get("prompt") or "")
        for seed, row in zip(seeds, rows, strict=True)
    ]


def some_tasks(
    name: str, split: str, count: int | str | None, most: int, seed: int = 0, kwargs: Mapping[str, Any] | None = None
) -> tuple[list[Task], int | None]:
    """(``count`` tasks of a split, how many it has): "all", a number, or None for at most ``most``; None: it has no end."""
    if isinstance(count, int):
        return tasks(name, split, count=count, seed=seed, kwargs=kwargs), count
    if count is None and not isinstance(envs.resolve(name), EpisodeSource):
        return tasks(name, split, count=most, seed=seed, kwargs=kwargs), None
    try:
        found = tasks(name, split, count=None, seed=seed, kwargs=kwargs)
    except ValueError:
        if count == "all":
            raise
        return tasks(name, split, count=most, seed=seed, kwargs=kwargs), None  # a split without end, else the same error again
    return (found if count == "all" else found[:most]), len(found)


def _check_kwargs(name: str, cls: Any, kwargs: Mapping[str, Any]) -> None:
    """ValueError for a setting that the environment does not take, and for a missing one."""
    signature = inspect.signature(cls)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(f"data.env.kwargs={dict(kwargs)}: environment {name}: {error}. Its settings: {known}.") from error


def prepare(name: str, found: Sequence[Task]) -> None:
    """Have the environment make what these episodes need."""
    cls = envs.resolve(name)
    if isinstance(cls, Prepared):
        cls.prepare([task.options for task in found])


def _seeds(name: str, split: str, count: int | None, seed: int, settings: Mapping[str, Any]) -> list[Task]:
    if count is None:
        raise ValueError(f"--count: {name} draws its episodes from seeds, without end. Say how many, for example --count 1000.")
    first = _first_seed(split, count, seed)
    environment = envs.make(name, **settings)
    try:  # a split or a setting that the class refuses shows at its first reset
        _, info = environment.reset(seed=first, options={"split": split})
    finally:
        environment.close()
    prompt = str(info.get("task") or "") if count == 1 else ""
    return [Task(first + i, {"split": split}, "", prompt) for i in range(count)]


def _first_seed(split: str, count: int, seed: int) -> int:
    """Where the seeds of a split begin; ValueError where they would reach those of another."""
    if split != "train":
        if count > SEEDS_PER_SPLIT:
            raise ValueError(f"--count={count}: split {split} has {SEEDS_PER_SPLIT} seeds. Choose at most as many.")
        places = {"dev": 0, "test": 1}
        return FIRST_HELD_OUT + SEEDS_PER_SPLIT * places.get(split, 2 + zlib.crc32(split.encode()) % 2000)  # below 2**31
    largest = (FIRST_HELD_OUT - count) // SEEDS_PER_RUN
    if count > FIRST_HELD_OUT:
        raise ValueError(f"--count={count}: split train has {FIRST_HELD_OUT} seeds, then the held-out ones begin. Choose fewer.")
    if seed > largest:
        raise ValueError(
            f"--seed={seed}: {count} episodes of train would reach the seeds of the held-out splits. Choose a seed of at most {largest}."
        )
    return seed * SEEDS_PER_RUN


def rl_row(index: int, task: Task, name: str, split: str, agent_name: str = "stepwise_env") -> dict[str, Any]:
    """A row of verl's RL data set. The agent loop takes the task from the environment, and the prompt only where that says none.

    The options are JSON text: verl joins the files of a run, and a column of mappings would need the same keys and types in all.
    """
    extra: dict[str, Any] = {"index": index, "seed": task.seed}
    extra |= {"options": json.dumps(task.options, ensure_ascii=False), "task_type": task.task_type}
    return {
        "data_source": f"{name}/{split}",
        "prompt": [{"role": "user", "content": task.prompt}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": extra,
        "agent_name": agent_name,
    }


def rl_rows(found: Sequence[Task], name: str, split: str, agent_name: str = "stepwise_env") -> list[dict[str, Any]]:
    """The rows of a split."""
    return [rl_row(i, task, name, split, agent_name) for i, task in enumerate(found)]
