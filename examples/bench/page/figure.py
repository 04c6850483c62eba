# SPDX-License-Identifier: Apache-2.0
"""One figure for each world and regime."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.outcome import ENDS, running
from bench.page.cells import Cell, score, shared
from bench.plan import BASE, METHODS
from bench.statistics import profile


def draw(cells: dict[str, Cell], path: Path) -> None:
    """A column a method: success and entropy over training, each seed thin, their mean bold, GRPO's mean grey; below, performance profiles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns, base = len(cells), cells.get(BASE, {})
    figure, axes = plt.subplots(
        3, columns, figsize=(1 + 1.5 * columns, 5.2), sharex="row", sharey="row", layout="constrained", squeeze=False
    )
    for curve, line in (("success", axes[0]), ("entropy", axes[1])):
        for axis, (method, cell) in zip(line, cells.items(), strict=True):
            for run in cell.values():
                axis.plot(*smooth(run["curves"][curve]), color="tab:blue", lw=0.5, alpha=0.5)
            if same := shared(base, cell):
                axis.plot(*smooth(mean_curve(same, curve)), color="0.4", lw=1.6)
            if method != BASE:
                axis.plot(*smooth(mean_curve(cell, curve)), color="tab:blue", lw=1.6)
        line[0].set_ylabel("success" if curve == "success" else "entropy, nats a token", fontsize=8)
        line[0].set_ylim(bottom=0)
    levels = np.linspace(0, 1, 101)[1:]
    for axis, cell in zip(axes[2], cells.values(), strict=True):
        for drawn, colour in ((base, "0.4"), (cell, "tab:blue")):
            if drawn:
                axis.step(levels, profile(score(drawn.values(), "held_out_final"), levels), color=colour, lw=1.2)
    axes[2][0].set_ylabel("share of runs", fontsize=8)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
    for axis, method in zip(axes[0], cells, strict=True):
        axis.set_title(textwrap.fill(METHODS[method].title, 22), fontsize=8)
        axis.tick_params(labelbottom=False)
    figure.supxlabel(
        textwrap.fill(
            f"above: training step (running mean of {ENDS // 2}; thin: seeds, blue: their mean, grey: GRPO's mean of the same seeds); "
            "below: share of runs whose held-out success at the end is at least this (blue: the method's, grey: GRPO's, all seeds)",
            int(15 * figure.get_figwidth()),
        ),
        fontsize=8,
    )
    figure.savefig(path, dpi=90)
    plt.close(figure)


def mean_curve(cell: Cell, name: str) -> list[float]:
    """Mean over seeds at each step that all of them have."""
    found = [run["curves"][name] for run in cell.values()]
    steps = min(map(len, found))
    return np.mean([[np.nan if v is None else v for v in values[:steps]] for values in found], axis=0).tolist()


def smooth(values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    known = [float("nan") if v is None else v for v in values]
    means = running(known, ENDS // 2)
    first = 1 + (len(known) - len(means)) / 2
    return [first + i for i in range(len(means))], means
