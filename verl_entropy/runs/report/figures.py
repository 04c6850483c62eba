# SPDX-License-Identifier: Apache-2.0
"""The figures of a report: what each shows, and how matplotlib draws it; a figure whose series are missing says which."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from verl_entropy.runs.report import plot
from verl_entropy.runs.report.chart import Chart, Facet, Trace
from verl_entropy.runs.report.plot import Panel, Row, plain
from verl_entropy.runs.report.projection import projected
from verl_entropy.runs.report.runs import ENTROPY, JUDGED, Group, P, Run, thin
from verl_entropy.runs.report.success import series as success_series

MAX_HEAT_STEPS = 200
"""Steps whose per-turn arrays are read for a map where no metric has it: each is a file or a part of one."""
MAX_HEAT_TURNS = 64
"""Rows of a map: more are thinner than three pixels. Agents' episodes have up to 50 turns."""
MAX_SCATTER = 2000
"""Points before and after an eruption each; more hide one another."""

# ----------------------------------------------------------------------------- entropy


def entropy(groups: list[Group]) -> Panel:
    """Entropy, and a strip of phases for each run."""
    title = "Entropy and its phases"
    caption = "Mean token entropy in nats. Strips: phases found by the detector; triangle: eruption seen; bar: step change."
    every = [run for group in groups for run in group.runs]
    runs = every[: plot.MAX_STRIPS]
    if len(every) > len(runs):
        caption += f" Strips of {len(every) - len(runs)} more runs are not drawn; the table of runs has their events."
    limit = plot.limit_of(groups)
    facet = Facet("entropy (nats)")
    for i, g in enumerate(groups):
        facet.traces += plot.traces(groups, i, ENTROPY, g.label, i, limit)
    if not facet.traces:
        return Panel("entropy", title, caption, None, missing="no " + " or ".join(ENTROPY))
    marks = [(float(e.step), e.name, i) for i, run in enumerate(runs) for e in run.detector.events if e.name in MARKED]
    strips = [(run.name, [(s.phase, float(s.first), float(s.last)) for s in run.spans]) for run in runs]
    chart = Chart([facet], plot.extent(groups), plot.shades(groups), marks, strips)
    return Panel("entropy", title, caption + plot.left_out(groups), chart, lambda: _paint_entropy(chart, runs))


MARKED = ("eruption", "step_change", "collapse", "non_finite")
"""Events that are marked in the figure of entropy."""


def _paint_entropy(chart: Chart, runs: list[Run]) -> bytes:
    tall = 0.24 * len(runs)
    figure, (axis, strips) = plot.new(2, plot.HEIGHT + tall, sharex=True, height_ratios=[2.2, max(tall, 0.24)])
    for trace in chart.traces:
        plot.line(axis, trace)
    for first, last, phase in chart.shades:
        axis.axvspan(first, last, color=plot.PHASE_COLORS[phase], alpha=0.45, linewidth=0, zorder=0)
    for row, run in enumerate(runs):
        _strip(strips, row, run)
    strips.set_yticks(range(len(runs)), [plain(run.name, 16) for run in runs], fontsize=7.5)
    strips.set_ylim(len(runs) - 0.5, -0.5)
    plot.over_steps(strips, chart.extent)
    strips.spines[["top", "right", "left"]].set_visible(False)
    strips.tick_params(left=False)
    plot.style(axis, "entropy (nats)")
    if len(chart.traces) > 1:
        plot.legend(figure, axis)
    _phase_legend(figure, runs)
    return plot.png(figure)


def _strip(axis, row: int, run: Run) -> None:
    for span in run.spans:
        width = max(span.last - span.first, 0.5)
        axis.barh(
            row,
            width,
            left=span.first,
            height=0.72,
            color=plot.PHASE_COLORS[span.phase],
            hatch=plot.HATCHES.get(span.phase),
            edgecolor="#ffffff",
            linewidth=0.3,
        )
    for name, mark, color, size in (("eruption", "v", "#8b1a1a", 5), ("step_change", "|", "#000000", 9)):
        steps = [event.step for event in run.detector.events if event.name == name]
        axis.plot(steps, [row] * len(steps), mark, color=color, markersize=size)


def _phase_legend(figure, runs: list[Run]) -> None:
    from matplotlib.patches import Patch

    seen = {span.phase for run in runs for span in run.spans}
    patches = [
        Patch(facecolor=color, hatch=plot.HATCHES.get(name), edgecolor="#ffffff", label=name)
        for name, color in plot.PHASE_COLORS.items()
        if name in seen
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False, handlelength=1.4)


def turn_heat(groups: list[Group], most: int = 8) -> Panel:
    """Entropy by step and turn index, one map per group."""
    title = "Entropy by turn"
    caption = "Mean entropy of a turn's tokens by its index in the episode; white: no such turn. Of several seeds: the first."
    found = [(group.runs[0].name, _heat(group.runs[0])) for group in groups]
    maps = [(name, *heat) for name, heat in found if heat is not None]
    if not maps:
        why = f"no {P}turn_entropy/<k>, and no per-turn arrays with turn and entropy"
        return Panel("turn_heat", title, caption, None, missing=why)
    if len(maps) > most:
        caption += f" Maps of {len(maps) - most} more settings are not drawn."
    chart = Chart([], plot.extent(groups), maps=maps[:most])
    return Panel("turn_heat", title, caption, chart, lambda: _paint_heat(chart, titled=len(groups) > 1))


def _paint_heat(chart: Chart, titled: bool) -> bytes:
    maps, top = chart.maps, max(float(np.nanmax(table)) for _, _, table in chart.maps)
    figure, axes = plot.new(len(maps), plot.HEIGHT if len(maps) == 1 else 0.7 + 1.45 * len(maps), sharex=True)
    for axis, (label, steps, table) in zip(axes, maps, strict=True):
        edges = np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])
        rows = np.arange(len(table) + 1) - 0.5
        image = axis.pcolormesh(edges, rows, table, vmin=0.0, vmax=max(top, 1e-9), cmap="cividis", rasterized=True)
        axis.set_ylabel("turn")
        axis.yaxis.get_major_locator().set_params(integer=True)
        if titled:
            axis.set_title(plain(label), loc="left", fontsize=9)
    plot.over_steps(axes[-1], chart.extent)
    bar = figure.colorbar(image, ax=list(axes), fraction=0.06, pad=0.02)
    bar.set_label("entropy (nats)", size=9)
    bar.ax.tick_params(labelsize=8.5)
    return plot.png(figure)


def _heat(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Steps and entropy [turn, step] from metrics, or else from per-turn arrays of some steps."""
    keys = [k for k in run.reader.keys if re.fullmatch(re.escape(P) + r"turn_entropy/\d{1,6}", k) and run.reader.has(k)]
    keys = sorted(keys, key=lambda k: int(k.rsplit("/", 1)[1]))[:MAX_HEAT_TURNS]
    if not keys:
        return _heat_of_turns(run)
    steps = run.reader.steps
    table = np.full((len(keys), len(steps)), np.nan)
    for row, key in zip(table, keys, strict=True):
        s, v = run.series((key,))
        row[np.searchsorted(steps, s)] = v
    return thin(steps, table, 300)


def _heat_of_turns(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    steps = run.reader.steps
    chosen = (
        steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MAX_HEAT_STEPS)).astype(int))] if len(steps) else steps
    )
    total, count = np.zeros((2, MAX_HEAT_TURNS, len(chosen)))
    for column, step in enumerate(chosen):
        part = run.reader.turns(int(step), int(step))
        if _numeric(part, "turn", "entropy"):
            value, turn = part["entropy"].astype(float), part["turn"].astype(int)
            known = np.isfinite(value) & (turn >= 0) & (turn < MAX_HEAT_TURNS)
            total[:, column] = np.bincount(turn[known], value[known], MAX_HEAT_TURNS)
            count[:, column] = np.bincount(turn[known], minlength=MAX_HEAT_TURNS)
    if not count.any():
        return None
    rows, columns = np.flatnonzero(count.any(1))[-1] + 1, count.any(0)
    total, count = total[:rows, columns], count[:rows, columns]
    return chosen[columns].astype(float), np.where(count > 0, total / np.maximum(count, 1), np.nan)


def early_late(groups: list[Group]) -> Panel:
    rows = [(name, (f"{P}entropy_{name}/turns", f"{P}entropy_{name}/tokens")) for name in ("early", "late")]
    text = "Mean entropy of the first and last turns of an episode (EPO, Fig. 1)."
    shares = [v.mean() for g in groups for r in g.runs if len(v := r.series((P + "windows_overlap/turns",))[1])]
    if shares and max(shares) > 0:
        text += (
            f" Both windows share turns in {np.mean(shares):.0%} of the episodes (those shorter than two windows): as far as they "
            "do, early and late are the same turns."
        )
    return plot.lines("early_late", "Early and late entropy", text, "entropy (nats)", rows, groups)


# ----------------------------------------------------------------------------- outcome


def success(groups: list[Group]) -> Panel:
    rows: list[Row] = success_series([run for group in groups for run in group.runs])[:4]
    unit = "mean score" if rows[0][0].endswith("(score)") else "share"
    return plot.lines("success", "Success", "Share of successful trajectories, in training and validation.", unit, rows, groups)


def likelihood(groups: list[Group]) -> Panel:
    rows = [(name, (f"{P}likelihood/{name}_log_prob_mean",)) for name in ("correct", "wrong", "valid")]
    text = "Mean log-probability per token of the samples of each class (SEAL, Fig. 5)."
    return plot.lines("likelihood", "Likelihood of trajectories", text, "nats per token", rows, groups)


def clip(groups: list[Group]) -> Panel:
    text = "Share of tokens clipped on each side (REPO, App. A.1)."
    rows: list[Row] = [("above, A > 0", (P + "clipfrac_high",)), ("below, A < 0", (P + "clipfrac_low",))]
    if not any(group.has(rows[0][1]) for group in groups):
        text = "Share of tokens clipped, by verl: both sides together, and by the dual clip of negative advantages."
        rows = [("both sides", ("actor/pg_clipfrac",)), ("dual clip", ("actor/pg_clipfrac_lower",))]
    return plot.lines("clip", "Clipped tokens", text, "share of tokens", rows, groups)


def duplication(groups: list[Group]) -> Panel:
    rows = [
        ("repeated sentences", (P + "duplication",)),
        ("invalid turns", (P + "invalid_turn_ratio",)),
        ("repeated actions", (P + "repeated_action_ratio",)),
    ]
    text = "Shares of repeated sentences in a response, of invalid turns, and of actions equal to the one before."
    return plot.lines("duplication", "Duplication and errors", text, "share", rows, groups)


def degeneracy(groups: list[Group]) -> Panel:
    models = {(item.model, item.prompt) for group in groups for run in group.runs for item in run.judgements}
    judges = ", ".join(sorted(f"{plain(model)} with prompt {plain(prompt)}" for model, prompt in models))
    text = f"Mean score of the stored trajectories, 0 clean to 10 fully degenerate, judged by {judges or 'a language model'}."
    hint = "Run verl-entropy judge RUN"
    return plot.lines("degeneracy", "Degeneracy", text, "score (0 to 10)", [("degeneracy", (JUDGED,))], groups, hint)


# ----------------------------------------------------------------------------- causes


def drift(groups: list[Group]) -> Panel:
    rows = [(f"A {sign} 0", (f"{P}interference/drift_{name}",)) for name, sign in (("positive", ">"), ("negative", "<"))]
    text = "Sum of A c over trajectories of positive and of negative advantage: the update's pull on the mean likelihood."
    return plot.lines("drift", "Interference over training", text, "nats per unit of step", rows, groups)


def interference(groups: list[Group]) -> Panel:
    """Interference against advantage before and after the first eruption (SEAL, Fig. 4)."""
    title = "Gradient interference against advantage"
    erupted = [r for g in groups for r in g.runs if plot.first_eruption(r)]
    run = next((r for r in erupted if _pairs(r) is not None), None)
    if run is None:
        why = (
            "no eruption was found" if not erupted else "no columns trajectory, advantage and interference in the per-turn arrays"
        )
        return Panel("interference", title, "", None, missing=why)
    steps, advantage, coefficient = _pairs(run)
    first, last = plot.first_eruption(run)
    sides = (("before", steps < first, 0), ("after", steps > last, 1))
    facet = Facet("coefficient c", xlabel="advantage A")
    for label, inside, color in sides:
        x, y = advantage[inside], coefficient[inside]
        facet.traces += [Trace(f"{label}: {len(x)}", x, y, color, points=True), *_fit(label, x, y, color)]
    caption = (
        f"Advantage A and coefficient c (SEAL, Lemma 3.3, Fig. 4) of {run.name} before step {first} and after step {last}, with a "
        "straight line through each."
    )
    return Panel("interference", title, caption, Chart([facet]), lambda: _paint_interference(sides, advantage, coefficient))


def _fit(label: str, x: np.ndarray, y: np.ndarray, color: int) -> list[Trace]:
    """A straight line through the points, if they have one."""
    if len(x) < 3 or np.ptp(x) == 0:
        return []
    slope, at = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    return [Trace(f"{label}: slope {slope:.2g}", ends, at + slope * ends, color)]


def _paint_interference(sides, advantage: np.ndarray, coefficient: np.ndarray) -> bytes:
    figure, (axis,) = plot.new()
    for (label, inside, color), mark in zip(sides, ("o", "^"), strict=True):
        _cloud(axis, label, advantage[inside], coefficient[inside], plot.COLORS[color], mark)
    axis.axvline(0.0, color="#888888", linewidth=0.7)
    axis.set_xlabel("advantage A")
    plot.style(axis, "coefficient c")
    plot.legend(figure, axis)
    return plot.png(figure)


def _cloud(axis, label: str, x: np.ndarray, y: np.ndarray, color: str, mark: str) -> None:
    fit = len(x) > 2 and np.ptp(x) > 0
    slope, at = np.polyfit(x, y, 1) if fit else (0.0, 0.0)
    text = f"{label}: {len(x)}" + (f", slope {slope:.2g}" if fit else "")
    axis.scatter(x, y, s=9, alpha=0.4, color=color, marker=mark, label=text, linewidths=0)
    if fit:
        ends = np.array([x.min(), x.max()])
        axis.plot(ends, at + slope * ends, color=color, linewidth=1.8)


def _numeric(columns: dict[str, np.ndarray] | None, *names: str) -> bool:
    """Whether the columns are there and hold numbers."""
    return columns is not None and all(name in columns and columns[name].dtype.kind in "biuf" for name in names)


def _pairs(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Step, advantage and coefficient of the stored trajectories that have both, thinned on each side of the eruption."""
    columns, span = run.turn_columns, plot.first_eruption(run)
    if span is None or not _numeric(columns, "interference", "advantage", "trajectory"):
        return None
    advantage, value = columns["advantage"].astype(float), columns["interference"].astype(float)
    known = np.isfinite(value) & np.isfinite(advantage)
    # The coefficient is the trajectory's; its advantage may differ by turn (step-level credit): their mean.
    ids, place = np.unique(np.stack([columns["step"], columns["trajectory"]], 1)[known], axis=0, return_inverse=True)
    count = np.bincount(place.ravel())
    step = ids[:, 0]
    advantage, value = (np.bincount(place.ravel(), weights=x[known]) / count for x in (advantage, value))
    sides = [np.flatnonzero(side) for side in (step < span[0], step > span[1])]
    chosen = np.concatenate([side[np.linspace(0, len(side) - 1, min(len(side), MAX_SCATTER)).astype(int)] for side in sides])
    return (step[chosen], advantage[chosen], value[chosen]) if len(chosen) else None


def separation(groups: list[Group]) -> Panel:
    """Two-dimensional projection of the representations at the first and last stored step."""
    title = "Correct and wrong trajectories"
    hint = "no representation in the stored trajectories"
    run, clouds = next(((r, c) for r in (r for g in groups for r in g.runs) if (c := projected(r))), (None, []))
    if run is None:
        return Panel("separation", title, "", None, missing=hint)
    facets = []
    for cloud in clouds:
        facet = Facet("second component", f"step {cloud.step} (n = {len(cloud.xy)})", xlabel="first component")
        for label, inside in (("correct", cloud.correct), ("wrong", ~cloud.correct)):
            facet.traces.append(Trace(label, *cloud.xy[inside].T, color=label, points=True))
        facets.append(facet)
    caption = f"Representations of trajectories of {run.name} (SEAL, Fig. 3) on each step's own principal components."
    return Panel("separation", title, caption, Chart(facets), lambda: _paint_separation(facets))


def _paint_separation(facets: list[Facet]) -> bytes:
    figure, axes = plot.new(1, plot.HEIGHT, len(facets))
    for axis, facet in zip(axes, facets, strict=True):
        for trace in facet.traces:
            mark = {"correct": "o", "wrong": "x"}[trace.label]
            color = plot.CLASS_COLORS[trace.label]
            axis.scatter(trace.x, trace.y, s=16, color=color, marker=mark, label=trace.label, alpha=0.7, linewidths=1.0)
        axis.set_title(facet.title, loc="left", fontsize=9)
        axis.set_xlabel("first component")
        plot.style(axis, "second component" if axis is axes[0] else "")
    plot.legend(figure, axes[0])
    return plot.png(figure)


AROUND = 40
"""Steps before the onset and after the end of an eruption in the figure of its cause."""
CAUSES: tuple[tuple[str, str, tuple[Row, ...]], ...] = (
    ("entropy", "nats", (("correct", (P + "entropy_of/correct",)), ("wrong", (P + "entropy_of/wrong",)))),
    (
        "interference",
        "nats per step",
        (("drift, A > 0", (P + "interference/drift_positive",)), ("drift, A < 0", (P + "interference/drift_negative",))),
    ),
    ("clipped tokens", "share", (("above", (P + "clipfrac_high",)), ("below", (P + "clipfrac_low",)))),
    (
        "prompt groups",
        "share",
        (("without gradient", (P + "group/zero_variance",)), ("success", (P + "success", "critic/score/mean"))),
    ),
)
"""Title, unit and series of what is looked at around an eruption."""


def cause(groups: list[Group]) -> Panel:
    """What went along with the first eruption: entropy of correct and wrong, interference, clip sides, groups, around its onset."""
    title = "Around the first eruption"
    runs = [run for group in groups for run in group.runs]
    found = [(n, run, run.spans[i]) for n, run in enumerate(runs) if (i := _eruption_of(run)) is not None]
    if not found:
        return Panel("cause", title, "", None, missing="no eruption was found")
    number, run, span = max(found, key=lambda f: sum(f[1].first_key(keys) is not None for *_, rows in CAUSES for _, keys in rows))
    low, high = span.first - AROUND, span.last + AROUND
    facets, moved = [], []
    for name, unit, rows in CAUSES:
        facet = Facet(unit, name)
        for r, (label, keys) in enumerate(rows):
            steps, values = run.series(keys)
            inside = (steps >= low) & (steps <= high)
            if not inside.any():
                continue
            color: int | str = label if label in plot.CLASS_COLORS else r
            facet.traces.append(Trace(label, steps[inside], values[inside], color, run=number))
            before = values[(steps >= span.first - AROUND // 2) & (steps < span.first)]
            during = values[(steps >= span.first) & (steps <= span.last)]
            if len(before) and len(during):
                moved.append(f"{name}, {label} {before.mean():.3g} to {during.mean():.3g}")
        if facet.traces:
            facets.append(facet)
    others = len(found) - 1
    caption = (
        f"{run.name} around its first eruption (dashed: onset, step {span.first}; its end: step {span.last}). "
        + (f"Mean of the {AROUND // 2} steps before to mean within: {'; '.join(moved)}. " if moved else "")
        + "What moves first, and most, is where to look; it need not be the cause."
        + (f" {others} more runs erupted." if others else "")
    )
    if not facets:
        keys = ", ".join(keys[0] for *_, rows in CAUSES for _, keys in rows)
        return Panel("cause", title, "", None, missing=f"no {keys}")
    shades = [(float(span.first), float(span.last), "eruption")]
    chart = Chart(facets, (low - 0.5, high + 0.5), shades, [(float(span.first), "onset", number)])
    return Panel("cause", title, caption, chart, lambda: plot.paint_lines(chart))


def _eruption_of(run: Run) -> int | None:
    return next((i for i, span in enumerate(run.spans) if span.phase == "eruption"), None)


def overlap(groups: list[Group]) -> Panel:
    rows: list[Row] = [
        ("linear-probe AUC", (P + "representation/probe_auc",)),
        ("cosine between / within", (P + "representation/ratio",)),
    ]
    text = "AUC of .5 and a ratio of 1: correct and wrong trajectories overlap."
    return plot.lines("overlap", "Separation over training", text, "AUC, ratio", rows, groups)


PANELS: tuple[Callable[[list[Group]], Panel], ...] = (
    entropy,
    cause,
    turn_heat,
    success,
    likelihood,
    early_late,
    clip,
    interference,
    drift,
    separation,
    overlap,
    duplication,
    degeneracy,
)
