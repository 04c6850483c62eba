# SPDX-License-Identifier: Apache-2.0
"""Phases of a run's entropy, found while it goes on: descent, eruption, subsidence (SEAL, arXiv 2605.27954).

The paper names the phases and gives no rule; this one is ours. Neither torch nor verl is imported.

Every finite entropy x enters two numbers:

    level   median of the last ``smooth`` values
    noise   median |x_t - x_{t-1}| over the last ``noise_window`` steps, divided by .954 (the value for white noise of std 1).
            Differences, so that a trend or an eruption hardly widens it.

and the phase moves by these rules:

    warmup      fewer than ``warmup`` values
    descent     until the level stands ``rise`` above its lowest value of the last ``window`` steps, for ``confirm`` steps,
                rise = max(rise_nats, rise_share * trough, rise_sigmas * noise)
    eruption    until the level stands ``fall_share`` of the rise (and the noise margin) below its highest value, for
                ``confirm`` steps
    subsidence  until ``settle_share`` of the rise is undone, or the level made no new low for ``settle`` steps; then descent

A rise of which one single step makes up ``jump_share`` is a *step change* (another data set, a resume, a new temperature), not
an eruption: the event "step_change" is given and the phase stays. A level below ``collapse_nats`` gives "collapse".

Delay: the median needs (smooth + 1) / 2 steps, the confirmation ``confirm`` - 1, and the curve must have risen by ``rise``.
``diagnostics.simulate`` measures it.

What it cannot do: tell an eruption from a trend as fast as ``rise`` within ``window`` steps, or from a step change spread over
several steps; see an eruption that is complete within about two steps as one (it is called a step change); see one smaller than
``rise``, or in the first ``warmup`` steps; foretell one (the early signs below are hints and have no known error rate on real
runs); say why entropy rose.

The sign of interference has a value only every ``costly_every`` steps, so at the default of 10 it is silent for the first 90 steps and
then some 30 steps late: set ``costly_every`` to 1 or 2 where it is to warn of anything.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from verl_entropy.config.settings import ConfigError, setting

PHASES = ("warmup", "descent", "eruption", "subsidence")
EVENTS = ("eruption", "subsidence", "descent", "step_change", "collapse", "sign_interference", "sign_likelihood")
SIGNS = ("sign_interference", "sign_likelihood")

_WHITE = 0.6745 * math.sqrt(2.0)
"""Median of |difference| of two unit normals: turns it into a standard deviation."""

ONSET_SHARE = 0.15
"""Part of the rise so far up to which the level counts as not risen yet, when the onset is estimated."""


@dataclass(frozen=True)
class Phases:
    """Settings of the detector of phases."""

    warmup: int = setting(10, "values before the first decision", ge=2)
    smooth: int = setting(5, "values in the running median; odd", ge=1, le=99)
    noise_window: int = setting(40, "values in the estimate of the noise", ge=4)
    window: int = setting(30, "steps within which an eruption must rise", ge=2)
    rise_nats: float = setting(0.05, "least rise of an eruption in nats", gt=0.0)
    rise_share: float = setting(0.5, "least rise in parts of the lowest level before it", ge=0.0)
    rise_sigmas: float = setting(4.0, "least rise in standard deviations of the noise", ge=0.0)
    confirm: int = setting(2, "steps in a row that a change must hold", ge=1)
    jump_share: float = setting(0.7, "a rise of which one step makes up this share is a step change", gt=0.0, le=1.0)
    fall_share: float = setting(0.3, "part of the rise that must be undone to call subsidence", gt=0.0, lt=1.0)
    settle_share: float = setting(0.8, "part of the rise that must be undone to be back in descent", gt=0.0, le=1.0)
    settle: int = setting(10, "steps without a new low that end subsidence", ge=1)
    collapse_nats: float = setting(0.02, "level below which entropy has collapsed; 0: never", ge=0.0)
    sign_window: int = setting(20, "values that an early sign is compared with", ge=4)
    sign_share: float = setting(0.1, "least fall of an early sign in parts of the median before it", ge=0.0)
    sign_sigmas: float = setting(6.0, "fall of an early sign's median in standard deviations of its noise", gt=0.0)


@dataclass(frozen=True)
class Event:
    """Something the detector saw."""

    name: str
    """One of EVENTS."""
    step: int
    """Step at which it was seen."""
    onset: int
    """Step at which it is estimated to have begun: the trough before a rise, the peak before a fall."""
    level: float
    """Running median then, in nats (of the sign's own series for a sign)."""


def _finite(value: Any) -> float | None:
    """``value`` as a finite float, or None."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _median(values: list[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


class _Track:
    """The last values of a series, their running median and noise."""

    def __init__(self, smooth: int, keep: int):
        self.smooth, self.keep = smooth, max(keep, smooth)
        self.values: list[float] = []
        self.steps: list[int] = []
        self.levels: list[float] = []

    def add(self, step: int, value: float) -> None:
        self.values.append(value)
        self.steps.append(step)
        self.levels.append(_median(self.values[-self.smooth :]))
        for items in (self.values, self.steps, self.levels):
            del items[: -self.keep]

    @property
    def level(self) -> float:
        return self.levels[-1]

    def noise(self, window: int) -> float:
        recent = self.values[-window:]
        if len(recent) < 2:
            return 0.0
        return _median([abs(b - a) for a, b in pairwise(recent)]) / _WHITE

    def state_dict(self) -> dict[str, list]:
        return {"values": list(self.values), "steps": list(self.steps), "levels": list(self.levels)}

    def load(self, state: dict[str, list]) -> None:
        self.values, self.steps, self.levels = (list(state[k]) for k in ("values", "steps", "levels"))


class PhaseDetector:
    """Online detector; feed it once per step and read ``phase``, ``events`` and ``signs``."""

    def __init__(self, settings: Phases | None = None):
        self.settings = s = settings or Phases()
        if s.smooth % 2 == 0:
            raise ConfigError(f"smooth={s.smooth}: must be odd. Set smooth={s.smooth + 1}.")
        self.phase = "warmup"
        self.events: list[Event] = []
        self.seen = 0
        """Finite entropies so far."""
        self.last_step: int | None = None
        self.collapsed = False
        self.signs = dict.fromkeys(SIGNS, False)
        self._entropy = _Track(s.smooth, max(s.window, s.noise_window))
        self._signs = {name: _Track(s.smooth, s.sign_window + s.smooth) for name in SIGNS}
        self._pending = 0
        self._pending_sign = dict.fromkeys(SIGNS, 0)
        self._base: float | None = None
        """Trough of the current eruption, or the level that a step change left."""
        self._extreme: tuple[float, int] | None = None
        """Highest level of the eruption, or lowest of the subsidence, with its step."""
        self._noise = 0.0
        """Noise when the eruption began: the eruption's own steps widen it."""
        self._peak = 0.0
        self._since = 0
        """Index (``seen``) from which troughs count: not across a step change or an earlier eruption."""

    # ------------------------------------------------------------------ input

    def update(
        self,
        step: int,
        entropy: float | None,
        *,
        interference_negative: float | None = None,
        valid_log_prob: float | None = None,
    ) -> list[Event]:
        """Take one step and return what was seen in it.

        Args:
            step: training step; one that is not above the last one is ignored.
            entropy: mean token entropy in nats; None, NaN or infinite: missing.
            interference_negative: ``drift_negative`` of ``diagnostics.interference``; falling: negative advantages push the
                likelihood down harder.
            valid_log_prob: mean log-probability of the valid trajectories.
        """
        if self.last_step is not None and step <= self.last_step:
            return []
        self.last_step = int(step)
        found = self._sign("sign_interference", step, _finite(interference_negative))
        found += self._sign("sign_likelihood", step, _finite(valid_log_prob))
        value = _finite(entropy)
        if value is not None:
            self.seen += 1
            self._entropy.add(int(step), value)
            if self.seen >= self.settings.warmup:
                found += self._advance(int(step))
        self.events += found
        return found

    # ------------------------------------------------------------------ rules

    def _advance(self, step: int) -> list[Event]:
        found = self._collapse(step)
        if self.phase == "warmup":
            self.phase = "descent"
        rule = {"descent": self._descent, "eruption": self._eruption, "subsidence": self._subsidence}[self.phase]
        event = rule(step)
        return found + ([event] if event else [])

    def _confirmed(self, condition: bool) -> bool:
        self._pending = self._pending + 1 if condition else 0
        if self._pending >= self.settings.confirm:
            self._pending = 0
            return True
        return False

    def _trough(self) -> tuple[float, int]:
        """Lowest level of the window and its place in the track."""
        levels = self._entropy.levels
        count = min(self.settings.window, len(levels), self.seen - self._since)
        first = len(levels) - max(count, 1)
        lowest = min(levels[first:])
        return lowest, levels.index(lowest, first)

    def _risen(self, rise: float, trough: float) -> tuple[bool, float]:
        """Whether ``rise`` is that of an eruption, and the noise (only estimated where it decides)."""
        s = self.settings
        if rise <= max(s.rise_nats, s.rise_share * trough):
            return False, 0.0
        noise = self._entropy.noise(s.noise_window)
        return rise > s.rise_sigmas * noise, noise

    def _descent(self, step: int) -> Event | None:
        track = self._entropy
        trough, place = self._trough()
        risen, noise = self._risen(track.level - trough, trough)
        if not self._confirmed(risen):
            return None
        first = max(place - self.settings.smooth // 2, 0)
        values = track.values[first:]
        jump = max(b - a for a, b in pairwise(values))
        onset = self._onset(trough, place)
        if jump >= self.settings.jump_share * (track.level - trough) and self._risen(jump, trough)[0]:
            self._since = self.seen
            return Event("step_change", step, onset, track.level)
        self.phase, self._base, self._noise = "eruption", trough, noise
        self._extreme = (track.level, step)
        return Event("eruption", step, onset, track.level)

    def _onset(self, trough: float, place: int) -> int:
        """Step at which the level last stood near the trough; the level lags by half the median's width."""
        levels = self._entropy.levels
        near = trough + ONSET_SHARE * (levels[-1] - trough)
        last = max(i for i in range(place, len(levels)) if levels[i] <= near)
        return self._entropy.steps[max(last - self.settings.smooth // 2, 0)]

    def _eruption(self, step: int) -> Event | None:
        level = self._entropy.level
        if level > self._extreme[0]:
            self._extreme = (level, step)
        peak, onset = self._extreme
        margin = max(self.settings.fall_share * (peak - self._base), self._noise * 2.0)
        if not self._confirmed(peak - level > margin):
            return None
        self.phase, self._peak = "subsidence", peak
        self._extreme = (level, step)
        return Event("subsidence", step, onset, level)

    def _subsidence(self, step: int) -> Event | None:
        level = self._entropy.level
        if level < self._extreme[0]:
            self._extreme = (level, step)
        undone = self._peak - level >= self.settings.settle_share * (self._peak - self._base)
        low, onset = self._extreme
        stalled = step - onset >= self.settings.settle
        if not (undone or stalled):
            return None
        self.phase, self._pending = "descent", 0
        self._since = self.seen - (self._entropy.steps[::-1].index(onset) if onset in self._entropy.steps else 0) - 1
        return Event("descent", step, onset, low)

    def _collapse(self, step: int) -> list[Event]:
        below = self._entropy.level < self.settings.collapse_nats
        found = [Event("collapse", step, step, self._entropy.level)] if below and not self.collapsed else []
        self.collapsed = below
        return found

    def _sign(self, name: str, step: int, value: float | None) -> list[Event]:
        """A sign is on while its running median lies ``sign_sigmas`` of its noise below the median of the values before."""
        if value is None:
            return []
        s, track = self.settings, self._signs[name]
        track.add(int(step), value)
        if len(track.values) < max(s.warmup, 2 * s.smooth):
            return []
        reference = _median(track.values[: -s.smooth])
        low = reference - track.level > max(s.sign_sigmas * track.noise(s.sign_window), s.sign_share * abs(reference))
        self._pending_sign[name] = self._pending_sign[name] + 1 if low else 0
        was, self.signs[name] = self.signs[name], self._pending_sign[name] >= s.confirm
        return [Event(name, int(step), int(step), track.level)] if self.signs[name] and not was else []

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain JSON values; Python's JSON keeps doubles bit for bit."""
        return {
            "phase": self.phase,
            "seen": self.seen,
            "last_step": self.last_step,
            "collapsed": self.collapsed,
            "signs": dict(self.signs),
            "pending": self._pending,
            "pending_sign": dict(self._pending_sign),
            "base": self._base,
            "extreme": None if self._extreme is None else list(self._extreme),
            "noise": self._noise,
            "peak": self._peak,
            "since": self._since,
            "entropy": self._entropy.state_dict(),
            "tracks": {name: track.state_dict() for name, track in self._signs.items()},
            "events": [asdict(event) for event in self.events],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; a missing or surplus key is an error."""
        expected = set(PhaseDetector(self.settings).state_dict())
        if set(state) != expected:
            wrong = ", ".join(sorted(set(state) ^ expected))
            raise ValueError(f"state of the phase detector: missing or unknown {wrong}. Use a matching checkpoint.")
        self.phase, self.seen, self.last_step = state["phase"], state["seen"], state["last_step"]
        self.collapsed, self.signs = state["collapsed"], dict(state["signs"])
        self._pending, self._pending_sign = state["pending"], dict(state["pending_sign"])
        self._base, self._noise, self._peak, self._since = (state[k] for k in ("base", "noise", "peak", "since"))
        self._extreme = None if state["extreme"] is None else tuple(state["extreme"])
        self._entropy.load(state["entropy"])
        for name, track in self._signs.items():
            track.load(state["tracks"][name])
        self.events = [Event(**event) for event in state["events"]]


@dataclass(frozen=True)
class Span:
    """A phase from its onset to the next phase's."""

    phase: str
    first: int
    last: int


def detect(steps, entropy, settings: Phases | None = None, **signs) -> tuple[PhaseDetector, list[Span]]:
    """Run the detector over a whole curve; the spans begin at the estimated onsets.

    ``signs``: ``interference_negative`` and ``valid_log_prob``, sequences as long as ``steps``.
    """
    detector = PhaseDetector(settings)
    extra = [dict(zip(signs, row, strict=True)) for row in zip(*signs.values(), strict=True)] if signs else None
    for i, (step, value) in enumerate(zip(steps, entropy, strict=True)):
        detector.update(int(step), value, **(extra[i] if extra else {}))
    if detector.phase == "warmup":
        return detector, [Span("warmup", int(steps[0]), int(steps[-1]))] if len(steps) else []
    return detector, spans(detector.events, steps)


def spans(events: list[Event], steps) -> list[Span]:
    """Consecutive phases of a run over ``steps``, from the events of its detector."""
    if len(steps) == 0:
        return []
    marks = [("descent", int(steps[0]))]
    for event in events:
        if event.name in PHASES:
            marks.append((event.name, max(event.onset, marks[-1][1])))
    ends = [first for _, first in marks[1:]] + [int(steps[-1])]
    return [Span(name, first, last) for (name, first), last in zip(marks, ends, strict=True)]
