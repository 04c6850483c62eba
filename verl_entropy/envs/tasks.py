# SPDX-License-Identifier: Apache-2.0
"""What the environments with a list of tasks share: splits, task choice by seed or options, the turn limit, task files."""

from __future__ import annotations

import importlib
import json
import logging
import random
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
Answer = tuple[str, float, bool]
"""(observation, reward, terminated) of one action."""


def choose(key: str, value: Any, allowed: Sequence[str]) -> Any:
    """``value`` if it is one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{key}={value!r} is not known; choose from {', '.join(allowed)}")
    return value


def at_least(key: str, value: Any, minimum: float, whole: bool = True) -> Any:
    """``value`` if it is a number (``whole``: an int) of at least ``minimum``."""
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or value < minimum:
        raise ValueError(f"{key}={value!r} must be {'a whole number' if whole else 'a number'} of at least {minimum}")
    return value


def some_of(key: str, given: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """``given``, a list of names out of ``known``; None: all of them."""
    if given is None:
        return tuple(known)
    if isinstance(given, str) or not given:
        raise ValueError(f"{key}={given!r} must be a non-empty list of {', '.join(known)}; leave it out for all")
    for name in given:
        choose(key, name, known)
    return tuple(given)


def enough(count: Any, total: int, split: str) -> int:
    """``count`` (None: ``total``) if the split has as many tasks."""
    if count is None:
        return total
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= total:
        raise ValueError(f"count={count!r}: split {split!r} has {total} tasks; choose 1 to {total}, or leave it out")
    return count


def in_turn(left: dict[str, list[T]], wanted: int, rng: random.Random | None = None) -> list[tuple[str, T]]:
    """``wanted`` of the items of some lists, with the name of each: one from each list's end in turn, by ``rng`` in a drawn order."""
    found: list[tuple[str, T]] = []
    while len(found) < wanted:
        names = [name for name, items in left.items() if items]
        if rng is not None:
            rng.shuffle(names)
        found += [(name, left[name].pop()) for name in names]
    return found[:wanted]


def need(module: str, environment: str, install: str) -> types.ModuleType:
    """Import an optional package, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"environment {environment!r} needs {module!r}, which does not import ({error}): {install}") from error


class TurnEnv:
    """The turns of an episode: counted, ended by the world or after ``max_turns``, refused once it is over.

    A subclass calls ``_start`` in ``reset`` and gives ``_act`` (play an action) and ``_info``.
    """

    max_turns: int
    _turns, _playing = 0, False

    def _start(self) -> None:
        self._turns, self._playing = 0, True

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action; returns (observation, reward, terminated, truncated, info)."""
        if not self._playing:
            raise RuntimeError("the episode is over or was never started: call reset() before step()")
        self._turns += 1
        observation, reward, terminated = self._act(action)
        truncated = not terminated and self._turns >= self.max_turns
        self._playing = not (terminated or truncated)
        return observation, reward, terminated, truncated, self._info()

    def _act(self, action: str) -> Answer:
        raise NotImplementedError

    def _info(self) -> dict[str, Any]:
        raise NotImplementedError


class TaskEnv(TurnEnv):
    """Gymnasium's interface over a numbered list of tasks per split.

    A subclass gives ``_count`` (tasks of a split), ``_begin`` (start one, first observation), ``_act`` (play an action)
    and ``_details`` (its part of ``info``). ``reset(options={"split": ..., "task": number})`` plays one task; without
    ``task`` the seed draws one. ``truncated`` after ``max_turns`` actions.
    """

    SPLITS: tuple[str, ...] = ("train", "dev", "test")

    def __init__(self, split: str, max_turns: int) -> None:
        self.split = choose("split", split, self.SPLITS)
        self.max_turns = at_least("max_turns", max_turns, 1)
        self._seeds = random.Random()

    @classmethod
    def episodes(cls, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
        """Rows of a data set: ``count`` different tasks of a split in the order of ``seed``; None: all of them."""
        env = cls(split=split, **kwargs)
        try:
            total = env._count(split)
            wanted = enough(count, total, split)
            order = list(range(total))
            random.Random(f"episodes/{split}/{seed}").shuffle(order)
            return [env._row(split, number) for number in order[:wanted]]
        finally:
            env.close()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task of ``options["task"]``, or the one that ``seed`` draws (None: the next of this object's own)."""
        options = options or {}
        for key in options:
            choose("options key", key, ("split", "task"))
        split = choose("options['split']", options.get("split", self.split), self.SPLITS)
        if seed is None:
            seed = self._seeds.randrange(2**31)
        else:
            self._seeds.seed(int(seed))
        total = self._count(split)
        number = options.get("task")
        if number is None:
            number = random.Random(f"task/{split}/{int(seed)}").randrange(total)
        elif not 0 <= int(number) < total:
            raise ValueError(f"options['task']={number!r}: split {split!r} has {total} tasks; choose 0 to {total - 1}")
        self._start()
        return self._begin(split, int(number)), self._info()

    def close(self) -> None:
        """End the episode; the environment can be reset again."""
        self._playing = False

    def expert_actions(self) -> list[str] | None:
        """Actions that reach the goal from the start of this episode; None if none are known."""
        return None

    # -- given by the adapter

    def _count(self, split: str) -> int:
        raise NotImplementedError

    def _begin(self, split: str, number: int) -> str:
        raise NotImplementedError

    def _details(self) -> dict[str, Any]:
        raise NotImplementedError

    def _row(self, split: str, number: int) -> dict[str, Any]:
        self._begin(split, number)
        details = self._details()
        options = {"split": split, "task": number}
        return {"seed": number, "options": options, "task_type": details["task_type"], "prompt": details["task"]}

    # -- private

    def _info(self) -> dict[str, Any]:
        return {**self._details(), "turns": self._turns}


# ----------------------------------------------------------------------------- task files


def file_of_split(key: str, value: str | Mapping[str, str], split: str) -> Path:
    """The file of a split: ``value`` is one path for every split, or a mapping from split to path."""
    if isinstance(value, Mapping):
        if split not in value:
            raise ValueError(f"{key} has no file for split {split!r}, only for {', '.join(value)}; add {key}.{split}")
        value = value[split]
    path = Path(str(value)).expanduser()
    if not path.exists():
        raise ValueError(f"{key}={str(value)!r}: no such file; give the path of an existing one")
    return path


def read_rows(key: str, path: Path, parse: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
    """``parse`` of every row of a .jsonl or .parquet file.

    A bad row is left out: one warning names the first by its line (parquet: row) number, from 1, and says how many there are.
    ValueError, naming it in the same way, if no row is left.
    """
    if path.suffix == ".parquet":
        rows, unit = _parquet_rows(key, path), "row"
    elif path.suffix in (".jsonl", ".json"):
        rows, unit = _lines(key, path), "line"
    else:
        raise ValueError(f"{key}={str(path)!r}: must end in .jsonl or .parquet")
    found, bad = [], []
    for number, row in rows:
        try:
            if isinstance(row, str):
                row = json.loads(row)
            if not isinstance(row, Mapping):
                raise ValueError(f"expected an object, not {type(row).__name__}")
            found.append(parse(row))
        except ValueError as error:  # json.JSONDecodeError is one
            bad.append(f"{key}={str(path)!r}, {unit} {number}: {error}")
    if bad and not found:
        raise ValueError(bad[0])
    if bad:
        logger.warning("%d of %d rows are left out; the first: %s", len(bad), len(rows), bad[0])
    if not found:
        raise ValueError(f"{key}={str(path)!r} holds no task")
    return found


def _lines(key: str, path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}={str(path)!r} cannot be read: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parquet_rows(key: str, path: Path) -> list[tuple[int, Any]]:
    parquet = need("pyarrow.parquet", key, "pip install pyarrow")
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise ValueError(f"{key}={str(path)!r} cannot be read as parquet: {error}") from error
    return list(enumerate(rows, 1))


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """The first of ``names`` that the row has, as non-empty text."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value).strip()
    raise ValueError(f"needs a non-empty {' or '.join(map(repr, names))}; it has {', '.join(map(str, row)) or 'nothing'}")
