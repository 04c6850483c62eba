# SPDX-License-Identifier: Apache-2.0
"""What the figures of a report share: size, colours, lines with their spread, small PNG files."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

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
MAX_STRIPS = 12
"""Runs whose phases get a strip of their own; more would not be legible."""
MAX_LEGEND = 9
"""Entries: three rows of three above the plot."""


@dataclass
class Panel:
    """One figure of the report."""

    name: str
    title: str
    caption: str
    png: bytes | None
    missing: str = ""
    """What to log so that the figure can be drawn, when there is none."""


Row = tuple[str, tuple[str, ...]]
"""Label of a line and the names of its metric, best first."""


def plain(text: str, limit: int = 32) -> str:
    """A label that matplotlib can draw whatever is in it: printable, no mathematics, not hidden, not long."""
    text = "".join(c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "?" for c in text)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
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


def over_steps(axis, groups: list[Group]) -> None:
    """The horizontal axis of training steps."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlim(*extent(groups))
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


def line(axis, group: Group, keys: tuple[str, ...], label: str, color: str, dash: str = "-") -> bool:
    """Mean of the group with its spread, its runs thin behind it; whether there was anything."""
    steps, mean, spread = group.mean(keys, MAX_POINTS)
    if not len(steps):
        return False
    axis.plot(
        steps, mean, dash, color=color, label=plain(label), linewidth=1.5, marker="o" if len(steps) < 12 else "", markersize=3
    )
    if spread is not None:
        axis.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)
        for run in group.runs if len(group.runs) <= MAX_STRIPS else ():
            s, v = run.series(keys)
            s, v = thin(s, v[None], MAX_POINTS)
            axis.plot(s, v[0], dash, color=color, alpha=0.3, linewidth=0.6)
    return True


def group_style(index: int) -> tuple[str, str]:
    """Colour and dash of a group, the same in every figure."""
    return COLORS[index % len(COLORS)], STYLES[index // len(COLORS) % len(STYLES)]


def lines(name: str, title: str, caption: str, unit: str, rows: list[Row], groups: list[Group], hint: str = "") -> Panel:
    """Lines over steps: one plot coloured by series for one group; for several groups one plot per series, coloured by group."""
    rows = [row for row in rows if any(group.has(row[1]) for group in groups)] or rows
    split = len(groups) > 1 and len(rows) > 1
    count = len(rows) if split else 1
    figure, axes = new(count, HEIGHT if count == 1 else 0.9 + 1.35 * count, sharex=True)
    drawn = 0
    for g, group in enumerate(groups):
        for r, (label, keys) in enumerate(rows):
            color, dash = group_style(g)
            if len(groups) == 1:
                color, dash = CLASS_COLORS.get(label, COLORS[r % len(COLORS)]), "-"
            drawn += line(axes[r if split else 0], group, keys, label if len(groups) == 1 else group.label, color, dash)
    if not drawn:
        wanted = "no " + ", ".join(keys[0] for _, keys in rows)
        return Panel(name, title, caption, None, wanted + (f". {hint}" if hint else ""))
    for axis, (label, _) in zip(axes, rows, strict=False):
        shade(axis, groups)
        style(axis, unit)
        if split or (len(rows) == 1 and len(groups) > 1):
            axis.set_title(label, loc="left", fontsize=9)
    over_steps(axes[-1], groups)
    if len(groups) > 1 or len(rows) > 1 or len(groups[0].runs) > 1:
        legend(figure, max(axes, key=lambda axis: len(axis.lines)))
    return Panel(name, title, caption, png(figure))


def shade(axis, groups: list[Group]) -> None:
    """Phases of a single run behind its lines; those of several would hide one another."""
    if len(groups) != 1 or len(groups[0].runs) != 1:
        return
    for span in groups[0].runs[0].spans:
        if span.phase in ("eruption", "subsidence"):
            axis.axvspan(span.first, span.last, color=PHASE_COLORS[span.phase], alpha=0.45, linewidth=0, zorder=0)


def first_eruption(run: Run) -> tuple[int, int] | None:
    """First and last step of the first eruption, or None."""
    return next(((s.first, s.last) for s in run.spans if s.phase == "eruption"), None)
