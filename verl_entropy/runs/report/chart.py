# SPDX-License-Identifier: Apache-2.0
"""What a figure shows, as plain values: the page draws it with Plotly, the PNG files with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DIGITS = 4
"""Significant digits on the page: more than a screen resolves, and half the bytes of all."""


@dataclass
class Trace:
    """One line or cloud of points."""

    label: str
    x: np.ndarray
    y: np.ndarray
    color: int | str = 0
    """Number of a colour of the palette, or the name of a class of trajectories."""
    dash: int = 0
    spread: np.ndarray | None = None
    """Half the height of the band around the line."""
    run: int | None = None
    """Number of the run; None for what belongs to no single one."""
    group: int | None = None
    thin: bool = False
    """A run behind the mean of its seeds."""
    points: bool = False


@dataclass
class Facet:
    """One pair of axes."""

    ylabel: str
    title: str = ""
    traces: list[Trace] = field(default_factory=list)
    xlabel: str = ""
    """Of axes of its own; empty: the training steps that all facets of a figure share."""


@dataclass
class Chart:
    """A figure: its axes below one another, phases behind them, events on the first, strips of phases under them; or maps."""

    facets: list[Facet]
    extent: tuple[float, float] | None = None
    """Of the steps; None: what the traces have."""
    shades: list[tuple[float, float, str]] = field(default_factory=list)
    """First and last step, and name, of the phases behind the lines."""
    marks: list[tuple[float, str, int | None]] = field(default_factory=list)
    """Step, name and run of events."""
    strips: list[tuple[str, list[tuple[str, float, float]]]] = field(default_factory=list)
    """Runs with their phases: name, first and last step."""
    maps: list[tuple[str, np.ndarray, np.ndarray]] = field(default_factory=list)
    """Label, steps [N], values [rows, N]."""

    @property
    def traces(self) -> list[Trace]:
        return [trace for facet in self.facets for trace in facet.traces]

    def alt(self, title: str) -> str:
        """What the figure shows, in words with figures: for who does not see it."""
        said = []
        for facet in self.facets:
            shown = [t for t in facet.traces if not t.thin and len(t.y)]
            said += [_course(facet, trace) for trace in shown[:4]]
            if len(shown) > 4:
                said.append(f"and {len(shown) - 4} more")
        for label, steps, values in self.maps[:4]:
            low, high = float(np.nanmin(values)), float(np.nanmax(values))
            said.append(f"{label}: {len(values)} turns by {len(steps)} steps, {_brief(low)} to {_brief(high)} nats")
        for name, spans in self.strips[:4]:
            said.append(f"phases of {name}: " + ", ".join(f"{phase} {first:g} to {last:g}" for phase, first, last in spans[:8]))
        return f"{title}. " + "; ".join(said) + "."


def _course(facet: Facet, trace: Trace) -> str:
    finite = np.flatnonzero(np.isfinite(trace.y))
    name = ", ".join(dict.fromkeys(filter(None, (facet.title, trace.label))))
    if not len(finite):
        return f"{name}: no finite value"
    y, x = trace.y[finite], trace.x[finite]
    if trace.points:
        return f"{name}: {len(y)} points, {facet.ylabel} from {_brief(y.min())} to {_brief(y.max())}"
    text = f"{name} ({facet.ylabel}): {_brief(y[0])} at step {x[0]:g}"
    if len(y) > 1:
        low, high = int(y.argmin()), int(y.argmax())
        text += f", {_brief(y[-1])} at step {x[-1]:g}, lowest {_brief(y[low])} at {x[low]:g}, highest {_brief(y[high])} at {x[high]:g}"
    return text


def _brief(value: float) -> str:
    return f"{value:.3g}"


def rounded(values: Iterable[float]) -> list[float | int | None]:
    """Values as short JSON numbers; None where they are not finite."""
    found: list[float | int | None] = []
    for value in np.asarray(values, dtype=float).tolist():
        if not math.isfinite(value):
            found.append(None)
            continue
        short = float(f"{value:.{DIGITS}g}")
        found.append(int(short) if short == int(short) and abs(short) < 1e15 else short)
    return found


class Steps:
    """Lists of steps, each kept once: most lines of a page share theirs."""

    def __init__(self) -> None:
        self.lists: list[list[float | int]] = []
        self._known: dict[bytes, int] = {}

    def number(self, steps: np.ndarray) -> int:
        """The number of this list."""
        steps = np.asarray(steps, dtype=float)
        key = steps.tobytes()
        if key not in self._known:
            self._known[key] = len(self.lists)
            self.lists.append([int(s) if s == int(s) else round(s, 2) for s in steps.tolist()])
        return self._known[key]


def as_json(name: str, title: str, caption: str, chart: Chart, steps: Steps) -> dict[str, Any]:
    """The chart for the page's script."""
    facets = [
        {"title": f.title, "ylabel": f.ylabel, "xlabel": f.xlabel, "traces": [_trace(t, bool(f.xlabel), steps) for t in f.traces]}
        for f in chart.facets
    ]
    maps = [{"label": label, "x": steps.number(x), "z": [rounded(row) for row in z]} for label, x, z in chart.maps]
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "alt": chart.alt(title),
        "facets": facets,
        "range": list(chart.extent) if chart.extent else None,
        "shades": [list(shade) for shade in chart.shades],
        "marks": [list(mark) for mark in chart.marks],
        "strips": [[label, [list(span) for span in spans]] for label, spans in chart.strips],
        "maps": maps,
    }


def _trace(trace: Trace, own_x: bool, steps: Steps) -> dict[str, Any]:
    found: dict[str, Any] = {"label": trace.label, "y": rounded(trace.y), "color": trace.color, "dash": trace.dash}
    found["x"] = rounded(trace.x) if own_x else steps.number(trace.x)
    if trace.spread is not None:
        found["spread"] = rounded(trace.spread)
    found.update({name: value for name in ("run", "group") if (value := getattr(trace, name)) is not None})
    found.update({name: True for name in ("thin", "points") if getattr(trace, name)})
    return found
