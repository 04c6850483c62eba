# SPDX-License-Identifier: Apache-2.0
"""Runs as a report sees them: read, their phases found, seeds of one setting put together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy.config.settings import ConfigError, lookup
from verl_entropy.diagnostics.phases import PhaseDetector, Phases, Span, detect, spans
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS
from verl_entropy.diagnostics.settings import read_live
from verl_entropy.runs.judge.results import Judgement, read_results, trajectory_text
from verl_entropy.runs.runfile import SESSION, STEPS, RunFileError, RunReader

P = "verl_entropy/"
ENTROPY = (P + "entropy", "actor/entropy", "actor/entropy_loss")
"""Names of the mean token entropy, best first: ours, verl's from the old-log-prob pass, verl's from the update."""
_OF_ONE_SEED = re.compile(r"(?:^|\.)(?:(?:\w+_)?seed|experiment_name|project_name|\w+_dir|run_file\.folder)$")
"""Configuration keys in which two seeds of one setting may differ: seeds, names and where a run writes."""
JUDGED = P + "judge/degeneracy"
"""Mean score by step of ``verl-entropy judge``; not logged but read from its results."""
MAX_TURN_STEPS = 100
"""Steps on each side of an eruption whose turns are read for the figure: ten of them have the costly interference at the
default, and a hundred full ones take some 20 MB."""
_SEED_NAME = re.compile(r"(?:[-_.](?:seed|run|s)[-_]?\d+|(?<!\de)[-_]\d{1,5})$", re.IGNORECASE)
"""The seed at the end of a name: a word with a number, or a whole number of its own; not the exponent of 1e-5."""
_TIME_NAME = re.compile(r"(?:\d{4,8}[-_T]\d{4,6}|\d{2}[-_T]\d{2}[-_T]\d{2})$")
"""A date or a time at the end of a name."""


@dataclass
class Run:
    """A run that was read."""

    reader: RunReader
    settings: Phases = field(default_factory=Phases)
    label: str = ""
    earlier: Run | None = None
    """The same run when it had fewer steps: its detector goes on, if nothing before has changed."""
    _fed: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.label or self.reader.name

    def first_key(self, keys: Iterable[str]) -> str | None:
        """The first of ``keys`` that has values here; verl logs what workers report with "actor/" before our names."""
        names = (name for key in keys for name in ((key, f"actor/{key}") if key.startswith(P) else (key,)))
        return next((name for name in names if self.reader.has(name) or (name == JUDGED and self.judgements)), None)

    def series(self, keys: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of the first of ``keys`` that has values; empty without any. Non-finite values are left out."""
        key = self.first_key(keys)
        if key is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        steps, values = self._judged if key == JUDGED else self.reader.series(key)
        finite = np.isfinite(values)
        return steps[finite], values[finite]

    @cached_property
    def _detected(self) -> tuple[PhaseDetector, list[Span]]:
        steps, values = self.series(ENTROPY)
        signs = {}
        for name, key in (
            ("interference_negative", P + "interference/drift_negative"),
            ("valid_log_prob", P + "likelihood/valid_log_prob_mean"),
        ):
            at, known = self.series((key,))
            if len(at):
                found = dict(zip(at.tolist(), known.tolist(), strict=True))
                signs[name] = [found.get(step) for step in steps.tolist()]
        resumes = self.series((P + "resumed",))[0].tolist()
        fed = [steps.tolist(), values.tolist(), *signs.values()]
        earlier, self.earlier = self.earlier, None
        self._fed = {"names": [*signs], "rows": list(zip(*fed, strict=True)), "resumes": resumes}
        if earlier is not None and (rest := _appended(earlier._fed, self._fed)) is not None:
            detector = earlier.detector
            for step, value, *others in rest:
                if step in resumes:
                    detector.resumed()
                detector.update(step, value, **dict(zip(signs, others, strict=True)))
            if detector.phase != "warmup":
                return detector, spans(detector.events, fed[0])
        return detect(fed[0], fed[1], self.settings, resumes=resumes, **signs)

    @cached_property
    def turn_columns(self) -> dict[str, np.ndarray] | None:
        """Per-turn arrays of the last MAX_TURN_STEPS steps before the end of the first eruption, and of as many after."""
        steps, first = self.reader.steps, next((s for s in self.spans if s.phase == "eruption"), None)
        if first is None or not len(steps):
            return None
        parts = []
        for chosen in (steps[steps < first.first][-MAX_TURN_STEPS:], steps[steps > first.last][:MAX_TURN_STEPS]):
            part = self.reader.turns(int(chosen[0]), int(chosen[-1])) if len(chosen) else None
            if part:
                parts.append(part)
        shared = set.intersection(*(set(p) for p in parts)) if parts else set()
        return {name: np.concatenate([p[name] for p in parts]) for name in shared} or None

    @cached_property
    def samples(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Stored trajectories by step."""
        return list(self.reader.samples())

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Results of ``verl-entropy judge`` in the run's folder: those of the model and prompt that judged most trajectories,
        as far as the trajectories are still what was judged."""
        folder = self.reader.path if self.reader.path.is_dir() else self.reader.path.parent
        found, problems = read_results(folder) if (folder / STEPS).is_file() else ([], [])
        self.reader.problems += problems
        by_judge: dict[tuple[str, str], list[Judgement]] = {}
        for item in found:
            by_judge.setdefault((item.model, item.prompt), []).append(item)
        return max(by_judge.values(), key=len, default=[])

    @property
    def _judged(self) -> tuple[np.ndarray, np.ndarray]:
        at = np.array([item.step for item in self.judgements], dtype=np.int64)
        score = np.array([item.score for item in self.judgements], dtype=float)
        steps, place = np.unique(at, return_inverse=True)
        return steps, np.bincount(place, weights=score) / np.bincount(place)

    def judgement(self, step: int, sample: Mapping[str, Any]) -> Judgement | None:
        """The judgement of a stored trajectory, if there is one of this very text."""
        if not self.judgements:
            return None
        digest = trajectory_text(sample)[1]
        return next((item for item in self.judgements if item.step == step and item.digest == digest), None)

    @property
    def detector(self) -> PhaseDetector:
        return self._detected[0]

    @property
    def spans(self) -> list[Span]:
        return self._detected[1]


def _appended(before: dict[str, Any] | None, now: dict[str, Any]) -> list[tuple] | None:
    """The rows that a detector has not seen; None where what it has seen is no longer what there is."""
    if before is None or before["names"] != now["names"]:
        return None
    count = len(before["rows"])
    same = before["rows"] == now["rows"][:count] and before["resumes"] == now["resumes"][: len(before["resumes"])]
    return now["rows"][count:] if same else None


@dataclass
class Group:
    """Runs that differ in their seed only."""

    label: str
    runs: list[Run]

    def has(self, keys: Iterable[str]) -> bool:
        """Whether any run has one of ``keys``."""
        keys = tuple(keys)
        return any(run.first_key(keys) is not None for run in self.runs)

    def mean(self, keys: Iterable[str], limit: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Steps, mean over the runs, and their standard deviation (None for a single run); at most ``limit`` points."""
        keys = tuple(keys)
        parts = [part for part in (run.series(keys) for run in self.runs) if len(part[0])]
        if not parts:
            return np.zeros(0), np.zeros(0), None
        steps = np.unique(np.concatenate([s for s, _ in parts]))
        table = np.full((len(parts), len(steps)), np.nan)
        for row, (s, v) in zip(table, parts, strict=True):
            row[np.searchsorted(steps, s)] = v
        steps, table = thin(steps, table, limit)
        count = np.isfinite(table).sum(0)
        mean = np.where(np.isfinite(table), table, 0.0).sum(0) / np.maximum(count, 1)
        if len(parts) == 1:
            return steps, mean, None
        spread = np.where(np.isfinite(table), (table - mean) ** 2, 0.0).sum(0) / np.maximum(count, 1)
        return steps, mean, np.sqrt(spread)


def thin(steps: np.ndarray, table: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over bins of neighbouring steps, so that at most ``limit`` columns remain; [N], [rows, N]."""
    if len(steps) <= limit:
        return steps, table
    width = -(-len(steps) // limit)
    edges = np.arange(0, len(steps), width)
    finite = np.isfinite(table)
    count = np.add.reduceat(finite, edges, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.where(finite, table, 0.0), edges, axis=1)
    value = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.add.reduceat(steps.astype(float), edges) / np.diff([*edges, len(steps)]), value


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested configuration as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _of_one_seed(key: str) -> bool:
    return _OF_ONE_SEED.search(key) is not None


def differing(groups: list[Group]) -> dict[str, list[Any]]:
    """Configuration keys in which the groups differ, with the value of each; "(not set)" where one has none."""
    flats = [flatten(group.runs[0].reader.config) for group in groups]
    keys = sorted(set().union(*flats)) if flats else []
    table = {key: [flat.get(key, "(not set)") for flat in flats] for key in keys if not _of_one_seed(key)}
    return {key: row for key, row in table.items() if any(value != row[0] for value in row)}


def _setting_of(run: Run) -> str:
    """What runs must share to be seeds of one setting: the configuration without seeds, or the name without its number."""
    if run.reader.config:
        flat = flatten(run.reader.config)
        return json.dumps({k: v for k, v in sorted(flat.items()) if not _of_one_seed(k)}, default=str)
    return "name:" + _without_seed(run.name)


def _without_seed(name: str) -> str:
    """The name without the number of its seed."""
    return name if _TIME_NAME.search(name) else _SEED_NAME.sub("", name) or name


def _name_of(reader: RunReader) -> str:
    """The run's name; a launcher's metrics file has its folder's, for its own is only a time."""
    if not SESSION.fullmatch(reader.name):
        return reader.name
    path = reader.path.resolve()
    return (path if path.is_dir() else path.parent).name or reader.name


def read_run(path: str | Path, settings: Phases | None) -> Run:
    """A run, with its own detector's settings unless others are given: a report then shows the phases that the trainer saw."""
    reader = RunReader(path)
    if settings is None:
        try:
            settings = read_live({"detector": lookup(reader.config, f"{DIAGNOSTICS}.detector")}).detector
        except ConfigError as error:
            reader.problems.append(f"phases by the default settings, because {error}")
            settings = Phases()
    return Run(reader, settings)


def load(paths: Iterable[str | Path], settings: Phases | None = None) -> list[Run]:
    """Read every path; equal names get a number."""
    return named([read_run(path, settings) for path in paths])


def named(runs: list[Run]) -> list[Run]:
    """Runs with labels that differ: equal names get the seed of their configuration, or their folder's name, or else a number."""
    names = [_name_of(run.reader) for run in runs]
    for i, run in enumerate(runs):
        same = [k for k, name in enumerate(names) if name == names[i]]
        seeds = [seed_of(runs[k]) for k in same]
        if len(same) == 1:
            run.label = names[i]
        elif None not in seeds and len(set(seeds)) == len(seeds):
            run.label = f"{names[i]} (seed {seed_of(run)})"
        elif len(folders := {runs[k].reader.path.resolve().parent.name for k in same}) == len(same) and all(folders):
            run.label = f"{run.reader.path.resolve().parent.name}/{names[i]}"
        else:
            run.label = f"{names[i]} ({same.index(i) + 1})"
    return runs


SEED_KEYS = ("trainer.seed", "data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.actor.data_loader_seed")
"""Where a configuration says its seed, the likeliest first."""


def seed_of(run: Run) -> int | None:
    """The seed in a run's configuration, or at the end of its name; None where neither has one."""
    for key in SEED_KEYS:
        value = lookup(run.reader.config, key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    found = _SEED_NAME.search(_name_of(run.reader)) if not _TIME_NAME.search(_name_of(run.reader)) else None
    return int(re.sub(r"\D", "", found.group())) if found else None


def load_readable(paths: Iterable[str | Path], settings: Phases | None = None) -> tuple[list[Run], list[str]]:
    """``load`` what can be read, each place once, and what was wrong with the rest; an error if nothing can be read."""
    kept, problems, seen = [], [], set()
    for path in paths:
        if Path(path).resolve() in seen:
            problems.append(f"{path}: given twice, read once")
            continue
        seen.add(Path(path).resolve())
        try:
            kept.append(read_run(path, settings))
        except (RunFileError, OSError) as error:
            problems.append(str(error))
    if problems and not kept:
        raise RunFileError("\n".join(problems))
    return named(kept), problems


def without_steps(runs: Iterable[Run]) -> list[str]:
    """What is wrong with the runs of which no step could be read, a line each."""
    return [f"{r.reader.path}: no step could be read ({r.reader.problems[0]})" for r in runs if not len(r.reader)]


def group(runs: list[Run]) -> list[Group]:
    """Groups of runs that are seeds of one setting, in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_setting_of(run), []).append(run)
    return [Group(_label(members), members) for members in groups.values()]


def _label(members: list[Run]) -> str:
    """The name of a setting; of several runs the one without its seed, and the seeds."""
    if len(members) == 1:
        return members[0].name
    seeds = [seed_of(run) for run in members]
    told = ", ".join(map(str, seeds[:8])) + (", ..." if len(seeds) > 8 else "")
    name = _without_seed(_name_of(members[0].reader))
    return f"{name} (mean of {len(members)}" + (
        f"; seeds {told})" if None not in seeds and len(set(seeds)) == len(seeds) else ")"
    )
