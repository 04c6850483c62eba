# SPDX-License-Identifier: Apache-2.0
"""What became of a run: its curves, rounded, and a few numbers read off them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from bench.plan import METHODS, World

ENDS = 10
"""Steps at the start, at the end and in a running mean: 640 episodes of the household."""
ERUPTED = 1.5
COLLAPSED = 0.25
CURVES = {
    "success": ("verl_entropy/success",),
    "entropy": ("actor/entropy",),
    "entropy_correct": ("verl_entropy/entropy_of/correct",),
    "entropy_wrong": ("verl_entropy/entropy_of/wrong",),
    "entropy_valid": ("verl_entropy/entropy_of/valid",),
    "valid_actions": ("verl_entropy/valid_action_ratio",),
    # The last two: logs from before steer and aepo had the first.
    "kl_old": ("actor/ppo_kl", "verl_entropy/steer/ppo_kl", "verl_entropy/aepo/ppo_kl"),
    "gradient_norm": ("actor/grad_norm",),
    "generated_tokens": ("verl_entropy/rollout/generated_tokens",),
    "reused_tokens": ("verl_entropy/rollout/reused_tokens",),
    "evicted_groups": ("training/filter_groups/evicted_samples",),
    "surplus_groups": ("training/filter_groups/discarded_surplus_samples",),
}
"""Of each curve the keys that it may have: a step's first one counts."""
SECONDS = "timing_s/step"


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Four significant digits are more than a curve shows; None for what is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{digits}g}")


def curves(steps: Mapping[int, Mapping[str, float]]) -> dict[str, list[float | None]]:
    """A value for each training step 1, 2, ..., from verl's file logger."""
    last = max(steps, default=0)

    def value(step: int, keys: tuple[str, ...]) -> float | None:
        logged = steps.get(step, {})
        return rounded(next((logged[key] for key in keys if key in logged), None))

    return {name: [value(s, keys) for s in range(1, last + 1)] for name, keys in CURVES.items()}


def held_out(steps: Mapping[int, Mapping[str, float]], world: World) -> dict[str, list]:
    """Success on each held-out split at the steps that were validated."""
    keys = [world.metric.format(split=split) for split in world.splits]
    at = [s for s in sorted(steps) if all(key in steps[s] for key in keys)]
    values = {split: [rounded(steps[s][key]) for s in at] for split, key in zip(world.splits, keys, strict=True)}
    return {"steps": at, **values}


def running(values: Sequence[float], width: int) -> list[float]:
    """Means of ``width`` neighbours, or of all where there are fewer."""
    width = max(1, min(width, len(values)))
    return [fmean(values[i : i + width]) for i in range(len(values) - width + 1)]


def outcome(
    found: Mapping[str, Sequence[float | None]], held: Mapping[str, Sequence[float]], splits: Sequence[str]
) -> dict[str, Any]:
    """Numbers and flags of a run.

    Start and end are means of the first and last 10 steps. ``auc``: mean success over all training steps (training tasks never repeat).
    ``erupted``: the mean entropy of some 5 steps is 1.5 times that of the start. ``collapsed``: that of the end is under a quarter of
    the start's. ``lost_half``: success at the end is half or less of the best 10 steps'.
    """
    success = [v for v in found["success"] if v is not None]
    entropy = [v for v in found["entropy"] if v is not None]
    if not success or not entropy or not held["steps"]:
        raise ValueError("a run without success, entropy or validation in its metrics has no outcome; look into its log")
    means = [fmean(point) for point in zip(*(held[s] for s in splits), strict=True)]
    start, end = fmean(entropy[:ENDS]), fmean(entropy[-ENDS:])
    best = max(running(success, ENDS))
    return {
        "held_out_first": rounded(means[0]),
        "held_out_final": rounded(means[-1]),
        "held_out_best": rounded(max(means)),
        "success_first": rounded(fmean(success[:ENDS])),
        "success_final": rounded(fmean(success[-ENDS:])),
        "success_best": rounded(best),
        "auc": rounded(fmean(success)),
        "entropy_first": rounded(entropy[0]),
        "entropy_start": rounded(start),
        "entropy_final": rounded(end),
        "entropy_highest": rounded(max(running(entropy, ENDS // 2))),
        "erupted": max(running(entropy, ENDS // 2)) >= ERUPTED * start,
        "collapsed": end < COLLAPSED * start,
        "lost_half": fmean(success[-ENDS:]) <= 0.5 * best,
    }


def step_seconds(steps: Mapping[int, Mapping[str, float]]) -> float | None:
    """Median seconds of a training step."""
    found = [data[SECONDS] for data in steps.values() if SECONDS in data]
    return rounded(median(found), 3) if found else None


def halved(run: Mapping[str, Any]) -> bool:
    """Whether held-out success at the end is half of its best, or less."""
    return run["outcome"]["held_out_final"] <= 0.5 * run["outcome"]["held_out_best"]


def lost(run: Mapping[str, Any]) -> list[str]:
    """In which ways a run was lost."""
    found = run["outcome"]
    ways = [name for name in ("collapsed", "erupted") if found[name]]
    ways += ["held out halved"] if halved(run) else []
    return ways + (["lost half"] if found["lost_half"] and not METHODS[run["method"]].filtered else [])


def told(run: Mapping[str, Any]) -> str:
    """A run in one line."""
    found = run["outcome"]
    return (
        f"{METHODS[run['method']].title}, seed {run['seed']}: held-out success {found['held_out_first']:.2f} -> "
        f"{found['held_out_best']:.2f} at best -> {found['held_out_final']:.2f}, entropy {found['entropy_start']:.3f} -> "
        f"{found['entropy_highest']:.3f} at most -> {found['entropy_final']:.3f} nats a token: {', '.join(lost(run)) or 'nothing lost'}"
    )
