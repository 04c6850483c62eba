# SPDX-License-Identifier: Apache-2.0
"""Phases of a run's entropy, found while it goes on: descent, steady, eruption, subsidence (SEAL, arXiv 2605.27954).

The paper names phases and gives no rule; this one is ours. Neither torch nor verl is imported.

Every finite entropy x enters as y = log(x + LOG_FLOOR), so that noise which grows with the level stays alike:

    level    median of the last ``smooth`` values (of the last 3 where less than every third step is logged)
    noise    median |y_t - y_{t-1}| before the trough, divided by .954 (the value for white noise of std 1)
    wander   the 85 % quantile of how far y's level rose within LAG values before the trough: what a random walk or the waves of a
             curriculum do anyway

and the phase moves by these rules:

    warmup      fewer than ``warmup`` values (fewer where not every step is logged)
    descent     until the level stands above its lowest value within the window, for ``confirm`` steps, by more than
                log(1 + rise_share), rise_sigmas * noise, wander_sigmas * wander * sqrt(values since the trough / LAG), and
                ``rise_nats`` in nats. The window is ``window`` steps or ``window_share`` of the run so far, if that is more.
                What was low for fewer than BOTTOM values has only come back from a dip; so has what is no higher (CLOSE) than a
                plateau from which it had fallen (a dip, a collapse, a wave), if it had been high for PLATEAU times as long as low.
    steady      the same, where the level is not lower than a window before
    eruption    until the level stands ``fall_share`` of the rise (and the noise margin) below its highest value, for
                ``confirm`` steps
    subsidence  until ``settle_share`` of the rise is undone, or the level made no new low for ``settle`` steps; then descent

Events beside the phases:

    step_change  a rise of which one step makes up ``jump_share`` (a jump over missing steps is divided by how many more they are
                 than usual). If the level still stands at half of it ``stay`` steps (and STAYED values) later, that is an eruption all
                 the same. After a resume, which the trainer tells (``resumed``), a shift is a step change and no eruption.
    runaway      an eruption that did not fall within ``runaway`` steps (or ``window_share`` of the run), or a rise too slow for the
                 window: ``runaway_share`` above the run's lowest level since, at least RUNAWAY_STEADY of all its movement upwards
    collapse     the level fell below ``collapse_nats``; recovery: it is back above twice that. The way up to the level before the
                 collapse is no eruption, unless the run was low for FORGOTTEN values.

Delay: the median needs (smooth + 1) / 2 steps, the confirmation ``confirm`` - 1, and the curve must have risen.
``tests/diagnostics/simulated_curves.py`` measures it, beside two simpler rules.

What it cannot do: tell an eruption from a trend or a wave as fast and as high; know a shift by new data or a new temperature, of which
nobody tells it, from a sudden eruption; see one in the first ``warmup`` steps; foretell one (the early signs below are hints and have
no known error rate on real runs); say why entropy rose.

The sign of interference has a value only every ``costly_every`` steps, so at the default of 10 it is silent for the first 90 steps and
then some 30 steps late: set ``costly_every`` to 1 or 2 where it is to warn of anything.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from verl_entropy.config.settings import ConfigError, setting

PHASES = ("warmup", "descent", "eruption", "subsidence", "steady")
"""Their order is the number that is logged."""
EVENTS = (
    *("eruption", "subsidence", "descent", "steady", "step_change", "runaway", "collapse", "recovery"),
    *("sign_interference", "sign_likelihood"),
)
SIGNS = ("sign_interference", "sign_likelihood")

_WHITE = 0.6745 * math.sqrt(2.0)
"""Median of |difference| of two unit normals: turns it into a standard deviation."""

LOG_FLOOR = 0.01
"""Nats added before the logarithm: below that, relative changes mean nothing."""
LAG = 8
"""Values over which a level's wandering is measured."""
STAYED = 3
"""Values that a step change must stay, too, where at least every third step is logged: the median holds a burst of as many no longer."""
FRESH = 5
"""Values after a resume whose median is compared with the level before it."""
SIGN_CONFIRM = 2
"""Values in a row that switch an early sign on."""
KEEP = 400
"""Values kept; a longer window sees every value's level only on the coarse track."""
COARSE = 64
"""Levels of the whole run kept on the coarse track; when it is full every second goes."""
BOTTOM = 10
"""Values that the level must have been nearer to its trough than to where it is now: what came down for less only comes back."""
FORGOTTEN = 100
"""Values of a collapse after which a rise is an eruption even where it only leads back to the level before."""
PLATEAU, FALL, EVEN, CLOSE = 0.4, 20, 0.08, 0.1
"""A rise only comes back where the level had been high for PLATEAU times as long as it was low; BOTTOM levels of that, at most FALL
before the low stretch, were even (the means of their halves differ by at most EVEN); and it is at most CLOSE above their median (in y)."""
RUNAWAY_STEADY = 0.8
"""Least share of a slow rise's movement on the coarse track that goes up."""
FLAT = 0.15
"""Relative fall over a window above which a run descends; it is steady again below half of that."""

ONSET_SHARE = 0.15
"""Part of the rise so far up to which the level counts as not risen yet, when the onset is estimated."""


@dataclass(frozen=True)
class Phases:
    """Settings of the detector of phases."""

    warmup: int = setting(10, "values before the first decision", ge=2)
    smooth: int = setting(5, "values in the running median; odd", ge=1, le=99)
    noise_window: int = setting(60, "values in the estimate of the noise", ge=4)
    window: int = setting(30, "least steps within which an eruption must rise", ge=2)
    window_share: float = setting(
        0.2, "part of the run so far within which an eruption must rise, if that is more", ge=0.0, le=1.0
    )
    rise_nats: float = setting(0.05, "least rise of an eruption in nats", gt=0.0)
    rise_share: float = setting(0.75, "least rise in parts of the lowest level before it", ge=0.0)
    rise_sigmas: float = setting(5.0, "least rise in standard deviations of the noise", ge=0.0)
    wander_sigmas: float = setting(3.0, "least rise in parts of how far the level rose before it without an eruption", ge=0.0)
    confirm: int = setting(1, "steps in a row that a change must hold", ge=1)
    jump_share: float = setting(0.7, "a rise of which one step makes up this share is a step change", gt=0.0, le=1.0)
    stay: int = setting(4, "steps after which a step change that is not undone is an eruption; 0: never", ge=0)
    runaway: int = setting(30, "steps without a fall after which an eruption is a runaway; 0: never", ge=0)
    runaway_share: float = setting(1.5, "rise in parts of the lowest level that makes a slow one a runaway; 0: never", ge=0.0)
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
    """The last values of a series, and their running median."""

    def __init__(self, smooth: int, keep: int):
        self.smooth, self.keep = smooth, max(keep, smooth)
        self.values: list[float] = []
        self.steps: list[int] = []
        self.levels: list[float] = []

    def add(self, step: int, value: float, width: int | None = None) -> None:
        """Take a value; ``width``: of the median, the track's own if None."""
        self.values.append(value)
        self.steps.append(step)
        self.levels.append(_median(self.values[-(width or self.smooth) :]))
        for items in (self.values, self.steps, self.levels):
            del items[: -self.keep]

    @property
    def level(self) -> float:
        return self.levels[-1]

    def noise(self, window: int) -> float:
        return _noise(self.values[-window:])

    def state_dict(self) -> dict[str, list]:
        return {"values": list(self.values), "steps": list(self.steps), "levels": list(self.levels)}

    def load(self, state: dict[str, list]) -> None:
        self.values, self.steps, self.levels = (list(state[k]) for k in ("values", "steps", "levels"))


def _noise(values: list[float]) -> float:
    """Standard deviation of white noise from the median of the differences; 0 of fewer than two values."""
    return _median([abs(b - a) for a, b in pairwise(values)]) / _WHITE if len(values) > 1 else 0.0


def _log(value: float) -> float:
    return math.log(max(value, 0.0) + LOG_FLOOR)


def _stood_there(levels: list[float], level: float, middle: float, place: int, width: int = BOTTOM) -> bool:
    """Whether ``width`` levels stood as high as ``level`` before they fell below ``middle``, on the way to the trough at ``place``."""
    edge = next((i for i in range(place, -1, -1) if levels[i] >= middle), -1) + 1  # where the low stretch began
    high = next((i for i in range(edge - 1, -1, -1) if levels[i] < middle), -1) + 1
    if edge - high <= PLATEAU * sum(v < middle for v in levels[edge:]):
        return False
    for end in range(edge, max(edge - FALL, high + BOTTOM // 2), -1):
        plateau = levels[max(high, end - width) : end]
        half = len(plateau) // 2
        if _median(plateau) >= level - CLOSE and abs(fmean(plateau[:half]) - fmean(plateau[half:])) <= EVEN:
            return True
    return False


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
        self._entropy = _Track(s.smooth, max(KEEP, s.window, s.noise_window))
        self._first: int | None = None
        """Step of the first finite entropy."""
        self._coarse: list[list[float]] = []
        """Every ``_stride``-th level of the run with its step, from the last eruption's end on."""
        self._stride = 1
        self._jump: list[float] | None = None
        """A step change that may stay: its step, trough, level, onset and noise, and the values seen then."""
        self._resume: list[float] | None = None
        """Level before a resume, and values still to come before the shift is judged."""
        self._fresh = 0
        """Values since a resume: the median does not reach back across it."""
        self._ran_away = False
        self._began = 0
        """Step at which the current eruption was seen."""
        self._turning = 0
        """Steps for which the calm phase looked like the other one."""
        self._gap = 1.0
        """Median distance of the last steps that had a value."""
        self._recovering: list[float] | None = None
        """Highest level since a collapse, its step, and the values seen when it collapsed; None: not recovering."""
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
            self._fresh += 1
            self._first = int(step) if self._first is None else self._first
            recent = [*self._entropy.steps[-9:], int(step)]
            self._gap = _median([b - a for a, b in pairwise(recent)]) if len(recent) > 2 else 1.0
            width = self.settings.smooth if self._gap < 3 else min(3, self.settings.smooth)
            self._entropy.add(int(step), value, min(width, max(self._fresh, 1)))
            if self.seen >= self._warmup():
                found += self._advance(int(step))
            self._remember(int(step))
        self.events += found
        return found

    def resumed(self) -> None:
        """Tell that the next value comes after a resume: a shift between the two is a step change and no eruption."""
        if self.seen:
            self._resume = [self._entropy.level, FRESH]
            self._fresh, self._since, self._pending, self._jump = 0, self.seen, 0, None
            self._coarse, self._stride = [], 1

    # ------------------------------------------------------------------ scales

    def _warmup(self) -> int:
        least = max(4, math.ceil(2 * self.settings.warmup / max(self._gap, 1)))
        return min(self.settings.warmup, least)

    def _window(self, least: int) -> float:
        """``least`` steps, a share of the run so far, or six values, whichever is most."""
        ran = self._entropy.steps[-1] - self._first
        return max(least, self.settings.window_share * ran, 6 * self._gap)

    def _confirm(self) -> int:
        return self.settings.confirm if self._gap < 3 else 1

    def _remember(self, step: int) -> None:
        """Keep the level on the coarse track."""
        if self._fresh >= self.settings.smooth and self.seen % self._stride == 0:  # a median of one value is noise
            self._coarse.append([self._entropy.level, step])
        if len(self._coarse) > COARSE:
            self._coarse, self._stride = self._coarse[::2], self._stride * 2

    # ------------------------------------------------------------------ rules

    def _advance(self, step: int) -> list[Event]:
        found = self._collapse(step) + self._shift(step)
        calm = self.phase in ("warmup", "descent", "steady")
        if calm:
            found += self._flat(step)
            rule = self._descent
        else:
            rule = {"eruption": self._eruption, "subsidence": self._subsidence}[self.phase]
        event = None if self._resume is not None else rule(step)
        return found + ([event] if event else [])

    def _shift(self, step: int) -> list[Event]:
        """Compare the level after a resume with that before it, once FRESH values are there."""
        if self._resume is None:
            return []
        self._resume[1] -= 1
        if self._resume[1] > 0:
            return []
        before, level = self._resume[0], self._entropy.level
        self._resume, self._since = None, self.seen - 1
        change = abs(_log(level) - _log(before))
        if change <= math.log1p(self.settings.rise_share) or abs(level - before) <= self.settings.rise_nats:
            return []
        if self.phase in ("eruption", "subsidence"):
            self.phase = "descent"
        return [Event("step_change", step, self._entropy.steps[-FRESH], level)]

    def _flat(self, step: int) -> list[Event]:
        """Whether the calm phase is a descent, by the level a window before; both names only after a verdict of some steps."""
        levels, steps = self._entropy.levels, self._entropy.steps
        then = bisect_left(steps, step - self._window(self.settings.window), hi=len(steps) - 1)
        fall = math.log((max(levels[then], 0.0) + LOG_FLOOR) / (max(levels[-1], 0.0) + LOG_FLOOR))
        if self.phase == "warmup":
            self.phase = "descent" if fall > FLAT else "steady"
            return [] if self.phase == "descent" else [Event("steady", step, self._first, levels[-1])]
        falls = fall > (FLAT if self.phase == "steady" else 0.5 * FLAT)
        same = falls == (self.phase == "descent") or self.seen - self._since < self.settings.window
        self._turning = 0 if same else self._turning + 1
        if self._turning < self.settings.settle:
            return []
        self.phase, self._turning = "descent" if falls else "steady", 0
        return [Event(self.phase, step, steps[-self.settings.settle], levels[-1])]

    def _confirmed(self, condition: bool) -> bool:
        self._pending = self._pending + 1 if condition else 0
        if self._pending >= self._confirm():
            self._pending = 0
            return True
        return False

    def _trough(self) -> tuple[float, int]:
        """Lowest level of the window and its place in the track."""
        levels, steps = self._entropy.levels, self._entropy.steps
        first = max(len(levels) - max(self.seen - self._since, 1), 0)
        first = bisect_left(steps, steps[-1] - self._window(self.settings.window), lo=first, hi=len(steps) - 1)
        lowest = min(levels[first:])
        return lowest, levels.index(lowest, first)

    def _risen(self, level: float, trough: float, place: int) -> tuple[bool, float]:
        """Whether a rise to ``level`` is that of an eruption, and the noise before it in nats (estimated only where it decides)."""
        s, track = self.settings, self._entropy
        rise = _log(level) - _log(trough)
        if level - trough <= s.rise_nats or rise <= math.log1p(s.rise_share):
            return False, 0.0
        fresh = max(len(track.levels) - max(self.seen - self._since, 1), 0)
        if self._returns([_log(v) for v in track.levels[fresh:]], _log(level), _log(trough), place - fresh):
            return False, 0.0
        first = max(fresh, place - s.noise_window)
        before = track.values[first : place + 1]
        noise = _noise([_log(v) for v in (before if len(before) >= LAG else track.values[first : first + LAG + 1])])
        levels = [_log(v) for v in track.levels[first : place + 1]]
        ups = sorted(max(b - a, 0.0) for a, b in zip(levels, levels[LAG:], strict=False))
        wander = ups[int(0.85 * len(ups))] if len(ups) >= LAG else 0.0
        spread = math.sqrt(max((len(track.levels) - 1 - place) / LAG, 1.0))
        return rise > max(s.rise_sigmas * noise, s.wander_sigmas * wander * spread), noise * (trough + LOG_FLOOR)

    def _returns(self, levels: list[float], level: float, trough: float, place: int) -> bool:
        """Whether a rise from the trough, at this place of the levels, only comes back from a dip."""
        middle = 0.5 * (level + trough)
        low = sum(v < middle for v in levels)
        return low < min(BOTTOM, len(levels) // 2) or _stood_there(levels, level, middle, place)

    def _descent(self, step: int) -> Event | None:
        track = self._entropy
        if self._recovers(step):
            self._pending = 0
            return None
        if self._jump is not None:
            return self._stays(step)
        trough, place = self._trough()
        risen, noise = self._risen(track.level, trough, place)
        if not self._confirmed(risen):
            return self._slow(step)
        onset = self._onset(trough, place)
        first = max(place - self.settings.smooth // 2, 0)
        pairs = zip(pairwise(track.values[first:]), pairwise(track.steps[first:]), strict=True)
        jump = max((b - a) / max((t - s) / self._gap, 1.0) for (a, b), (s, t) in pairs)
        if jump >= self.settings.jump_share * (track.level - trough) and self.settings.stay:
            self._jump = [step, trough, track.level, onset, noise, self.seen]
            return Event("step_change", step, onset, track.level)
        return self._erupt("eruption", step, onset, trough, noise)

    def _erupt(self, name: str, step: int, onset: int, trough: float, noise: float) -> Event:
        self.phase, self._base, self._noise, self._jump = "eruption", trough, noise, None
        self._extreme = (self._entropy.level, step)
        self._began, self._ran_away = step, name == "runaway"
        return Event(name, step, onset, self._entropy.level)

    def _stays(self, step: int) -> Event | None:
        """A step change: undone, or an eruption after ``stay`` steps."""
        at, trough, reached, onset, noise, seen = self._jump
        if self._entropy.level - trough < 0.5 * (reached - trough):
            self._jump = None
            return None
        stayed = step - at >= self.settings.stay and (self._gap > 3 or self.seen - seen >= STAYED)
        return self._erupt("eruption", step, int(onset), trough, noise) if stayed else None

    def _slow(self, step: int) -> Event | None:
        """A steady rise that is too slow for the window."""
        s, level = self.settings, self._entropy.level
        if not s.runaway_share or len(self._coarse) < LAG:
            return None
        trough, onset = min(self._coarse)
        if step - onset <= self._window(s.window):
            return None
        if level - trough <= s.rise_nats or _log(level) - _log(trough) <= math.log1p(s.runaway_share):
            return None
        levels, middle = [_log(v) for v, _ in self._coarse], 0.5 * (_log(level) + _log(trough))
        place, widths = self._coarse.index([trough, onset]), (BOTTOM, BOTTOM // 2)  # few coarse levels may be many values
        if any(_stood_there(levels, _log(level), middle, place, width) for width in widths):
            return None
        path = [v for v, (_, at) in zip(levels, self._coarse, strict=True) if at >= onset]
        path = [*path[:: max(len(path) // 12, 1)], _log(level)]
        moved = sum(abs(b - a) for a, b in pairwise(path))
        if len(path) < 5 or path[-1] - path[0] < RUNAWAY_STEADY * moved:
            return None
        return self._erupt("runaway", step, int(onset), trough, 0.0)

    def _recovers(self, step: int) -> bool:
        """Whether the level is on its way back from a collapse to what it was before."""
        if self._recovering is None:
            return False
        level = self._entropy.level
        if level > self._recovering[0]:
            self._recovering[:2] = [level, step]
        if self.collapsed:
            return True
        if level > self._before_collapse() * (1.0 + self.settings.rise_share):  # more than it lost: the whole rise counts
            self._recovering = None
            return False
        if step - self._recovering[1] < self.settings.settle:
            return True
        self._recovering, self._since = None, self.seen
        self._coarse, self._stride = [], 1
        return False

    def _before_collapse(self) -> float:
        """Highest level before the collapse; that of its begin once the run was low for FORGOTTEN values."""
        levels = self._entropy.levels
        began = max(len(levels) - (self.seen - int(self._recovering[2])), 1)
        low = sum(level < 2.0 * self.settings.collapse_nats for level in levels[began - 1 :])
        return levels[began - 1] if low > FORGOTTEN else max(levels[:began])

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
        lasts = step - self._began >= self._window(self.settings.runaway)
        if self.settings.runaway and lasts and not self._ran_away:
            self._ran_away = True
            return Event("runaway", step, self._began, level)
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
        self._coarse, self._stride = [], 1
        return Event("descent", step, onset, low)

    def _collapse(self, step: int) -> list[Event]:
        level, least = self._entropy.level, self.settings.collapse_nats
        below = level < (2.0 * least if self.collapsed else least)  # it is over at twice the level at which it began
        name = {(True, False): "collapse", (False, True): "recovery"}.get((below, self.collapsed))
        self.collapsed = below
        if below and self._recovering is None:
            self._recovering = [level, step, self.seen]
        return [Event(name, step, step, level)] if name else []

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
        was, self.signs[name] = self.signs[name], self._pending_sign[name] >= SIGN_CONFIRM
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
            "first": self._first,
            "coarse": [list(item) for item in self._coarse],
            "stride": self._stride,
            "jump": None if self._jump is None else list(self._jump),
            "resume": None if self._resume is None else list(self._resume),
            "fresh": self._fresh,
            "ran_away": self._ran_away,
            "began": self._began,
            "turning": self._turning,
            "gap": self._gap,
            "recovering": None if self._recovering is None else list(self._recovering),
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
        self._first, self._stride, self._fresh, self._began = (state[k] for k in ("first", "stride", "fresh", "began"))
        self._ran_away, self._turning, self._gap = (state[k] for k in ("ran_away", "turning", "gap"))
        self._coarse = [list(item) for item in state["coarse"]]
        self._jump, self._resume, self._recovering = (
            None if state[k] is None else list(state[k]) for k in ("jump", "resume", "recovering")
        )
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


def detect(
    steps, entropy, settings: Phases | None = None, *, resumes: Collection[int] = (), **signs
) -> tuple[PhaseDetector, list[Span]]:
    """Run the detector over a whole curve; the spans begin at the estimated onsets.

    ``resumes``: first steps after a resume; of one that was not logged the next one counts.
    ``signs``: ``interference_negative`` and ``valid_log_prob``, sequences as long as ``steps``.
    """
    detector = PhaseDetector(settings)
    extra = [dict(zip(signs, row, strict=True)) for row in zip(*signs.values(), strict=True)] if signs else None
    waiting = sorted(resumes)
    for i, (step, value) in enumerate(zip(steps, entropy, strict=True)):
        if waiting and int(step) >= waiting[0]:
            waiting = [at for at in waiting if at > int(step)]
            detector.resumed()
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
        name = "eruption" if event.name == "runaway" else event.name
        if name in PHASES and name != marks[-1][0]:
            onset = max(event.onset, marks[-1][1])
            if onset == marks[-1][1] and len(marks) == 1:
                marks.pop()  # a run that is steady from its first step
            marks.append((name, onset))
    ends = [first for _, first in marks[1:]] + [int(steps[-1])]
    return [Span(name, first, last) for (name, first), last in zip(marks, ends, strict=True)]


def classify(names: Sequence[str]) -> str:
    """Class of a run from the names of the detector's events; an eruption outweighs a step change, that a collapse."""
    counts = Counter(names)
    if counts["eruption"] or counts["runaway"]:
        return "cyclical" if counts["eruption"] > 1 else "eruption"
    return next((name for name in ("step_change", "collapse") if counts[name]), "quiet")
