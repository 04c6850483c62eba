# SPDX-License-Identifier: Apache-2.0
"""What the figures of a report share: size, colours, lines with their spread, small PNG files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from verl_entropy.runs.report.chart import Chart, Facet, Trace
from verl_entropy.runs.report.runs import Group, Run, thin

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's palette: distinct for colour-blind readers."""
CLASS_COLORS = {"correct": "#009E73", "wrong": "#D55E00", "valid": "#0072B2"}
PHASE_COLORS = {"warmup": "#ececec", "descent": "#cfe3f3", "steady": "#e4eef0", "eruption": "#f0a184", "subsidence": "#f6e3a5"}
HATCHES = {"eruption": "////", "subsidence": ".."}
"""Phases are told apart without colour, too."""
STYLES = ("-", "--", ":", "-.")
WIDTH, HEIGHT = 5.4, 3.1
"""Inches: with 9-point text a figure reads well as half of a 1200-pixel page and across a phone."""
DPI = 170
"""900 pixels a figure: sharp on screens of twice the density at half a page, and 15 to 60 kB."""
MAX_POINTS = 900
"""Points of a line: about one for every pixel of a figure's width."""
PAGE_POINTS = 270_000
"""Points of all lines of a page, 7 bytes each: with plotly.js (1.5 MB) and trajectories below 5 MB."""
MAX_STRIPS = 40
"""Runs whose phases get a strip of their own; more are counted in the caption."""
MAX_THIN = 40
"""Runs of a group that are drawn behind their mean; more are counted in the caption."""
MAX_LEGEND = 9
"""Entries: three rows of three above the plot."""


@dataclass
class Panel:
    """One figure of the report."""

    name: str
    title: str
    caption: str
    chart: Chart | None
    paint: Callable[[], bytes] | None = None
    """Draws the figure by matplotlib."""
    missing: str = ""
    """What to log so that the figure can be drawn, when there is none."""

    @cached_property
    def png(self) -> bytes | None:
        """The figure as a PNG file; None when there is none."""
        return self.paint() if self.paint is not None else None


Row = tuple[str, tuple[str, ...]]
"""Label of a line and the names of its metric, best first."""


def plain(text: str, limit: int = 32) -> str:
    """A label that matplotlib can draw whatever is in it: printable, no mathematics, not hidden, not long."""
    text = "".join(c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "?" for c in text)
    if len(text) > limit:  # in its middle: the end has the seed
        tail = limit // 2
        text = text[: limit - 3 - tail] + "..." + text[-tail:]
    return text.replace("$", r"\$").removeprefix("_") or "?"


def new(rows: int = 1, height: float = HEIGHT, columns: int = 1, **grid: Any):
    """A figure and its axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9, "axes.titlesize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5}):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, axes.ravel()


def png(figure) -> bytes:
    """The figure as a PNG with a palette, a third of the size of one in true colour."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas, file = FigureCanvasAgg(figure), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in other scripts show boxes
        canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(file, format="png", optimize=True)
    return file.getvalue()


def extent(groups: list[Group]) -> tuple[float, float]:
    """First and last step of all runs: every figure over steps shows the same range."""
    ends = [(r.reader.steps[0], r.reader.steps[-1]) for g in groups for r in g.runs if len(r.reader.steps)]
    first, last = min((a for a, _ in ends), default=0), max((b for _, b in ends), default=1)
    pad = max(0.01 * (last - first), 0.5)
    return first - pad, last + pad


def over_steps(axis, limits: tuple[float, float] | None) -> None:
    """The horizontal axis of training steps."""
    from matplotlib.ticker import MaxNLocator

    if limits is not None:
        axis.set_xlim(*limits)
    axis.set_xlabel("training step")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))


def style(axis, label: str) -> None:
    """Label of the vertical axis, and a light grid."""
    axis.set_ylabel(label)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def legend(figure, axis) -> None:
    """A legend above the plot, of at most MAX_LEGEND entries."""
    handles, labels = axis.get_legend_handles_labels()
    if not handles:
        return
    if len(handles) > MAX_LEGEND:
        labels = [*labels[: MAX_LEGEND - 1], f"... {len(labels) - MAX_LEGEND + 1} more"]
        handles = handles[:MAX_LEGEND]
    columns = 3 if max(map(len, labels)) < 17 else 2 if max(map(len, labels)) < 28 else 1
    drawn = figure.legend(handles, labels, loc="outside upper left", fontsize=8.5, frameon=False, ncols=columns, handlelength=1.6)
    for handle in drawn.legend_handles:
        handle.set_alpha(1.0)


def traces(
    groups: list[Group], index: int, keys: tuple[str, ...], label: str, color: int | str, limit: int = MAX_POINTS
) -> list[Trace]:
    """The lines of a group: its runs, and where they are several their mean with its spread."""
    group = groups[index]
    first = sum(len(g.runs) for g in groups[:index])
    dash = index // len(COLORS) % len(STYLES) if isinstance(color, int) and len(groups) > 1 else 0
    steps, mean, spread = group.mean(keys, limit)
    if not len(steps):
        return []
    found = []
    if spread is not None:
        for number, run in enumerate(group.runs[:MAX_THIN]):
            s, v = run.series(keys)
            s, v = thin(s, v[None], limit)
            if len(s):
                found.append(Trace(run.name, s, v[0], color, dash, run=first + number, group=index, thin=True))
    only = first if len(group.runs) == 1 else None
    return [*found, Trace(label, steps, mean, color, dash, spread, run=only, group=index)]


def line(axis, trace: Trace) -> None:
    """A trace on matplotlib's axes."""
    color = CLASS_COLORS[trace.color] if isinstance(trace.color, str) else COLORS[trace.color % len(COLORS)]
    dash = STYLES[trace.dash]
    if trace.thin:
        axis.plot(trace.x, trace.y, dash, color=color, alpha=0.3, linewidth=0.6)
        return
    few = "o" if len(trace.x) < 12 else ""
    axis.plot(trace.x, trace.y, dash, color=color, label=plain(trace.label), linewidth=1.5, marker=few, markersize=3)
    if trace.spread is not None:
        axis.fill_between(trace.x, trace.y - trace.spread, trace.y + trace.spread, color=color, alpha=0.18, linewidth=0)


def limit_of(groups: list[Group]) -> int:
    """Points of a line such that all lines of a page together stay within PAGE_POINTS; a page has some 35 series."""
    lines_ = 35 * sum(len(g.runs) + (len(g.runs) > 1) for g in groups)
    return max(min(MAX_POINTS, PAGE_POINTS // max(lines_, 1)), 100)


def lines(name: str, title: str, caption: str, unit: str, rows: list[Row], groups: list[Group], hint: str = "") -> Panel:
    """Lines over steps: one plot coloured by series for one group; for several groups one plot per series, coloured by group."""
    rows = [row for row in rows if any(group.has(row[1]) for group in groups)] or rows
    split = len(groups) > 1 and len(rows) > 1
    facets = [Facet(unit, label if len(groups) > 1 else "") for label, _ in (rows if split else rows[:1])]
    limit = limit_of(groups)
    for r, (label, keys) in enumerate(rows):
        for g, group in enumerate(groups):
            shown = label if len(groups) == 1 else group.label
            color: int | str = g if len(groups) > 1 else label if label in CLASS_COLORS else r
            facets[r if split else 0].traces += traces(groups, g, keys, shown, color, limit)
    if not any(facet.traces for facet in facets):
        wanted = "no " + ", ".join(keys[0] for _, keys in rows)
        return Panel(name, title, caption, None, missing=wanted + (f". {hint}" if hint else ""))
    chart = Chart(facets, extent(groups), shades(groups))
    return Panel(name, title, caption + left_out(groups), chart, lambda: paint_lines(chart))


def left_out(groups: list[Group]) -> str:
    """A sentence on the runs that have no line of their own behind a mean."""
    more = sum(max(len(g.runs) - MAX_THIN, 0) for g in groups)
    return f" {more} more runs are in the means and have no line of their own." if more else ""


def paint_lines(chart: Chart) -> bytes:
    """A chart of lines by matplotlib."""
    count = len(chart.facets)
    figure, axes = new(count, HEIGHT if count == 1 else 0.9 + 1.35 * count, sharex=True)
    for axis, facet in zip(axes, chart.facets, strict=True):
        for trace in facet.traces:
            line(axis, trace)
        for first, last, phase in chart.shades:
            axis.axvspan(first, last, color=PHASE_COLORS[phase], alpha=0.45, linewidth=0, zorder=0)
        for step, _, _ in chart.marks:
            axis.axvline(step, color="#8b1a1a", linewidth=0.9, linestyle="--")
        style(axis, facet.ylabel)
        if facet.title:
            axis.set_title(plain(facet.title), loc="left", fontsize=9)
    over_steps(axes[-1], chart.extent)
    if len(chart.traces) > 1:
        for axis in [max(axes, key=lambda axis: len(axis.lines))] if not _own_legends(chart) else axes:
            if _own_legends(chart):
                axis.legend(fontsize=7.5, frameon=False, loc="upper left", ncols=2)
            else:
                legend(figure, axis)
    return png(figure)


def _own_legends(chart: Chart) -> bool:
    """Whether the facets show different things: not the same groups in each."""
    labels = [{t.label for t in facet.traces if not t.thin} for facet in chart.facets]
    return len(labels) > 1 and not set.intersection(*labels)


def shades(groups: list[Group]) -> list[tuple[float, float, str]]:
    """Phases of a single run behind its lines; those of several would hide one another."""
    if len(groups) != 1 or len(groups[0].runs) != 1:
        return []
    return [(s.first, s.last, s.phase) for s in groups[0].runs[0].spans if s.phase in ("eruption", "subsidence")]


def first_eruption(run: Run) -> tuple[int, int] | None:
    """First and last step of the first eruption, or None."""
    return next(((s.first, s.last) for s in run.spans if s.phase == "eruption"), None)
