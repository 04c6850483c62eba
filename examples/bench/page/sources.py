# SPDX-License-Identifier: Apache-2.0
"""Where the results come from: seeds that were run, tuning seeds, runs made again, cut runs, commits and machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

from bench.outcome import ENDS
from bench.page.cells import Cell, Run, known, load, ruled, score, shared, stored
from bench.plan import BASE, METHODS, WORLDS
from bench.statistics import interquartile_mean

AGAIN = "again"
"""Folder beside the results of runs that were made a second time."""
CUT = "cut"
"""Folder beside the results of runs that did not reach their last step."""
CUT_CURVES = (("success", "success", ".2f"), ("entropy", "entropy", ".3f"), ("of wrong trajectories", "entropy_wrong", ".3f"))
"""What is told of a cut run: in words, the curve, how a number is written."""
RATE = "actor_rollout_ref.actor.optim.lr"


def seeds_run(found: dict[tuple[str, str], dict[str, Cell]]) -> list[str]:
    """How many seeds of each method every world and regime has."""
    places = [(w, r) for w in WORLDS for r, spec in WORLDS[w].regimes.items() if not spec.candidate]
    lines = ruled(f"| method | {' | '.join(f'{WORLDS[w].title}, {r}' for w, r in places)} |")
    for method, spec in METHODS.items():
        counts = [len(found.get(place, {}).get(method, ())) for place in places]
        lines.append(f"| {spec.title} | {' | '.join(str(n or '') for n in counts)} |")
    return ["Seeds that were run; five are meant, and an empty field has none:", "", *lines]


def counted(values: Iterable[str]) -> str:
    """``a (3 runs), b (1 run)``."""
    return ", ".join(f"{v} ({n} run{'s' if n > 1 else ''})" for v, n in sorted(Counter(values).items()))


def origin(runs: Sequence[Run]) -> list[str]:
    """Where the runs come from."""
    versions = [", ".join(f"{k} {v}" for k, v in run["versions"].items()) for run in runs]
    machines = [
        ", ".join([*(m[k] for k in ("card", "processor") if k in m), f"{m['cores']} cores, {m['runs_at_once']} runs at once"])
        for m in (run["machine"] for run in runs)
    ]
    return [
        f"- {len(runs)} runs, {sum(run['seconds'] for run in runs) / 3600:.1f} hours of training in all, "
        f"ended {span(run['ended'] for run in runs)}.",
        f"- Commit: {counted(run['commit'] for run in runs)}.",
        f"- Versions: {counted(versions)}.",
        f"- Machine: {counted(machines)}.",
    ]


def span(values: Iterable[str]) -> str:
    first, *rest = sorted(set(values))
    return f"{first} to {rest[-1]}" if rest else first


def tuning(results: Path) -> list[str]:
    """What GRPO did on the tuning seeds, a row a run."""
    head = "| world | learning rate | seed | held out, first -> final | success of 10 steps, best -> final | entropy of wrong trajectories |"
    lines = ruled(head + " of correct ones |")
    for (world, regime), cells in load(results, tuning=True).items():
        for run in cells.get(BASE, {}).values():
            found, (wrong, correct) = run["outcome"], apart(run)
            lines.append(
                f"| {WORLDS[world].title} | {regime.removeprefix('rate_')} | {run['seed']} | {found['held_out_first']:.2f} -> "
                f"{found['held_out_final']:.2f} | {found['success_best']:.2f} -> {found['success_final']:.2f} | {wrong} | {correct} |"
            )
    return lines if len(lines) > 2 else []


def apart(run: Run) -> tuple[str, str]:
    """Entropy of wrong and of correct trajectories over the first 5 steps, and over those where that of the wrong ones was highest."""
    width = ENDS // 2
    curves = (run["curves"]["entropy_wrong"], run["curves"]["entropy_correct"])
    pairs = [pair for pair in zip(*curves, strict=True) if None not in pair]
    if len(pairs) < width:
        return "", ""
    means = [[fmean(column) for column in zip(*pairs[i : i + width], strict=True)] for i in range(len(pairs) - width + 1)]
    (wrong, correct), (high, then) = means[0], max(means)
    return f"{wrong:.2f} -> {high:.2f}", f"{correct:.2f} -> {then:.2f}"


def unpaired(found: dict[tuple[str, str], dict[str, Cell]]) -> list[str]:
    """Runs that are compared with none of GRPO's, as the one of their seed began with another policy."""
    lines = []
    for (world, regime), cells in found.items():
        base = cells.get(BASE, {})
        for method, cell in cells.items():
            same = shared(base, cell)
            if alone := [str(seed) for seed in cell if seed in base and seed not in same]:
                lines.append(f"{WORLDS[world].title}, {regime}, {METHODS[method].title}: {', '.join(alone)}")
    if not lines:
        return []
    return [f"- Seeds whose warm start is not that of GRPO's, so that they are not paired: {'; '.join(lines)}."]


def cut(folder: Path) -> list[str]:
    """Runs that did not reach their last step, with how they began and how they stood."""
    runs = stored(folder)
    if not runs:
        return []
    lines = ["## Cut runs", "", "In no table and no figure; success and entropy are means of five steps.", ""]
    for why in dict.fromkeys(run["cut"] for run in runs):
        lines += [f"Because {why}:", ""]
        for run in (run for run in runs if run["cut"] == why):
            moved = [
                f"{name} {fmean(values[: ENDS // 2]):{form}} -> {fmean(values[-(ENDS // 2) :]):{form}}"
                for name, curve, form in CUT_CURVES
                if (values := known(run, curve))
            ]
            rate, planned = (run["settings"][key] for key in (RATE, "trainer.total_training_steps"))
            lines.append(
                f"- {WORLDS[run['world']].title}, {METHODS[run['method']].title}, learning rate {rate}, seed {run['seed']}, "
                f"{run['steps']} of {planned} steps: {', '.join(moved)}."
            )
        lines.append("")
    return lines


def reruns(folder: Path, found: dict[tuple[str, str], dict[str, Cell]]) -> list[str]:
    """Runs of a cell made again from nothing, beside the cell's interval."""
    lines = []
    for run in stored(folder):
        cell = found[run["world"], run["regime"]][run["method"]]
        interval, first = interquartile_mean([score(cell.values(), "held_out_final")]), cell[run["seed"]]["outcome"]
        lines.append(
            f"- {WORLDS[run['world']].title}, {run['regime']}, {METHODS[run['method']].title}, seed {run['seed']}, commit {run['commit']}: "
            f"held-out success at the end {run['outcome']['held_out_final']:.2f}, in the table {first['held_out_final']:.2f} "
            f"for this seed and {interval.text()} for the cell."
        )
    if not lines:
        return []
    return [
        "## Made again",
        "",
        "From nothing (data, warm start, training), another time. The sampler's batches depend on the order in which episodes end, so a seed "
        "does not give the same run twice.",
        "",
        *lines,
        "",
    ]
