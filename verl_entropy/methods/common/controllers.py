# SPDX-License-Identifier: Apache-2.0
"""Multiplicative control of a coefficient towards a target entropy.

One controller serves REPO's zeta, ADAPO's upper clip bound and the adaptive entropy bonus; they differ in the numbers only:

    REPO-R       value 1e-3, low 1e-5, high 1e-1, factor 2
    REPO-D       value 1e-3, low 1e-3, high 10,   factor 2
    bonus        as REPO-D (the paper's footnote 3)
    ADAPO        value .28,  low .2,   high .3,   factor 1.01
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from verl_entropy.methods.common.hold import EntropyHold, Hold

if TYPE_CHECKING:
    from verl_entropy.methods.context import AdvantageContext

DIRECTIONS = ("up", "down")
FLIPS = ("reset", "keep")


class TargetEntropyController:
    """Moves a coefficient once per iteration, by a constant factor, according to the side of the target that entropy is on.

    With entropy H, target H* and ``direction="up"``:

        value <- clip(value * factor, low, high)    if H < H*
        value <- clip(value / factor, low, high)    if H > H*
        value unchanged                             if H = H*

    ``direction="down"`` exchanges the two sides, for a coefficient that lowers entropy. Without a given
    ``target`` the first finite entropy becomes the target, so the first iteration does not move the
    coefficient. A non-finite entropy changes nothing.

    ``bidirectional=True`` (REPO-R of appendix B): the sign of the coefficient says which way it pushes,
    positive below the target (for ``"up"``). When entropy crosses the target the sign flips, and the
    magnitude goes to ``low`` (``flip="reset"``) or stays (``flip="keep"``); while entropy remains on that
    side the magnitude grows by ``factor`` up to ``high``. The paper does not say what happens to the
    magnitude at the flip; "reset" is our default because it starts the opposite push gently.

    Source: "Entropy-Preserving Reinforcement Learning", sec. 4 and appendix B (REPO, ADAPO); no public code.

    Args:
        value: coefficient of the first iteration, in [low, high].
        low: least magnitude, > 0 (a product never leaves 0).
        high: greatest magnitude.
        factor: > 1; 2 for REPO, 1.01 for ADAPO. The paper notes that a smaller one damps the oscillation.
        target: entropy in nats to hold; None: that of the first iteration.
        direction: which way the coefficient goes when entropy is below the target, "up" or "down".
        bidirectional: let the sign flip.
        flip: magnitude after a flip, "reset" or "keep".
    """

    def __init__(
        self,
        value: float,
        low: float,
        high: float,
        factor: float = 2.0,
        target: float | None = None,
        direction: str = "up",
        bidirectional: bool = False,
        flip: str = "reset",
    ):
        if not 0.0 < low <= high < math.inf:
            raise ValueError(f"low={low}, high={high}: must satisfy 0 < low <= high < inf. Set low above 0.")
        if not (math.isfinite(factor) and factor > 1.0):
            raise ValueError(f"factor={factor}: must be > 1. Use 2 (REPO) or 1.01 (ADAPO), or a constant coefficient.")
        if direction not in DIRECTIONS:
            raise ValueError(f"direction={direction!r}: allowed are {', '.join(DIRECTIONS)}.")
        if flip not in FLIPS:
            raise ValueError(f"flip={flip!r}: allowed are {', '.join(FLIPS)}.")
        if target is not None and not math.isfinite(target):
            raise ValueError(f"target={target}: must be a finite entropy in nats, or null for the first iteration's.")
        self.low, self.high, self.factor = float(low), float(high), float(factor)
        self.direction, self.bidirectional, self.flip = direction, bidirectional, flip
        self.target = None if target is None else float(target)
        self._value = self._checked(value, "value")

    def _checked(self, value: float, name: str) -> float:
        magnitude = abs(value) if self.bidirectional else value
        if not self.low <= magnitude <= self.high:
            sign = "magnitude " if self.bidirectional else ""
            raise ValueError(f"{name}={value}: its {sign}must be in [low, high] = [{self.low}, {self.high}]. Widen the bounds.")
        return float(value)

    @property
    def value(self) -> float:
        """The coefficient to use now."""
        return self._value

    def update(self, entropy: float) -> float:
        """Take the entropy of this iteration's experience (nats, before any update) and return the coefficient to use in it."""
        entropy = float(entropy)
        if not math.isfinite(entropy):
            return self._value
        if self.target is None:
            self.target = entropy
        if entropy == self.target:
            return self._value
        raises = (entropy < self.target) == (self.direction == "up")
        self._value = self._signed_step(raises) if self.bidirectional else self._step(raises)
        return self._value

    def _step(self, raises: bool) -> float:
        moved = self._value * self.factor if raises else self._value / self.factor
        return min(max(moved, self.low), self.high)

    def _signed_step(self, positive: bool) -> float:
        magnitude = abs(self._value)
        if positive == (self._value > 0.0):
            magnitude = min(magnitude * self.factor, self.high)
        elif self.flip == "reset":
            magnitude = self.low
        return magnitude if positive else -magnitude

    def state_dict(self) -> dict[str, float | None]:
        """What a resumed run needs, as plain JSON values; Python's JSON keeps doubles bit for bit."""
        return {"value": self._value, "target": self.target}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Restore ``state_dict``; a missing or surplus key, or a value outside the bounds, is an error."""
        if set(state) != {"value", "target"}:
            raise ValueError(f"controller state has keys {sorted(state)}: expected target and value. Use a matching checkpoint.")
        target = state["target"]
        if target is not None and not math.isfinite(target):
            raise ValueError(f"controller state target={target}: must be finite. Use an earlier checkpoint.")
        if state["value"] is None:
            raise ValueError("controller state value=None: must be a number. Use an earlier checkpoint.")
        value = self._checked(state["value"], "controller state value")
        self._value, self.target = value, None if target is None else float(target)


class ControllerState:
    """State of a method with one coefficient, ``name`` in what the state says.

    ``EntropyHold`` moves it where ``algorithm.entropy.target`` asks for an entropy (``hold``: its unit, origin and bounds), else
    ``TargetEntropyController`` where it is adaptive.
    """

    of_each_batch = False

    def __init__(
        self, algorithm: str, name: str, adaptive: bool, hold: dict[str, float] | None = None, **controller: Any
    ) -> None:
        self.algorithm, self.name, self.adaptive = algorithm, name, adaptive
        self.fixed = controller["value"]
        self.controller = TargetEntropyController(**controller) if adaptive else None
        self.hold = None if hold is None else EntropyHold(self.fixed, **hold)
        self.held = False

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        value = self.fixed
        entropy = float("nan") if ctx.entropy is None else ctx.entropy
        if ctx.target is not None and self.hold is not None:
            self.held, self.hold.guard = True, ctx.target_guard
            value = self.hold.update(entropy, ctx.target, ctx.success())
            ctx.metrics["verl_entropy/hold/guarded"] = float(self.hold.guarded)
            ctx.metrics["verl_entropy/hold/effect"] = self.hold.effect
        elif self.controller is not None:
            value = self.controller.update(entropy)
        ctx.metrics[f"verl_entropy/{self.algorithm}/{self.name}"] = value
        return {self.name: value}

    def state_dict(self) -> dict[str, Any]:
        if self.held and self.hold is not None:
            return {"hold": self.hold.state_dict()}
        return {} if self.controller is None else self.controller.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        if "hold" in values and self.hold is not None:
            self.hold.load_state_dict(values["hold"])
            self.held = True
        elif self.controller is not None:
            self.controller.load_state_dict(values)


def controlled(
    method: str, bounded: tuple[str, str, str], *options: str, hold: Hold | None = None
) -> Callable[[Any], ControllerState]:
    """The ``state`` of a method whose controller moves the setting ``bounded[0]`` between the settings ``bounded[1]`` and ``[2]``.

    ``options``: further settings that the controller takes by their own names. Settings without ``adaptive`` are adaptive. ``hold``: the
    method's ``Method.hold``.
    """
    name, low, high = bounded

    def state(s: Any) -> ControllerState:
        bounds = {"value": getattr(s, name), "low": getattr(s, low), "high": getattr(s, high)}
        more = {option: getattr(s, option) for option in options}
        held = None
        if hold is not None:
            most = min(bounds["high"], hold.most)
            least, origin = (-most, 0.0) if hold.signed else (bounds["low"], bounds["value"])
            held = {"unit": hold.unit, "low": least, "high": most, "origin": origin}
        return ControllerState(
            method, name, getattr(s, "adaptive", True), held, **bounds, factor=s.factor, target=s.target, **more
        )

    return state
