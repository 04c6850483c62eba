# SPDX-License-Identifier: Apache-2.0
"""The figures of a report, by matplotlib; a figure whose series are missing says which."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from verl_entropy.runs.report import plot
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
    runs = [run for group in groups for run in group.runs][: plot.MAX_STRIPS]
    tall = 0.24 * len(runs)
    figure, (axis, strips) = plot.new(2, plot.HEIGHT + tall, sharex=True, height_ratios=[2.2, max(tall, 0.24)])
    drawn = [plot.line(axis, g, ENTROPY, g.label, *plot.group_style(i)) for i, g in enumerate(groups)]
    if not any(drawn):
        return Panel("entropy", title, caption, None, "no " + " or ".join(ENTROPY))
    plot.shade(axis, groups)
    for row, run in enumerate(runs):
        _strip(strips, row, run)
    strips.set_yticks(range(len(runs)), [plain(run.name, 16) for run in runs], fontsize=7.5)
    strips.set_ylim(len(runs) - 0.5, -0.5)
    plot.over_steps(strips, groups)
    strips.spines[["top", "right", "left"]].set_visible(False)
    strips.tick_params(left=False)
    plot.style(axis, "entropy (nats)")
    if sum(len(group.runs) for group in groups) > 1:
        plot.legend(figure, axis)
    _phase_legend(figure, runs)
    return Panel("entropy", title, caption, plot.png(figure))


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


def turn_heat(groups: list[Group], most: int = 4) -> Panel:
    """Entropy by step and turn index, one map per group."""
    title = "Entropy by turn"
    caption = "Mean entropy of a turn's tokens by its index in the episode; white: no such turn. Of several seeds: the first."
    found = [(group.runs[0].name, _heat(group.runs[0])) for group in groups]
    maps = [(name, heat) for name, heat in found if heat is not None]
    if not maps:
        return Panel("turn_heat", title, caption, None, f"no {P}turn_entropy/<k>, and no per-turn arrays with turn and entropy")
    maps, top = maps[:most], max(float(np.nanmax(table)) for _, (_, table) in maps)
    figure, axes = plot.new(len(maps), plot.HEIGHT if len(maps) == 1 else 0.7 + 1.45 * len(maps), sharex=True)
    for axis, (label, (steps, table)) in zip(axes, maps, strict=True):
        edges = np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])
        rows = np.arange(len(table) + 1) - 0.5
        image = axis.pcolormesh(edges, rows, table, vmin=0.0, vmax=max(top, 1e-9), cmap="cividis", rasterized=True)
        axis.set_ylabel("turn")
        axis.yaxis.get_major_locator().set_params(integer=True)
        if len(groups) > 1:
            axis.set_title(plain(label), loc="left", fontsize=9)
    plot.over_steps(axes[-1], groups)
    bar = figure.colorbar(image, ax=list(axes), fraction=0.06, pad=0.02)
    bar.set_label("entropy (nats)", size=9)
    bar.ax.tick_params(labelsize=8.5)
    return Panel("turn_heat", title, caption, plot.png(figure))


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
        return Panel("interference", title, "", None, why)
    steps, advantage, coefficient = _pairs(run)
    first, last = plot.first_eruption(run)
    figure, (axis,) = plot.new()
    for label, inside, color, mark in (
        ("before", steps < first, plot.COLORS[0], "o"),
        ("after", steps > last, plot.COLORS[1], "^"),
    ):
        _cloud(axis, label, advantage[inside], coefficient[inside], color, mark)
    axis.axvline(0.0, color="#888888", linewidth=0.7)
    axis.set_xlabel("advantage A")
    plot.style(axis, "coefficient c")
    plot.legend(figure, axis)
    caption = (
        f"Advantage A and coefficient c (SEAL, Lemma 3.3, Fig. 4) of {plain(run.name)} before step {first} and after step "
        f"{last}, with a straight line through each."
    )
    return Panel("interference", title, caption, plot.png(figure))


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
        return Panel("separation", title, "", None, hint)
    figure, axes = plot.new(1, plot.HEIGHT, len(clouds))
    for axis, cloud in zip(axes, clouds, strict=True):
        for label, inside, mark in (("correct", cloud.correct, "o"), ("wrong", ~cloud.correct, "x")):
            x, y = cloud.xy[inside].T
            axis.scatter(x, y, s=16, color=plot.CLASS_COLORS[label], marker=mark, label=label, alpha=0.7, linewidths=1.0)
        axis.set_title(f"step {cloud.step} (n = {len(cloud.xy)})", loc="left", fontsize=9)
        axis.set_xlabel("first component")
        plot.style(axis, "second component" if axis is axes[0] else "")
    plot.legend(figure, axes[0])
    caption = f"Representations of trajectories of {plain(run.name)} (SEAL, Fig. 3) on each step's own principal components."
    return Panel("separation", title, caption, plot.png(figure))


def overlap(groups: list[Group]) -> Panel:
    rows: list[Row] = [
        ("linear-probe AUC", (P + "representation/probe_auc",)),
        ("cosine between / within", (P + "representation/ratio",)),
    ]
    text = "AUC of .5 and a ratio of 1: correct and wrong trajectories overlap."
    return plot.lines("overlap", "Separation over training", text, "AUC, ratio", rows, groups)


PANELS: tuple[Callable[[list[Group]], Panel], ...] = (
    entropy,
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
