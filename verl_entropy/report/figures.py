# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, by matplotlib; a figure whose series are missing says which."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from verl_entropy.report.runs import ENTROPY, Group, P, Run, thin

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's palette: distinct for colour-blind readers."""
PHASE_COLORS = {"warmup": "#f2f2f2", "descent": "#d6e6f2", "eruption": "#f4b59a", "subsidence": "#f5e3b3"}
STYLES = ("-", "--", ":", "-.")
DPI = 110
MAX_STRIPS = 12
"""Runs whose phases get a strip of their own; more would not be legible."""


@dataclass
class Panel:
    """One figure of the report."""

    name: str
    title: str
    caption: str
    png: bytes | None
    missing: str = ""
    """What to log so that the figure can be drawn, when there is none."""


def plain(text: str, limit: int = 40) -> str:
    """A label that matplotlib can draw whatever is in it: printable, no mathematics, not hidden, not long."""
    text = "".join(c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "?" for c in text)
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    return text.replace("$", r"\$").removeprefix("_") or "?"


def _figure(height: float = 3.2, rows: int = 1, **grid):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, 1, squeeze=False, **grid)[:, 0]


def _png(figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in other scripts show boxes
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _steps(axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("step")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _style(axis, label: str) -> None:
    axis.set_ylabel(label)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(axis) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2)


def _line(axis, group: Group, keys: tuple[str, ...], label: str, color: str, style: str, *, runs: bool = True) -> bool:
    """Mean of the group with its spread, and with ``runs`` its runs thin behind it; whether there was anything."""
    steps, mean, spread = group.mean(keys)
    if not len(steps):
        return False
    axis.plot(steps, mean, style, color=color, label=plain(label), linewidth=1.4, marker="." if len(steps) < 3 else "")
    if spread is not None:
        axis.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)
        for run in group.runs if runs else ():
            s, v = run.series(keys)
            s, v = thin(s, v[None], 1500)
            axis.plot(s, v[0], style, color=color, alpha=0.3, linewidth=0.6)
    return True


Row = tuple[str, tuple[str, ...]]
"""Label of a line and the names of its metric, best first."""


def _lines(name: str, title: str, caption: str, unit: str, rows: list[Row], groups: list[Group], hint: str = "") -> Panel:
    """A panel of lines: colour by series for one group, colour by group and style by series for several."""
    figure, (axis,) = _figure()
    drawn = 0
    for g, group in enumerate(groups):
        for r, (label, keys) in enumerate(rows):
            one = len(groups) == 1
            color = COLORS[(r if one else g) % len(COLORS)]
            style = "-" if one else STYLES[r % len(STYLES)]
            text = label if one else f"{group.label}: {label}"
            drawn += _line(axis, group, keys, text, color, style, runs=one)
    if not drawn:
        return Panel(name, title, caption, None, "no " + ", ".join(keys[0] for _, keys in rows) + (f". {hint}" if hint else ""))
    if len(groups) == 1:
        _shade(axis, groups[0].runs[0])
    _style(axis, unit)
    _steps(axis)
    _legend(axis)
    return Panel(name, title, caption, _png(figure))


def _shade(axis, run: Run) -> None:
    for span in run.spans:
        if span.phase in ("eruption", "subsidence"):
            axis.axvspan(span.first, span.last, color=PHASE_COLORS[span.phase], alpha=0.5, linewidth=0, zorder=0)


# ----------------------------------------------------------------------------- panels


def entropy(groups: list[Group]) -> Panel:
    """Entropy, and a strip of phases for each run."""
    title, caption = (
        "Entropy and its phases",
        ("Mean token entropy. Strips: phases by verl_entropy.diagnostics.phases; triangles: eruption seen; bars: step change."),
    )
    runs = [run for group in groups for run in group.runs][:MAX_STRIPS]
    figure, (axis, strips) = _figure(3.0 + 0.28 * len(runs), 2, sharex=True, height_ratios=[3.0, max(0.28 * len(runs), 0.3)])
    drawn = [_line(axis, g, ENTROPY, g.label, COLORS[i % len(COLORS)], "-") for i, g in enumerate(groups)]
    if not any(drawn):
        return Panel("entropy", title, caption, None, "no " + " or ".join(ENTROPY))
    if len(runs) == 1:
        _shade(axis, runs[0])
    for row, run in enumerate(runs):
        for span in run.spans:
            width = max(span.last - span.first, 0.5)
            strips.barh(row, width, left=span.first, height=0.7, color=PHASE_COLORS[span.phase], edgecolor="white")
        marks = {name: [e.step for e in run.detector.events if e.name == name] for name in ("eruption", "step_change")}
        strips.plot(marks["eruption"], [row] * len(marks["eruption"]), "v", color="#b22222", markersize=5)
        strips.plot(marks["step_change"], [row] * len(marks["step_change"]), "|", color="black", markersize=9)
    strips.set_yticks(range(len(runs)), [plain(run.name, 22) for run in runs], fontsize=7)
    strips.invert_yaxis()
    _steps(strips)
    strips.spines[["top", "right", "left"]].set_visible(False)
    from matplotlib.patches import Patch

    names = tuple(PHASE_COLORS)
    figure.legend(
        handles=[Patch(color=PHASE_COLORS[n], label=n) for n in names],
        loc="outside upper right",
        ncols=4,
        fontsize=7,
        frameon=False,
    )
    _style(axis, "nats")
    _legend(axis)
    return Panel("entropy", title, caption, _png(figure))


def turn_heat(groups: list[Group], most: int = 4) -> Panel:
    """Entropy by step and turn index, one map per group."""
    title, caption = "Entropy by turn", "Mean entropy of a turn's tokens (nats) by its index in the episode; blank: no such turn."
    maps = []
    for group in groups:
        run = group.runs[0]
        found = [k for k in run.reader.keys if re.fullmatch(re.escape(P) + r"turn_entropy/\d+", k) and run.reader.has(k)]
        found.sort(key=lambda k: int(k.rsplit("/", 1)[1]))
        if found:
            maps.append((run.name, _heat(run, found[:64])))
    if not maps:
        return Panel("turn_heat", title, caption, None, f"no {P}turn_entropy/<k>")
    maps, top = maps[:most], max(float(np.nanmax(table)) for _, (_, table) in maps)
    figure, axes = _figure(1.0 + 1.9 * len(maps), len(maps), sharex=True)
    for axis, (label, (steps, table)) in zip(axes, maps, strict=True):
        extent = (steps[0] - 0.5, steps[-1] + 0.5, -0.5, len(table) - 0.5)
        image = axis.imshow(table, aspect="auto", origin="lower", extent=extent, vmin=0.0, vmax=top, cmap="magma")
        axis.set_ylabel("turn")
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set_title(plain(label), fontsize=8, loc="left")
    _steps(axes[-1])
    figure.colorbar(image, ax=list(axes), label="nats", shrink=0.9)
    return Panel("turn_heat", title, caption, _png(figure))


def _heat(run: Run, keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
    steps = run.reader.steps
    table = np.full((len(keys), len(steps)), np.nan)
    for row, key in zip(table, keys, strict=True):
        s, v = run.series((key,))
        row[np.searchsorted(steps, s)] = v
    return thin(steps, table, 400)


def success(groups: list[Group]) -> Panel:
    keys = [k for g in groups for r in g.runs for k in r.reader.keys if re.fullmatch(r"val-core/.*/acc/mean@\d+", k)]
    rows: list[Row] = [("training", (P + "success", "critic/score/mean"))]
    rows += [(f"validation {key.split('/')[1]}", (key,)) for key in dict.fromkeys(keys)][:3]
    return _lines(
        "success",
        "Success",
        "Share of successful trajectories; critic/score/mean where no success is logged.",
        "share or score",
        rows,
        groups,
    )


def likelihood(groups: list[Group]) -> Panel:
    rows = [(name, (f"{P}likelihood/{name}_log_prob_mean",)) for name in ("correct", "wrong", "valid")]
    text = "Mean log-probability per token of the samples of each class (SEAL, Fig. 5)."
    return _lines("likelihood", "Likelihood of trajectories", text, "nats per token", rows, groups)


def clip(groups: list[Group]) -> Panel:
    text = "Share of tokens clipped on each side (REPO, App. A.1)."
    rows: list[Row] = [("above, A > 0", (P + "clipfrac_high",)), ("below, A < 0", (P + "clipfrac_low",))]
    if not any(run.reader.has(rows[0][1][0]) for group in groups for run in group.runs):
        text = "Share of tokens clipped, by verl: both sides together, and by the dual clip of negative advantages."
        rows = [("both sides", ("actor/pg_clipfrac",)), ("dual clip", ("actor/pg_clipfrac_lower",))]
    return _lines("clip", "Clipped tokens", text, "share", rows, groups)


def early_late(groups: list[Group]) -> Panel:
    rows = [(name, (f"{P}entropy_{name}/turns", f"{P}entropy_{name}/tokens")) for name in ("early", "late")]
    text = "Mean entropy of the first and last turns of an episode (EPO, Fig. 1)."
    return _lines("early_late", "Early and late entropy", text, "nats", rows, groups)


def duplication(groups: list[Group]) -> Panel:
    rows = [
        ("repeated sentences", (P + "duplication",)),
        ("invalid turns", (P + "invalid_turn_ratio",)),
        ("repeated actions", (P + "repeated_action_ratio",)),
    ]
    text = "Shares of repeated sentences in a response, of invalid turns, and of actions equal to the one before."
    return _lines("duplication", "Duplication and errors", text, "share", rows, groups)


def _split(run: Run) -> tuple[int, int] | None:
    """First and last step of the first eruption, or None."""
    return next(((s.first, s.last) for s in run.spans if s.phase == "eruption"), None)


def interference(groups: list[Group]) -> Panel:
    """Interference against advantage before and after the first eruption (SEAL, Fig. 4)."""
    title = "Gradient interference against advantage"
    caption = "Advantage A and coefficient c (SEAL, Lemma 3.3) of trajectories before and after the first eruption."
    run = next((r for g in groups for r in g.runs if _split(r) and _pairs(r) is not None), None)
    if run is None:
        rows = [(f"A {sign} 0", (f"{P}interference/drift_{name}",)) for name, sign in (("positive", ">"), ("negative", "<"))]
        text = "Sum of A c over trajectories of positive and negative advantage (SEAL, Lemma 3.3)."
        hint = "For the scatter of Fig. 4 store the columns advantage and interference per turn, in a run with an eruption."
        return _lines("interference", title, text, "nats per unit of step", rows, groups, hint)
    steps, advantage, coefficient = _pairs(run)
    first, last = _split(run)
    figure, (axis,) = _figure()
    for label, inside, color in (("before", steps < first, COLORS[0]), ("after", steps > last, COLORS[1])):
        x, y = advantage[inside], coefficient[inside]
        axis.scatter(x, y, s=7, alpha=0.35, color=color, label=f"{label} the eruption (n = {len(x)})", linewidths=0)
        if len(x) > 2 and np.ptp(x) > 0:
            slope, at = np.polyfit(x, y, 1)
            ends = np.array([x.min(), x.max()])
            axis.plot(ends, at + slope * ends, color=color, linewidth=1.5)
    axis.set_xlabel(f"advantage ({plain(run.name)})")
    _style(axis, "coefficient c")
    _legend(axis)
    return Panel("interference", title, caption, _png(figure))


def _pairs(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Step, advantage and coefficient of the stored turns that have both; at most 4000."""
    columns = run.turn_columns
    if columns is None or "interference" not in columns or "advantage" not in columns:
        return None
    finite = np.isfinite(columns["interference"].astype(float)) & np.isfinite(columns["advantage"].astype(float))
    kept = np.flatnonzero(finite)
    kept = kept[np.linspace(0, len(kept) - 1, min(len(kept), 4000)).astype(int)] if len(kept) else kept
    return (
        (columns["step"][kept], columns["advantage"][kept].astype(float), columns["interference"][kept].astype(float))
        if len(kept)
        else None
    )


def separation(groups: list[Group]) -> Panel:
    """Principal components of stored representations, or the scalar measures over steps."""
    title = "Separation of correct and wrong trajectories"
    for run in (r for g in groups for r in g.runs):
        found = _representations(run)
        if found is not None:
            return _projection(title, run, *found)
    rows = [
        ("linear-probe AUC", (P + "representation/probe_auc",)),
        ("cosine between / within", (P + "representation/ratio",)),
    ]
    hint = "For the projection store representation (a vector) with the sampled trajectories."
    return _lines("separation", title, "AUC .5 and ratio 1: the classes overlap (SEAL, Fig. 3).", "", rows, groups, hint)


def _representations(run: Run) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Step, vectors and success of the last stored step with at least 3 vectors of equal length."""
    for step, samples in reversed(run.samples):
        rows = [(s["representation"], bool(s.get("success"))) for s in samples if _is_vector(s.get("representation"))]
        width = {len(vector) for vector, _ in rows}
        if len(rows) >= 3 and len(width) == 1:
            return step, np.array([v for v, _ in rows], dtype=float), np.array([s for _, s in rows])
    return None


def _is_vector(value) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(v, int | float) for v in value)


def _projection(title: str, run: Run, step: int, vectors: np.ndarray, correct: np.ndarray) -> Panel:
    centred = vectors - vectors.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    xy, share = left[:, :2] * scale[:2], scale**2 / max(float((scale**2).sum()), 1e-300)
    figure, (axis,) = _figure()
    for label, inside, color, mark in (("correct", correct, COLORS[2], "o"), ("wrong", ~correct, COLORS[1], "x")):
        axis.scatter(
            xy[inside, 0], xy[inside, 1], s=22, color=color, marker=mark, label=f"{label} ({int(inside.sum())})", alpha=0.8
        )
    axis.set_xlabel(f"first component, {share[0]:.0%} of the variance ({plain(run.name)}, step {step})")
    _style(axis, f"second, {share[1]:.0%}")
    _legend(axis)
    return Panel(
        "separation", title, "Principal components of the trajectories' mean representations (SEAL, Fig. 3).", _png(figure)
    )


PANELS: tuple[Callable[[list[Group]], Panel], ...] = (
    entropy,
    turn_heat,
    success,
    likelihood,
    clip,
    early_late,
    interference,
    separation,
    duplication,
)
