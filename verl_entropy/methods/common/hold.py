# SPDX-License-Identifier: Apache-2.0
"""Holding entropy at a level that the user names (``algorithm.entropy.target``), by any coefficient that moves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

PULL, STEEPEST = 0.25, 0.15
"""Share of the distance in ln H to cover in a step, and at most so much (about 15 % of the entropy)."""
DRIFT, DRIFT_BOUND, NOISE, SURPRISE = 0.01, 0.1, 0.05, 3.0
"""Of ln H in a step: how far the drift wanders, how large it can be, the standard error of a measured change, and the most standard errors by
which a change may surprise."""
EFFECT, WANDER, RANGE = 0.02, 0.3, 1000.0
"""First guess of what one unit of the coefficient does to ln H in a step, its relative change a step, and the factor it may be off."""
LAG, GROWTH = 0.6, 0.7
"""Weight of the steps before in the push that a step feels (Adam's moments lag), and the most that a push may grow in a step, relatively."""
MEMORY, FLOOR, RETREAT = 0.2, 0.05, 0.7
"""Weight of a step in the mean of success, success below which there is none to lose, and what is left of the push each guarded step."""
GONE, FORGET = 0.1, 0.1
"""A push below this many units is gone; success that stays lost all the same is then forgotten at this rate a step."""
_STATE = ("push", "felt", "drift", "effect", "var_drift", "var_effect", "covariance", "log_entropy", "success", "best")


class Hold(NamedTuple):
    """What ``EntropyHold`` must know of a method's coefficient."""

    unit: float
    """A small but noticeable value of it."""
    signed: bool
    """It works below 0, too."""
    most: float = math.inf
    """Its greatest magnitude while it holds entropy, where the method's upper bound is larger."""


def scheduled(target: float | Sequence[Sequence[float]], step: int) -> float:
    """Target entropy of a step in nats: the number, or between the points [step, nats] on a straight line, level outside them."""
    if isinstance(target, int | float):
        return float(target)
    (first, level), *rest = target
    if step <= first:
        return float(level)
    for after, next_level in rest:
        if step <= after:
            return float(level + (next_level - level) * (step - first) / (after - first))
        first, level = after, next_level
    return float(level)


class EntropyHold:
    """Moves a coefficient once a step so that ln H goes to ln H*, by what the steps before taught about its effect.

        u = (coefficient - origin) / unit: the push;   v <- .6 v + .4 u: what a step feels of it
        ln H' - ln H = a + b v + noise
        u <- (clip(.25 (ln H* - ln H), -.15, .15) - a) / b, away from 0 at most max(1, .7 |u|) from the last one, towards it max(1, |u|)

    The drift a (what training does to entropy by itself) and the effect b > 0 are followed by a Kalman filter, whose measurement is the
    change of ln H since the last step. An update moves by means of the gradients before it, too, so a push is felt late; a filter that
    expected it at once took the delay for a small effect and pushed ever harder, until one step destroyed the policy. Of a change that
    surprises by more than three standard errors the filter believes three (Huber): where a step of training moved entropy by half, a filter
    that laid it all to the push thought the push three times as strong, and left entropy too low for twenty steps. There is no integral
    that could wind up: where a bound holds the coefficient, the filter is told the coefficient that was used. Relative changes, so that
    .05 nats and 1 nat are held alike.

    Guard: while the running mean of success (weight .2 a step) is more than ``guard`` below its best, the push shrinks by .7 a step
    instead, so that the run returns to what it would be without it; None: no guard. Where success stays lost although the push is gone,
    the push was not the cause: the best is forgotten step by step (rate .1), until entropy is held again. A non-finite entropy changes
    nothing.

    Source: ours. EntroPIC (arXiv 2511.15248) has a proportional-integral controller with fixed gains; the coefficients of different
    methods and learning rates differ by orders of magnitude in what they do, so the gain is estimated here.

    Args:
        value: coefficient of the first step.
        unit: > 0, a small but noticeable coefficient; the first pushes are of this size.
        low, high: bounds of the coefficient.
        origin: coefficient that does nothing.
        guard: relative loss of success, or None.
    """

    def __init__(
        self, value: float, unit: float, low: float, high: float, origin: float = 0.0, guard: float | None = 0.2
    ) -> None:
        self.unit, self.low, self.high, self.origin, self.guard = unit, low, high, origin, guard
        self.push = self.felt = (value - origin) / unit
        self.drift, self.effect = 0.0, EFFECT
        self.var_drift, self.var_effect, self.covariance = NOISE**2, EFFECT**2, 0.0
        self.log_entropy: float | None = None
        self.success: float | None = None
        self.best = 0.0
        self.guarded = False

    @property
    def value(self) -> float:
        """The coefficient to use now."""
        return self.origin + self.push * self.unit

    def update(self, entropy: float, target: float, success: float | None = None) -> float:
        """Entropy of this step's experience and its target in nats, share of its trajectories that succeeded -> the coefficient."""
        if success is not None and math.isfinite(success):
            self.success = success if self.success is None else self.success + MEMORY * (success - self.success)
            self.best = max(self.best, self.success)
        self.felt = LAG * self.felt + (1.0 - LAG) * self.push
        if not (math.isfinite(entropy) and entropy > 0.0):
            self.log_entropy = None  # the next change is over two steps
            return self.value
        now = math.log(entropy)
        if self.log_entropy is not None:
            self._learn(now - self.log_entropy)
        self.log_entropy = now
        lost = self.success is not None and self.guard is not None and self.success < self.best * (1.0 - self.guard)
        self.guarded = lost and self.best > FLOOR
        if self.guarded:
            push = RETREAT * self.push
            if abs(push) < GONE and self.success is not None:
                self.best += FORGET * (self.success - self.best)
        else:
            wanted = min(max(PULL * (math.log(target) - now), -STEEPEST), STEEPEST)
            back, on = max(1.0, abs(self.push)), max(1.0, GROWTH * abs(self.push))
            less, more = (back, on) if self.push >= 0.0 else (on, back)
            push = min(max((wanted - self.drift) / self.effect, self.push - less), self.push + more)
        self.push = (min(max(self.origin + push * self.unit, self.low), self.high) - self.origin) / self.unit
        return self.value

    def _learn(self, change: float) -> None:
        """One step of the Kalman filter of drift and effect, which wander."""
        v = self.felt
        self.var_drift += DRIFT**2
        self.var_effect += (WANDER * self.effect) ** 2
        with_drift, with_effect = self.var_drift + v * self.covariance, self.covariance + v * self.var_effect
        spread = with_drift + v * with_effect + NOISE**2
        most = SURPRISE * math.sqrt(spread)
        surprise = min(max(change - self.drift - self.effect * v, -most), most)
        drift = self.drift + with_drift / spread * surprise
        self.drift = min(max(drift, -DRIFT_BOUND), DRIFT_BOUND)
        effect = self.effect + with_effect / spread * surprise
        self.effect = min(max(effect, EFFECT / RANGE), EFFECT * RANGE)
        self.var_drift -= with_drift**2 / spread
        self.covariance -= with_drift * with_effect / spread
        self.var_effect -= with_effect**2 / spread

    def state_dict(self) -> dict[str, float | None]:
        """What a resumed run needs, as plain JSON values."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Restore ``state_dict``; a missing or surplus key or a value that is no finite number is an error."""
        if set(state) != set(_STATE):
            raise ValueError(
                f"state of the held entropy has keys {sorted(state)}: expected {sorted(_STATE)}. Use a matching checkpoint."
            )
        for name, value in state.items():
            if not (value is None and name in ("log_entropy", "success")) and not (
                isinstance(value, int | float) and math.isfinite(value)
            ):
                raise ValueError(
                    f"state of the held entropy {name}={value!r}: must be a finite number. Use an earlier checkpoint."
                )
        for name, value in state.items():
            setattr(self, name, value)
