# SPDX-License-Identifier: Apache-2.0
"""Results by world, regime, method and seed, and what all parts of the page read from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.plan import METHODS, TUNING_SEEDS, WORLDS

LEAST_RUNS = 5
"""Runs without which nothing is said of causes, and no method is named in the project's README."""
ROUNDING = 1e-6
"""Relative difference of two norms of weights that sums of another order may make."""
Run = dict[str, Any]
Cell = dict[int, Run]
"""Runs of a method in a world and regime, by seed."""


def stored(folder: Path) -> list[Run]:
    """The result files below a folder, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/*/*.json"))]


def load(results: Path, tuning: bool = False) -> dict[tuple[str, str], dict[str, Cell]]:
    """Cells by (world, regime) and method, in the plan's order; the tuning seeds' only if asked for."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for run in stored(results):
        if (run["seed"] >= TUNING_SEEDS) == tuning:
            found.setdefault((run["world"], run["regime"]), {}).setdefault(run["method"], {})[run["seed"]] = run
    order = [(w, r) for w in WORLDS for r in WORLDS[w].regimes if (w, r) in found]
    return {key: {m: dict(sorted(found[key][m].items())) for m in METHODS if m in found[key]} for key in order}


def score(runs: Iterable[Run], name: str) -> list[float]:
    """One number of each run's outcome."""
    return [run["outcome"][name] for run in runs]


def known(run: Run, name: str) -> list[float]:
    """The values of a curve, without the steps that have none."""
    return [v for v in run["curves"].get(name, ()) if v is not None]


def same_start(run: Run, other: Run) -> bool:
    """Whether runs of one seed begin with the same policy, by the norm of its weights: until December 2026 a warm start ended elsewhere on
    some processors. Older runs have no norm; they agree among themselves (tests/recipes), and with others if one make of card trained both."""
    norms = [r["weight_norm"] for r in (run, other) if "weight_norm" in r]
    if len(norms) == 1:
        return "card" in run["machine"] and run["machine"]["card"] == other["machine"].get("card")
    return not norms or math.isclose(*norms, rel_tol=ROUNDING)


def shared(base: Cell, cell: Cell) -> Cell:
    """The base's runs that begin as the method's run of the same seed: seeds differ more than methods."""
    return {seed: run for seed, run in base.items() if seed in cell and same_start(run, cell[seed])}


def gained(run: Run, base: Run | None) -> str:
    """Area under the curve minus GRPO's of the same seed, where it was run."""
    return "" if base is None else f"{run['outcome']['auc'] - base['outcome']['auc']:+.3f}"


def ruled(head: str) -> list[str]:
    """The head of a table, with the line under it."""
    return [head, "|" + "---|" * (head.count("|") - 1)]


def told_beside(words: str, head: str, rows: Sequence[str]) -> list[str]:
    """A table under its words; nothing where it has no rows."""
    return [words, "", *ruled(head), *rows, ""] if rows else []
