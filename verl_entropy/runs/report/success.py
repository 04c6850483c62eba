# SPDX-License-Identifier: Apache-2.0
"""The two success rates that papers print, from runs: the best over training, and the mean after convergence.

    best       mean over seeds of max_t s_t                           (EPO, arXiv 2509.22576: Succ.*)
    converged  mean over seeds of the mean of s_t over the end        (EPO: Succ.)

The paper does not say when a run has converged. Here the end is the last ``CONVERGED`` of a series' values, and ``change``
says whether it still moved there: mean of the end's second half minus that of its first. A best over noisy training
batches is biased upwards; prefer validation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_entropy.runs.report.runs import Group, P, Run

CONVERGED = 0.2
"""Part of a series taken as the end, our choice: five of the 25 validations that EPO's settings give (every 5 of 125 steps)."""
LEAST = 3
"""Values that a series needs for its end to be one: of two, the last is not "after convergence"."""
MAX_SERIES = 6
"""Validation sets that are looked at, in the order in which they were logged; a longer table is not read."""
_VALIDATION = re.compile(r"val-(?:core|aux)/(?P<data>.+)/(?P<what>acc|success|reward)/mean@(?P<n>\d+)$")
_RANK = ("success", "acc", "reward")


@dataclass(frozen=True)
class SuccessRate:
    """Both rates of one series of one setting."""

    setting: str
    series: str
    """What was measured: training or a validation set."""
    key: str
    seeds: int
    values: int
    """Values of the series, mean over seeds."""
    best: float
    best_spread: float | None
    """Standard deviation over seeds (ddof 0); None for one seed."""
    converged: float | None
    """None: the series has fewer than LEAST values in every run."""
    converged_spread: float | None
    change: float
    """How much the series still moved within its end; 0 for fewer than two values there."""


def series(runs: Sequence[Run]) -> list[tuple[str, tuple[str, ...]]]:
    """Labels and names of the series of success: training first, then a name for each validation set."""
    found: dict[str, tuple[int, str]] = {}
    for key in dict.fromkeys(k for run in runs for k in run.reader.keys):
        match = _VALIDATION.match(key)
        if match:
            rank = _RANK.index(match["what"])
            if match["data"] not in found or rank < found[match["data"]][0]:
                found[match["data"]] = (rank, key)
    rows = [("training", (P + "success",))]
    if not any(run.first_key(rows[0][1]) for run in runs):
        rows = [("training (score)", ("critic/score/mean",))]
    for data, (rank, key) in list(found.items())[:MAX_SERIES]:
        label = f"validation {data}" + ("" if rank < 2 else " (reward)")
        rows.append((label, (key,)))
    return rows


def success_rates(groups: Sequence[Group]) -> list[SuccessRate]:
    """Both rates of every series of every setting that has it."""
    rows = series([run for group in groups for run in group.runs])
    rates = (_rate(group, label, keys) for group in groups for label, keys in rows)
    return [rate for rate in rates if rate is not None]


def end(values: np.ndarray) -> np.ndarray:
    """The last ``CONVERGED`` of ``values``, at least one."""
    return values[-max(int(np.ceil(CONVERGED * len(values))), 1) :]


def _change(tail: np.ndarray) -> float:
    half = len(tail) // 2
    return float(tail[half:].mean() - tail[:half].mean()) if half else 0.0


def _rate(group: Group, label: str, keys: tuple[str, ...]) -> SuccessRate | None:
    known = [v for v in (run.series(keys)[1] for run in group.runs) if len(v)]
    if not known:
        return None
    best = np.array([v.max() for v in known])
    long = [v for v in known if len(v) >= LEAST]
    converged = np.array([end(v).mean() for v in long])
    several = len(known) > 1
    return SuccessRate(
        group.label,
        label,
        keys[0],
        len(known),
        round(float(np.mean([len(v) for v in known]))),
        float(best.mean()),
        float(best.std()) if several else None,
        float(converged.mean()) if long else None,
        float(converged.std()) if len(long) > 1 else None,
        float(np.mean([_change(end(v)) for v in long])) if long else 0.0,
    )
