# SPDX-License-Identifier: Apache-2.0
"""From outcomes to the numbers that are reported, as JSON and as a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from verl_entropy.evaluate.play import Outcome
from verl_entropy.evaluate.statistics import interval, pass_at_k, powers_of_two

OOD_WORDS = ("unseen", "ood", "out_of_distribution", "challenge")
"""A split with one of these in its name holds what training has not seen the like of; every other one counts as IID."""


def distribution(split: str) -> str:
    """``ood`` or ``iid``, by the name of the split."""
    return "ood" if any(word in split for word in OOD_WORDS) else "iid"


def rates(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Success with its 95 % interval, pass@k and the means of some outcomes."""
    by_task: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_task[outcome.split, outcome.task].append(outcome)
    successes, samples = [sum(o.success for o in t) for t in by_task.values()], [len(t) for t in by_task.values()]
    low, high, method = interval(successes, samples)
    turns = sum(o.turns for o in outcomes)
    fewest = min(samples)
    return {
        "tasks": len(by_task),
        "episodes": len(outcomes),
        "success": sum(successes) / len(outcomes),
        "interval_95": [low, high],
        "interval_method": method,
        "pass_at_k": {
            str(k): sum(pass_at_k(n, c, k) for n, c in zip(samples, successes, strict=True)) / len(samples)
            for k in powers_of_two(fewest)
        },
        "return": sum(o.episode_return for o in outcomes) / len(outcomes),
        "turns": turns / len(outcomes),
        "valid_actions": sum(o.valid for o in outcomes) / turns if turns else None,
        "cut_answers": sum(o.cut for o in outcomes) / turns if turns else None,
        "ended": dict(sorted(Counter(o.ended for o in outcomes if o.ended).items())),
        "environment_failures": sum(bool(o.failed) for o in outcomes),
    }


def per_seed(outcomes: Sequence[Outcome]) -> list[float]:
    """Success of each pass over the tasks."""
    passes: dict[int, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        passes[outcome.sample].append(outcome.success)
    return [sum(p) / len(p) for _, p in sorted(passes.items())]


def summarise(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Everything about an evaluation, as plain values."""
    splits: dict[str, Any] = {}
    for split in dict.fromkeys(o.split for o in outcomes):
        chosen = [o for o in outcomes if o.split == split]
        families = sorted({o.task_type for o in chosen} - {""})
        splits[split] = {
            "distribution": distribution(split),
            **rates(chosen),
            "per_seed": per_seed(chosen),
            "families": {f: rates([o for o in chosen if o.task_type == f]) for f in families},
        }
    sides = {side: [o for o in outcomes if distribution(o.split) == side] for side in ("iid", "ood")}
    turns, tokens = sum(o.turns for o in outcomes), sum(o.tokens for o in outcomes)
    return {
        "splits": splits,
        **{side: rates(chosen) for side, chosen in sides.items() if chosen},
        "throughput": {
            "seconds": round(seconds, 3),
            "episodes_per_s": len(outcomes) / seconds,
            "turns_per_s": turns / seconds,
            "tokens_per_s": tokens / seconds if tokens else None,
        },
    }


def table(summary: dict[str, Any]) -> str:
    """The table that is printed."""
    names = list(next(iter(summary["splits"].values()))["pass_at_k"])[1:]
    head = ["split", "family", "tasks", "episodes", "success", "95 %", *(f"pass@{k}" for k in names), "turns", "valid"]
    lines = [head]
    for split, values in summary["splits"].items():
        lines.append(_line(f"{split} ({values['distribution']})", "all", values, names))
        lines += [_line("", family, of_family, names) for family, of_family in values["families"].items()]
    for side in ("iid", "ood"):
        if side in summary and sum(v["distribution"] == side for v in summary["splits"].values()) > 1:
            lines.append(_line(side.upper(), "all", summary[side], names))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        " ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in text)


def _line(split: str, family: str, values: dict[str, Any], names: Sequence[str]) -> list[str]:
    low, high = values["interval_95"]
    return [
        split,
        family,
        str(values["tasks"]),
        str(values["episodes"]),
        f"{values['success']:.1%}",
        f"{low:.1%}-{high:.1%}",
        *(f"{values['pass_at_k'][k]:.1%}" if k in values["pass_at_k"] else "" for k in names),
        f"{values['turns']:.1f}",
        "" if values["valid_actions"] is None else f"{values['valid_actions']:.1%}",
    ]
