# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds, as rliable has them (arXiv 2108.13264), with scipy's bootstrap: rliable 1.2 needs arch < 8, which does not import
beside pandas 3.

A score is a list of values a world; resampling keeps the worlds apart (stratified). Intervals are 95 % percentile intervals, those of paired
differences Student's t: a percentile interval of three differences of one sign leaves out 0 always, which chance does one time in four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

RESAMPLES, LEVEL = 4000, 0.95
LEAST_SEEDS = 3
"""Fewer than this in a world give no interval."""

Scores = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, None where there are too few seeds."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, sign: bool = False) -> str:
        """``0.56 (0.51 to 0.60)``; with ``sign`` every number has one, and three digits."""

        def number(value: float) -> str:
            return f"{value:+.3f}" if sign else f"{value:.2f}"

        return number(self.value) if self.low is None else f"{number(self.value)} ({number(self.low)} to {number(self.high)})"

    def side(self) -> int:
        """1 or -1 if the whole interval lies above or below 0, else 0."""
        if self.low is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def _iqm(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)


def _improvement(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    half, shares = len(samples) // 2, []
    for x, y in zip(samples[:half], samples[half:], strict=True):
        x, y = np.moveaxis(x, axis, -1)[..., :, None], np.moveaxis(y, axis, -1)[..., None, :]
        shares.append(((x > y) + 0.5 * (x == y)).mean(axis=(-2, -1)))
    return np.mean(shares, axis=0)


def _estimate(statistic: Callable[..., np.ndarray], scores: Scores) -> Estimate:
    samples = [np.asarray(s, dtype=float) for s in scores]
    value = float(statistic(*samples))
    if min(map(len, samples)) < LEAST_SEEDS:
        return Estimate(value)
    found = stats.bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high))


def interquartile_mean(scores: Scores) -> Estimate:
    """Mean without the lowest and the highest quarter of all seeds and worlds."""
    return _estimate(_iqm, scores)


def difference(scores: Scores, base: Scores) -> Estimate:
    """Mean of score - base over the seeds, each with that of the same seed: both lists name the same seeds in the same order.

    Its interval is Student's t; with several worlds, means and variances of their means averaged, with the degrees of freedom of the smallest.
    """
    gaps = [np.subtract(s, b, dtype=float) for s, b in zip(scores, base, strict=True)]
    value, least = float(np.mean([gap.mean() for gap in gaps])), min(map(len, gaps))
    if least < LEAST_SEEDS:
        return Estimate(value)
    error = np.sqrt(sum(gap.var(ddof=1) / len(gap) for gap in gaps)) / len(gaps)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, least - 1) * error)
    return Estimate(value, value - half, value + half)


def improvement(scores: Scores, base: Scores) -> Estimate:
    """P(a run of the method scores higher than one of the base), ties half, mean over worlds."""
    return _estimate(_improvement, [*scores, *base])


def profile(scores: Sequence[float], levels: Sequence[float]) -> list[float]:
    """Performance profile: the share of runs that score at least each level."""
    return (np.asarray(scores, dtype=float)[:, None] >= np.asarray(levels, dtype=float)).mean(axis=0).tolist()
