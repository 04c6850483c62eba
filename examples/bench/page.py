# SPDX-License-Identifier: Apache-2.0
"""``recipes/bench/README.md`` and its figures, from the result files and nothing else."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.claims import PREDICTORS, WINDOWS
from bench.outcome import COLLAPSED, ENDS, ERUPTED, halved, lost, running
from bench.plan import BASE, METHODS, QUICKSTART, RESULTS, TUNING_SEEDS, WORLDS
from bench.statistics import LEAST_SEEDS, Estimate, difference, improvement, interquartile_mean

FLAGS = ("collapsed", "erupted", "lost_half")
JUDGED = {"auc": "area under the curve", "held_out_final": "final held-out success", "entropy_final": "entropy at the end"}
"""What methods are told apart by."""
AGAIN = "again"
"""Folder beside the results of runs that were made a second time."""
CUT = "cut"
"""Folder beside the results of runs that did not reach their last step."""
LEAST_RUNS = 5
"""Runs without which nothing is said of causes, and no method is named in the project's README."""
RATE = "actor_rollout_ref.actor.optim.lr"
TARGET = "algorithm.entropy.target"
REACHED = 0.9
"""Of GRPO's best success: where tokens are compared."""
SETTLING, NEAR, AROUND = 20, 0.1, 4
"""Steps that a target may take, how near to it counts, and steps on either side that a step is compared with."""
Run = dict[str, Any]
Cell = dict[int, Run]
"""Runs of a method in a world and regime, by seed."""


def stored(folder: Path) -> list[Run]:
    """The result files below a folder, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/*/*.json"))]


def load(results: Path, tuning: bool = False) -> dict[tuple[str, str], dict[str, Cell]]:
    """Cells by (world, regime) and method, in the plan's order; the tuning seeds' only if asked for."""
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for run in stored(results):
        if (run["seed"] >= TUNING_SEEDS) == tuning:
            found.setdefault((run["world"], run["regime"]), {}).setdefault(run["method"], {})[run["seed"]] = run
    order = [(w, r) for w in WORLDS for r in WORLDS[w].regimes if (w, r) in found]
    return {key: {m: dict(sorted(found[key][m].items())) for m in METHODS if m in found[key]} for key in order}


def score(runs: Iterable[Run], name: str) -> list[float]:
    """One number of each run's outcome."""
    return [run["outcome"][name] for run in runs]


def versus(cell: Cell, base: Cell, name: str) -> Estimate | None:
    """Paired difference to the base over the seeds that both have."""
    seeds = [s for s in cell if s in base]
    if not seeds:
        return None
    return difference([score((cell[s] for s in seeds), name)], [score((base[s] for s in seeds), name)])


def shared(base: Cell, cell: Cell) -> Cell:
    """The base's runs of the seeds that the method has: seeds differ more than methods."""
    return {seed: run for seed, run in base.items() if seed in cell}


def share(cell: Cell, flag: str) -> str:
    return f"{sum(score(cell.values(), flag))}/{len(cell)}"


def ruled(head: str) -> list[str]:
    """The head of a table, with the line under it."""
    return [head, "|" + "---|" * (head.count("|") - 1)]


def told_beside(words: str, head: str, rows: Sequence[str]) -> list[str]:
    """A table under its words; nothing where it has no rows."""
    return [words, "", *ruled(head), *rows, ""] if rows else []


def gained(run: Run, base: Run | None) -> str:
    """Area under the curve minus GRPO's of the same seed, where it was run."""
    return "" if base is None else f"{run['outcome']['auc'] - base['outcome']['auc']:+.3f}"


def row(method: str, cell: Cell, base: Cell) -> str:
    """A line of a table."""
    runs = list(cell.values())
    plain, filtered = method == BASE, METHODS[method].filtered
    gain = None if plain or filtered else versus(cell, base, "auc")
    same = shared(base, cell)
    better = None if plain or not same else improvement([score(runs, "held_out_final")], [score(same.values(), "held_out_final")])
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


def known(run: Run, name: str) -> list[float]:
    """The values of a curve, without the steps that have none."""
    return [v for v in run["curves"].get(name, ()) if v is not None]


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
                for name, form in (("success", ".2f"), ("entropy", ".3f"))
                if (values := known(run, name))
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


def ends(cells: dict[str, Cell]) -> list[str]:
    """A row a run, where GRPO lost half in most seeds: how it went down, or did not."""
    base = [run["outcome"]["lost_half"] for run in cells.get(BASE, {}).values()]
    if sum(base) <= len(base) / 2:
        return []
    counts = [f"{METHODS[m].title} {sum(bool(lost(run)) for run in cell.values())} of {len(cell)}" for m, cell in cells.items()]
    lines = [
        f"Runs that collapsed, erupted, or lost half of their success in training or held out: {'; '.join(counts)}.",
        "",
        f"How each run went: success of {ENDS} steps, valid actions, and entropy of wrong trajectories (means of {ENDS} steps; the highest of "
        f"{ENDS // 2}), and the largest KL between the policies before and after the updates of a step.",
        "",
        *ruled(
            "| method | seed | success, best -> final | valid actions, first -> final | entropy of wrong ones, first -> highest -> final | KL |"
        ),
    ]
    for method, cell in cells.items():
        for run in cell.values():
            valid, wrong, kl = (known(run, name) or [float("nan")] for name in ("valid_actions", "entropy_wrong", "kl_old"))
            lines.append(
                f"| {METHODS[method].title} | {run['seed']} | {run['outcome']['success_best']:.2f} -> {run['outcome']['success_final']:.2f} | "
                f"{fmean(valid[:ENDS]):.2f} -> {fmean(valid[-ENDS:]):.2f} | {fmean(wrong[:ENDS]):.2f} -> "
                f"{max(running(wrong, ENDS // 2)):.2f} -> {fmean(wrong[-ENDS:]):.2f} | {max(kl):.2f} |"
            )
    return [*lines, ""]


def spent(run: Run, level: float) -> float | None:
    """Response tokens generated until the success of ten steps first reached ``level``; None: never, or not recorded."""
    success, generated = known(run, "success"), known(run, "generated_tokens")
    if len(generated) != len(success):
        return None
    reached = (i for i, mean in enumerate(running(success, ENDS)) if mean >= level)
    first = next(reached, None)
    return None if first is None else sum(generated[: first + ENDS])


def saved_until(run: Run, base: Run | None) -> str:
    """The share of GRPO's tokens that a run saved until it had REACHED of GRPO's best success; "never" if it never had."""
    if base is None:
        return ""
    level = REACHED * max(running(known(base, "success"), ENDS))
    if not (plain := spent(base, level)):
        return ""
    own = spent(run, level)
    return "never" if own is None else f"{1 - own / plain:.0%}"


def tokens(cells: dict[str, Cell]) -> list[str]:
    """A row a run whose leaves share turns: what sampling each leaf from its start would have generated, and what was generated."""
    lines = []
    base = cells.get(BASE, {})
    for method, cell in cells.items():
        for seed, run in cell.items():
            generated, reused = (sum(known(run, f"{name}_tokens")) for name in ("generated", "reused"))
            if reused:
                lines.append(
                    f"| {METHODS[method].title} | {seed} | {(generated + reused) / 1000:.0f} | {generated / 1000:.0f} | "
                    f"{reused / (generated + reused):.0%} | {gained(run, base.get(seed))} | "
                    f"{saved_until(run, base.get(seed))} |"
                )
    return told_beside(
        "What branching saves: thousands of response tokens in the episodes of all training steps, those that were sampled, the share that was "
        "taken over from another leaf instead, and the area under the curve minus GRPO's of the same seed. At equal success: of the "
        f"tokens that GRPO of this seed generated until ten steps had {REACHED:.0%} of its best ten's success, the share that the run "
        "saved until it had as much (empty where GRPO's tokens were not recorded).",
        "| method | seed | tokens of the leaves | generated | saved | area - GRPO's | saved at equal success |",
        lines,
    )


def near(values: Sequence[float], others: Sequence[float]) -> str:
    """The share of values within NEAR of the others beside them."""
    return f"{fmean(abs(value / other - 1) <= NEAR for value, other in zip(values, others, strict=True)):.0%}"


def held_row(method: str, seed: int, run: Run, target: float, base: Run | None) -> str:
    """How near entropy was to a target after the first steps, and success; GRPO was asked for none."""
    entropy = known(run, "entropy")
    late = entropy[SETTLING:]
    around = [fmean(entropy[max(0, i - AROUND) : i] + entropy[i + 1 : i + 1 + AROUND]) for i in range(SETTLING, len(entropy))]
    asked, gain = ("", "") if method == BASE else (f"{target:g}", gained(run, base))
    return (
        f"| {METHODS[method].title} | {seed} | {asked} | {fmean(late):.3f} ({min(late):.3f} to {max(late):.3f}) | "
        f"{near(late, [target] * len(late))} | {near(late, around)} | {run['outcome']['held_out_final']:.2f} | {gain} |"
    )


def holding(cells: dict[str, Cell]) -> list[str]:
    """A row a run with a target, GRPO's of the same seed before them."""
    base = cells.get(BASE, {})
    held = [
        (method, seed, run, float(run["settings"][TARGET]))
        for method, cell in cells.items()
        for seed, run in cell.items()
        if TARGET in run.get("settings", {})
    ]
    targets = {seed: target for _, seed, _, target in held}
    plain = [(BASE, seed, run, targets[seed]) for seed, run in base.items() if seed in targets]
    lines = [
        held_row(method, seed, run, target, base.get(seed))
        for method, seed, run, target in [*plain, *held]
        if len(known(run, "entropy")) > SETTLING
    ]
    return told_beside(
        f"Entropy that is held at a target, in nats: its mean and range after the first {SETTLING} steps, and the share of these steps within "
        f"{NEAR:.0%} of it; GRPO beside it, without a target. A step's entropy is measured on its own episodes and wavers by itself: the "
        f"share of steps within {NEAR:.0%} of the mean of the {2 * AROUND} steps around is about what can be asked for.",
        "| method | seed | target | entropy | near the target | near the steps around | held out, final | area - GRPO's |",
        lines,
    )


def sampled(cells: dict[str, Cell]) -> list[str]:
    """How many groups dynamic sampling sampled for those that it trained on."""
    lines = []
    for method, cell in ((m, c) for m, c in cells.items() if METHODS[m].filtered):
        more = [sum(sum(known(run, f"{name}_groups")) for name in ("evicted", "surplus")) / run["steps"] for run in cell.values()]
        each = ", ".join(f"{value:.0f} (seed {seed})" for value, seed in zip(more, cell, strict=True))
        lines += [
            f"Groups that {METHODS[method].title} sampled in a step besides those that it trained on, in the mean: {each}.",
            "",
        ]
    return lines


def told_of_causes(cells: dict[str, Cell]) -> list[str]:
    """Whether what the papers say moves entropy did, over the runs of a regime that recorded it."""
    runs = [run["claims"] for cell in cells.values() for run in cell.values() if run.get("claims", {}).get("predictors")]
    if len(runs) < LEAST_RUNS:
        return []
    lines = [
        f"What the papers say moves entropy, over {len(runs)} runs of all methods: Spearman's rank correlation of a predictor with the change "
        "of entropy that follows, both averaged over so many steps, in each run (0: it tells nothing; a trend alone gives none), and mean and "
        "95 % interval of that over the runs.",
        "",
        *ruled(f"| predictor | {' | '.join(f'over {w}' for w in WINDOWS)} |"),
    ]
    for name, title in PREDICTORS.items():
        columns = [over([run["predictors"].get(name, {}).get(str(w)) for run in runs]) for w in WINDOWS]
        if any(columns):
            lines.append(f"| {title} | {' | '.join(columns)} |")
    turns = [run["turns"] for run in runs if run["turns"] and None not in run["turns"].values()]
    if len(turns) >= LEAST_RUNS:
        early, late, together, leads, follows = (
            over([t[key] for t in turns]) for key in ("early", "late", "together", "early_leads", "late_leads")
        )
        lines += [
            "",
            f"EPO's cascade, in which late turns inherit what early ones explored: entropy of the first two turns {early}, of the last two "
            f"{late}; rank correlation of their changes over 5 steps {together}, of early changes with late ones a mean later "
            f"{leads}, of late ones with early ones a mean later {follows}.",
        ]
    return [*lines, ""]


def over(values: Sequence[float | None]) -> str:
    """Mean and 95 % interval of Student's t; empty under LEAST_RUNS."""
    found = [v for v in values if v is not None]
    return difference([found], [[0.0] * len(found)]).text() if len(found) >= LEAST_RUNS else ""


def starting(cells: dict[str, Cell]) -> str:
    runs = [run for cell in cells.values() for run in cell.values()]
    first, held = score(runs, "entropy_first"), score(runs, "held_out_first")
    return (
        f"Entropy at the first step: {min(first):.2f} to {max(first):.2f} nats a token; held-out success before training: "
        f"{min(held):.2f} to {max(held):.2f}."
    )


def render(results: Path) -> str:
    """The page."""
    found = load(results)
    runs = [run for cells in found.values() for cell in cells.values() for run in cell.values()]
    lines = [
        "# The bench",
        "",
        "Entropy methods against plain GRPO under one trainer (verl's V1), with equal steps, the same tasks, warm starts and seeds.",
        "Written from `results/` by `bash examples/bench.sh --page`; do not edit.",
        "",
        "```bash",
        "pip install -e '.[bench]'",
        "bash examples/bench.sh                                   # what is missing of the worlds for a CPU, on all cores, then this page",
        "bash examples/bench.sh --method none,gigpo --seeds 0-4   # some of it",
        "bash examples/bench.sh --world frozen_lake_card --model FOLDER --cards 0,1 --jobs 6   # SmolLM2-135M-Instruct, with the extra vllm",
        "```",
        "",
    ]
    for (world, regime), cells in found.items():
        spec = WORLDS[world]
        chosen = spec.regimes[regime]
        lines += [
            f"## {spec.title}, {regime}",
            "",
            f"{spec.text} Here: {chosen.why}, {chosen.steps} steps. {starting(cells)}",
            "",
            *table(cells),
            "",
            *verdicts(cells),
            "",
            f"![success and entropy]({world}-{regime}.png)",
            "",
            *tokens(cells),
            *sampled(cells),
            *holding(cells),
            *ends(cells),
            *told_of_causes(cells),
            *([chosen.reading, ""] if chosen.reading else []),
        ]
    if not runs:
        return "\n".join([*lines, "No runs yet.", ""])
    intervals = sum(len(cells) - 1 for cells in found.values()) * len(JUDGED)
    lines += [
        "## How to read it",
        "",
        f"- Held-out success: mean of the splits ({', '.join(f'{w.title} {len(w.splits)} x {w.episodes}' for w in WORLDS.values())} episodes), "
        'sampled at temperature 1, at the start and the end of the run, in the household in the middle, too; "best" is the highest of these. '
        "One such value has a standard error of up to .03 in the household, .02 in the lake, .014 in the bandit.",
        "- Area under the curve: mean success of all training steps; each step has new tasks, so it is success on unseen tasks, too, and less "
        "noisy than a validation.",
        "- Held out and area are interquartile means over seeds. Their intervals, and P's: 95 %, stratified bootstrap over seeds (percentile), "
        "which with five seeds is narrower than it should be. Paired: mean of the method's run minus GRPO's of the same seed, which begin with "
        "the same warm start and tasks, with a 95 % interval of Student's t. P(final > GRPO's): of a run of the method and one of GRPO, "
        "both drawn from the seeds that the method has. Rows of other numbers of seeds compare in these columns only. No interval "
        f"under {LEAST_SEEDS} seeds. Above and below GRPO: the paired interval leaves out 0.",
        f"- Collapsed: mean entropy of the last {ENDS} steps under {COLLAPSED:g} of that of the first {ENDS}. Erupted: mean entropy of some "
        f"{ENDS // 2} steps at least {ERUPTED:g} times that of the first {ENDS}. Lost half: success of the last {ENDS} steps at most half "
        f"of the best {ENDS}. Held out halved: held-out success at the end at most half of its best. Dynamic sampling trains on groups whose "
        "rollouts differ in success, so that its training success is theirs; where it is the method, held-out success alone compares.",
        "- A method is its preset with the coefficients of its paper, some of which bring other settings along (DAPO's clip bounds with REPO "
        "and the adaptive bonus; see `verl_entropy/config/conf/entropy`). Nothing was tuned for these worlds.",
        "",
        "## What this does not show",
        "",
        f"- {intervals} intervals at 95 %: about one in twenty leaves out the truth by chance, and none is corrected for their number.",
        "- A policy of 0.2 M parameters in a world of its own says how methods behave in this regime; it does not rank them for large models.",
        "- Equal tuning: the papers' coefficients only; another coefficient may do better.",
        "- The regimes are learning rates; mini-batches, epochs and negative-heavy groups were not varied.",
        "",
        *seeds_run(found),
        "",
        "## Tuning seeds",
        "",
        f"Plain GRPO on seeds from {TUNING_SEEDS} up, for choosing the regimes. Entropy, in nats a token: first {ENDS // 2} steps -> the "
        f"{ENDS // 2} steps in which that of wrong trajectories was highest.",
        "",
        *(tuning(results) or ["- none reached its end: the rates come from single runs of an earlier commit."]),
        "",
        *reruns(results.parent / AGAIN, found),
        *cut(results.parent / CUT),
        "## Where the runs come from",
        "",
        *origin(runs),
        "",
    ]
    return "\n".join(lines)


def draw(cells: dict[str, Cell], path: Path) -> None:
    """A column a method: success (above) and entropy (below), each seed thin, their mean bold, GRPO's mean grey."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = len(cells)
    figure, axes = plt.subplots(
        2, columns, figsize=(1 + 1.5 * columns, 3.6), sharex=True, sharey="row", layout="constrained", squeeze=False
    )
    for curve, line in (("success", axes[0]), ("entropy", axes[1])):
        means = {m: mean_curve(cell, curve) for m, cell in cells.items()}
        for axis, (method, cell) in zip(line, cells.items(), strict=True):
            for run in cell.values():
                axis.plot(*smooth(run["curves"][curve]), color="tab:blue", lw=0.5, alpha=0.5)
            if same := shared(cells.get(BASE, {}), cell):
                axis.plot(*smooth(mean_curve(same, curve)), color="0.4", lw=1.6)
            if method != BASE:
                axis.plot(*smooth(means[method]), color="tab:blue", lw=1.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=7)
        line[0].set_ylabel("success" if curve == "success" else "entropy, nats a token", fontsize=8)
        line[0].set_ylim(bottom=0)
    for axis, method in zip(axes[0], cells, strict=True):
        axis.set_title(textwrap.fill(METHODS[method].title, 22), fontsize=8)
    figure.supxlabel(
        textwrap.fill(
            f"training step (running mean of {ENDS // 2}; thin: seeds, blue: their mean, grey: GRPO's mean of the same seeds)",
            int(15 * figure.get_figwidth()),
        ),
        fontsize=8,
    )
    figure.savefig(path, dpi=90)
    plt.close(figure)


def mean_curve(cell: Cell, name: str) -> list[float]:
    """Mean over seeds at each step that all of them have."""
    return np.mean([[np.nan if v is None else v for v in values] for values in equal_length(cell, name)], axis=0).tolist()


def equal_length(cell: Cell, name: str) -> list[list[float | None]]:
    found = [run["curves"][name] for run in cell.values()]
    return [values[: min(map(len, found))] for values in found]


def smooth(values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    known = [float("nan") if v is None else v for v in values]
    means = running(known, ENDS // 2)
    first = 1 + (len(known) - len(means)) / 2
    return [first + i for i in range(len(means))], means


def baseline(results: Path) -> str:
    """Plain GRPO in the healthy household, which the quickstart shows beside its own run: JSON text."""
    runs = load(results)["household", "healthy"][BASE]
    curves = np.array([run["curves"]["success"] for run in runs.values()])
    last = {split: [run["held_out"][split][-1] for run in runs.values()] for split in WORLDS["household"].splits}
    content = {
        "source": "recipes/bench/results/household/healthy, by bash examples/bench.sh --page",
        "seeds": sorted(runs),
        "steps": curves.shape[1],
        "commits": sorted({run["commit"] for run in runs.values()}),
        **last,
        "low": curves.min(0).tolist(),
        "high": curves.max(0).tolist(),
    }
    return json.dumps(content, indent=1) + "\n"


def write_page(results: Path) -> Path:
    """README.md and one figure for each world and regime, beside ``results``; of the committed results the quickstart's baseline, too."""
    page = results.parent / "README.md"
    if results.resolve() == RESULTS:
        QUICKSTART.write_text(baseline(results), encoding="utf-8")
    for (world, regime), cells in load(results).items():
        draw(cells, results.parent / f"{world}-{regime}.png")
    page.write_text(render(results), encoding="utf-8")
    return page
