# SPDX-License-Identifier: Apache-2.0
"""Differences of two runs: configuration, metrics, and the first step at which they part."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy.runs.report.runs import Run, flatten, load, without_steps
from verl_entropy.runs.report.text import printable
from verl_entropy.runs.runfile import RunFileError

NOT_COMPARED = ("timing_s/", "timing_per_token_ms/", "perf/", "actor/perf/", "critic/perf/", "training/off_policy/")
"""Prefixes of metrics that differ between two runs of the same seed: clocks, memory, scheduling."""
LAST = 10
"""Steps that the means at the end are taken over."""


@dataclass(frozen=True)
class MetricDifference:
    """A metric that two runs do not share."""

    key: str
    parted: int
    """First common step at which the values differ."""
    a: float | None
    b: float | None
    """Values there; None: missing."""
    end_a: float | None
    end_b: float | None
    """Means over the last steps that both have."""


@dataclass(frozen=True)
class Difference:
    """What ``diff`` found."""

    a: str
    b: str
    config: dict[str, tuple[Any, Any]]
    """Keys with different values; "(not set)" where one has none."""
    metrics: list[MetricDifference]
    """Metrics that part, earliest first."""
    parted: int | None
    """First step at which any metric differs, None if none does."""
    equal: int
    """Metrics that are equal at every common step."""
    only_a: list[str]
    only_b: list[str]
    steps: tuple[int, int, int]
    """Steps of a, of b, and in both."""
    problems: list[str]

    @property
    def differs(self) -> bool:
        """Whether anything is not the same: a setting, a metric, or the steps that there are."""
        return bool(self.config or self.metrics or self.only_a or self.only_b or len(set(self.steps)) > 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return asdict(self)

    def render(self, width: int = 80, most: int = 20) -> str:
        """Readable text of at most ``width`` columns."""
        return _render(self, width, most)


def diff(a: str | Path, b: str | Path, *, rtol: float = 0.0, atol: float = 0.0) -> Difference:
    """Compare two runs; by default values must be equal to the last bit, NaN equals NaN. Each must have a step."""
    if not (rtol >= 0.0 and atol >= 0.0):
        raise ValueError(f"rtol={rtol}, atol={atol}: must be >= 0. Use 0 for equality to the last bit.")
    one, other = load([a, b])
    if unread := without_steps((one, other)):
        raise RunFileError("\n".join(unread))
    common = np.intersect1d(one.reader.steps, other.reader.steps)
    keys_a, keys_b = _keys(one), _keys(other)
    in_a, in_b = set(keys_a), set(keys_b)
    parts = [_part(one, other, key, common, rtol, atol) for key in keys_a if key in in_b]
    metrics = sorted((p for p in parts if p is not None), key=lambda p: (p.parted, p.key))
    return Difference(
        a=one.name,
        b=other.name,
        config=_config(one, other),
        metrics=metrics,
        parted=metrics[0].parted if metrics else None,
        equal=sum(p is None for p in parts),
        only_a=[k for k in keys_a if k not in in_b],
        only_b=[k for k in keys_b if k not in in_a],
        steps=(len(one.reader), len(other.reader), len(common)),
        problems=[f"{run.name}: {text}" for run in (one, other) for text in run.reader.problems],
    )


def _keys(run: Run) -> list[str]:
    return [key for key in run.reader.keys if not key.startswith(NOT_COMPARED)]


def _config(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    a, b = flatten(one.reader.config), flatten(other.reader.config)
    missing = "(not set)"
    keys = sorted(set(a) | set(b))
    return {k: (a.get(k, missing), b.get(k, missing)) for k in keys if k not in a or k not in b or a[k] != b[k]}


def _part(one: Run, other: Run, key: str, common: np.ndarray, rtol: float, atol: float) -> MetricDifference | None:
    if not len(common):
        return None
    x, y = (_at(run, key, common) for run in (one, other))
    known = np.isfinite(x) & np.isfinite(y)
    apart = np.isfinite(x) != np.isfinite(y)
    apart[known] = np.abs(x[known] - y[known]) > atol + rtol * np.maximum(np.abs(x[known]), np.abs(y[known]))
    if not apart.any():
        return None
    at = int(np.argmax(apart))
    return MetricDifference(key, int(common[at]), _known(x[at]), _known(y[at]), _end(x), _end(y))


def _at(run: Run, key: str, common: np.ndarray) -> np.ndarray:
    steps, values = run.reader.series(key)
    found = np.full(len(common), np.nan)
    inside = np.isin(steps, common)
    found[np.searchsorted(common, steps[inside])] = values[inside]
    return found


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _end(values: np.ndarray) -> float | None:
    tail = values[-LAST:]
    tail = tail[np.isfinite(tail)]
    return float(tail.mean()) if len(tail) else None


# ----------------------------------------------------------------------------- text


def short(text: Any, width: int) -> str:
    """``text`` on one line of at most ``width`` columns, cut in its middle; control characters are replaced."""
    text = printable(text)
    if len(text) <= width:
        return text
    left = (width - 2) // 2
    return text[:left] + ".." + text[len(text) - (width - 2 - left) :]


def _value(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"


def _render(d: Difference, width: int, most: int) -> str:
    lines = [f"A  {short(d.a, width - 3)}", f"B  {short(d.b, width - 3)}"]
    lines += [f"steps: {d.steps[0]} in A, {d.steps[1]} in B, {d.steps[2]} in both", ""]
    lines.append(f"configuration: {len(d.config)} keys differ" if d.config else "configuration: no difference recorded")
    for key, (a, b) in list(d.config.items())[:most]:
        lines += [f"  {short(key, width - 2)}", f"    A {short(a, width - 6)}", f"    B {short(b, width - 6)}"]
    lines += _more(len(d.config), most)
    lines.append("")
    if d.parted is None:
        lines.append(f"metrics: all {d.equal} are equal at the common steps" if d.steps[2] else "metrics: no common step")
    else:
        lines.append(f"metrics: part at step {d.parted}; {len(d.metrics)} differ, {d.equal} are equal")
        name = max(width - 44, 16)
        lines.append(f"  {'':<{name}} {'step':>6} {'A':>10} {'B':>10} {'end A-B':>10}")
        lines += [_metric_line(m, name) for m in d.metrics[:most]] + _more(len(d.metrics), most)
    for side, keys in (("A", d.only_a), ("B", d.only_b)):
        if keys:
            lines.append(f"only in {side}: {len(keys)}")
            lines += textwrap.wrap(
                ", ".join(short(k, width - 4) for k in keys[:most]), width, initial_indent="  ", subsequent_indent="  "
            )
            lines += _more(len(keys), most)
    lines += [short(f"problem: {text}", width) for text in d.problems]
    return "\n".join(lines)


def _metric_line(m: MetricDifference, name: int) -> str:
    end = "" if m.end_a is None or m.end_b is None else f"{m.end_a - m.end_b:+.3g}"
    return f"  {short(m.key, name):<{name}} {m.parted:>6} {short(_value(m.a), 10):>10} {short(_value(m.b), 10):>10} {end:>10}"


def _more(count: int, most: int) -> list[str]:
    return [f"  ... and {count - most} more (--json has all)"] if count > most else []
