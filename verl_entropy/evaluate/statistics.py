# SPDX-License-Identifier: Apache-2.0
"""Rates with intervals, and pass@k. Pure functions on counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution: two-sided intervals of 95 %."""
RESAMPLES = 2000
"""Bootstrap samples: the ends of the interval then move by about .002 from seed to seed."""


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a rate of independent trials.

    centre = (p + z^2 / 2n) / (1 + z^2 / n),  half = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n)
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials: expected 0 <= successes <= trials and trials >= 1.")
    p, scale = successes / trials, 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    # At 0 and at all successes one end is 0 or 1 exactly; rounding must not move it.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == trials else centre + half)


def bootstrap(rates: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> tuple[float, float]:
    """Percentile interval of the mean of ``rates``, one per task, over tasks drawn with replacement.

    Episodes of one task are not independent, so that tasks are drawn and not episodes.
    """
    values = np.asarray(rates, dtype=float)
    if not values.size:
        raise ValueError("bootstrap of no task: expected at least one.")
    index = np.random.default_rng(seed).integers(values.size, size=(resamples, values.size))
    low, high = np.quantile(values[index].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def interval(successes: Sequence[int], samples: Sequence[int]) -> tuple[float, float, str]:
    """95 % interval of the success rate and how it was made, from successes and samples of each task.

    Wilson where each task was played once. Else the bootstrap over tasks; all tasks alike leave it nothing to draw from, and
    then Wilson over the tasks, which is the wider, cautious one.
    """
    rates = [s / n for s, n in zip(successes, samples, strict=True)]
    if max(samples) == 1:
        return *wilson(sum(successes), len(successes)), "Wilson"
    if len(set(rates)) == 1 and rates[0] in (0.0, 1.0):
        return *wilson(int(sum(rates)), len(rates)), "Wilson over tasks"
    return *bootstrap(rates), "bootstrap over tasks"


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Probability that at least one of ``k`` samples succeeds, unbiased: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374)."""
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples: k must be in 1..{samples}.")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to ``limit``, and ``limit`` itself."""
    return sorted({*(2**i for i in range(limit.bit_length())), limit} - {0})
