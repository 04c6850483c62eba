# SPDX-License-Identifier: Apache-2.0
"""The table of a world and regime, what it tells apart, and the short table of the project's README."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.outcome import halved
from bench.page.cells import LEAST_RUNS, Cell, load, ruled, score, shared, told_beside
from bench.plan import BASE, METHODS, RESULTS, WORLDS
from bench.statistics import LEAST_SEEDS, Estimate, difference, improvement, interquartile_mean

FLAGS = ("collapsed", "erupted", "lost_half")
JUDGED = {"auc": "area under the curve", "held_out_final": "final held-out success", "entropy_final": "entropy at the end"}
"""What methods are told apart by."""
COMPARED = {name: JUDGED[name] for name in ("auc", "held_out_final")}
"""By what a combination is compared with its parts."""


def versus(cell: Cell, base: Cell, name: str) -> Estimate | None:
    """Paired difference to the base over the seeds that both have and begin alike."""
    seeds = list(shared(base, cell))
    if not seeds:
        return None
    return difference([score((cell[s] for s in seeds), name)], [score((base[s] for s in seeds), name)])


def share(cell: Cell, flag: str) -> str:
    return f"{sum(score(cell.values(), flag))}/{len(cell)}"


def row(method: str, cell: Cell, base: Cell) -> str:
    """A line of a table."""
    runs = list(cell.values())
    plain, filtered = method == BASE, METHODS[method].filtered
    gain = None if plain or filtered else versus(cell, base, "auc")
    ours, theirs = (score(some.values(), "held_out_final") for some in (shared(cell, base), shared(base, cell)))
    better = None if plain or not ours else improvement([ours], [theirs])
    cells = [
        METHODS[method].title,
        str(len(runs)),
        interquartile_mean([score(runs, "held_out_final")]).text(),
        interquartile_mean([score(runs, "held_out_best")]).text(),
        "" if filtered else interquartile_mean([score(runs, "auc")]).text(),
        gain.text(sign=True) if gain else "",
        better.text() if better else "",
        *("" if filtered and flag == "lost_half" else share(cell, flag) for flag in FLAGS),
        f"{sum(map(halved, runs))}/{len(runs)}",
        f"{fmean(score(runs, 'entropy_start')):.3f} -> {fmean(score(runs, 'entropy_final')):.3f}",
        f"{median(run['step_seconds'] for run in runs):.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| method | seeds | held out, final | held out, best | area under the curve | area - GRPO's, paired | P(final > GRPO's) "
    "| collapsed | erupted | lost half | held out halved | entropy, start -> end | s/step |"
)


def table(cells: dict[str, Cell]) -> list[str]:
    base = cells.get(BASE, {})
    return [*ruled(HEAD), *(row(m, cell, base) for m, cell in cells.items())]


SHORT = (("household", "healthy"), ("household", "unstable"), ("frozen_lake", "unstable"), ("bandit", "unstable"))
"""Worlds and regimes of the project's README."""


def short_table(results: Path = RESULTS) -> list[str]:
    """For the project's README: what has five seeds somewhere, its success and in how many runs it was kept, where it has three seeds."""
    every = load(results)
    found = [every.get(place, {}) for place in SHORT]
    lines = ruled(f"| method | {' | '.join(f'{WORLDS[world].title}, {regime}' for world, regime in SHORT)} |")
    for method, spec in METHODS.items():
        cells = [list(cells.get(method, {}).values()) for cells in found]
        if max(map(len, cells)) < LEAST_RUNS:
            continue
        columns = [
            f"{interquartile_mean([score(runs, 'held_out_final')]).text()}; {len(runs) - sum(map(halved, runs))} of {len(runs)}"
            if len(runs) >= LEAST_SEEDS
            else ""
            for runs in cells
        ]
        lines.append(f"| {spec.title} | {' | '.join(columns)} |")
    return lines


def words(method: str) -> set[str]:
    """What a method adds to plain GRPO."""
    return {*METHODS[method].presets, *METHODS[method].overrides}


def parts(cells: dict[str, Cell]) -> list[tuple[str, str, list[int]]]:
    """Each method beside a part of it that was run, too, and the seeds that both have, where they are enough for an interval."""
    pairs = ((m, part, list(shared(cells[part], cells[m]))) for m in cells for part in cells if set() < words(part) < words(m))
    return [(m, part, seeds) for m, part, seeds in pairs if len(seeds) >= LEAST_SEEDS]


def beside_parts(cells: dict[str, Cell]) -> list[str]:
    """What a combination has over a part of it: which of its methods a gain over GRPO comes from."""
    rows = []
    for method, part, seeds in parts(cells):
        gains = (versus(cells[method], cells[part], name) for name in COMPARED)
        columns = " | ".join(gain.text(sign=True) for gain in gains if gain)
        rows.append(f"| {METHODS[method].title} | {METHODS[part].title} | {len(seeds)} | {columns} |")
    return told_beside(
        "What a method has over a part of it, paired over the seeds of both:",
        f"| method | its part | seeds | {' | '.join(COMPARED.values())} |",
        rows,
    )


def verdicts(cells: dict[str, Cell]) -> list[str]:
    """Which methods are told from GRPO, and which not."""
    base = cells.get(BASE, {})
    lines, judged = [], [m for m in cells if m != BASE]
    for name, text in JUDGED.items():
        sides: dict[Any, list[str]] = {1: [], -1: [], 0: [], None: []}
        for method in (m for m in judged if name != "auc" or not METHODS[m].filtered):
            found = versus(cells[method], base, name)
            side = found.side() if found and found.low is not None else None
            told = "" if side is None else f" ({found.text(sign=True)})"
            sides[side].append(METHODS[method].title + told)
        parts = [
            f"{what}: {', '.join(sides[side])}"
            for side, what in ((1, "above GRPO"), (-1, "below GRPO"), (0, "not told from GRPO"), (None, "too few seeds to tell"))
            if sides[side]
        ]
        lines.append(f"- By {text}, paired over seeds: {'; '.join(parts) or 'nothing but GRPO was run'}.")
    return lines
