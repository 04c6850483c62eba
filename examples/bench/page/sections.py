# SPDX-License-Identifier: Apache-2.0
"""What stands under a table: how runs were lost, what branching saved, how near entropy was to a target, what moves entropy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.claims import PREDICTORS, WINDOWS
from bench.outcome import ENDS, lost, running
from bench.page.cells import LEAST_RUNS, Cell, Run, gained, known, ruled, score, shared, told_beside
from bench.plan import BASE, METHODS
from bench.statistics import difference

TARGET = "algorithm.entropy.target"
REACHED = 0.9
"""Of GRPO's best success: where tokens are compared."""
SETTLING, NEAR, AROUND = 20, 0.1, 4
"""Steps that a target may take, how near to it counts, and steps on either side that a step is compared with."""


def ends(cells: dict[str, Cell]) -> list[str]:
    """A row a run, where one of GRPO's collapsed, erupted or lost half: how it went down, or did not."""
    if not any(lost(run) for run in cells.get(BASE, {}).values()):
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


KINDS = ("entropy", "entropy_wrong", "entropy_correct", "entropy_valid")
"""Curves of entropy: of all trajectories, and of some of them."""


def eruptions(cells: dict[str, Cell]) -> list[str]:
    """A row a run that erupted: in which trajectories entropy was when it was highest."""
    rows = []
    for method, cell in cells.items():
        for run in (run for run in cell.values() if run["outcome"]["erupted"]):
            means = running(known(run, "entropy"), ENDS // 2)
            at = means.index(max(means))
            rows.append(
                f"| {METHODS[method].title} | {run['seed']} | {at + 1} to {at + ENDS // 2} | "
                + " | ".join(_rise(run["curves"].get(kind, ()), at) for kind in KINDS)
                + " |"
            )
    return told_beside(
        f"Eruptions: mean entropy of the first {ENDS} steps -> of the {ENDS // 2} in which that of all was highest, of trajectories that "
        "failed, that succeeded, and whose every turn was valid (none: there were none; empty: not recorded).",
        "| method | seed | steps | of all | of wrong ones | of correct ones | of valid ones |",
        rows,
    )


def _rise(curve: Sequence[float | None], at: int) -> str:
    """Of one kind of trajectories: the start's mean -> that of the steps from ``at`` on."""
    if not curve:
        return ""
    parts = ([v for v in part if v is not None] for part in (curve[:ENDS], curve[at : at + ENDS // 2]))
    return " -> ".join(f"{fmean(part):.2f}" if part else "none" for part in parts)


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
    for method, cell in cells.items():
        base = shared(cells.get(BASE, {}), cell)
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
        held_row(method, seed, run, target, shared(base, {seed: run}).get(seed))
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
