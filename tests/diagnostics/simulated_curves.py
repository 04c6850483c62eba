# SPDX-License-Identifier: Apache-2.0
"""Simulated entropy curves with known events, and what the phase detector makes of them.

    python tests/diagnostics/simulated_curves.py            prints the table
    python tests/diagnostics/simulated_curves.py --write    and writes detector_results.json beside this file

The curves are drawn, not trained: they say how the rule treats shapes, and nothing about how often real runs have them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from verl_entropy.diagnostics.phases import Phases, classify, detect

RESULTS = Path(__file__).with_name("detector_results.json")
BENCH = Path(__file__).parents[2] / "recipes/bench/results"
LENGTH = 200
"""Steps of a curve; the papers train 125 to 200."""
MISSING = 0.03
"""Share of steps whose entropy is NaN."""
CLASSES = ("quiet", "collapse", "eruption", "cyclical", "step_change")


@dataclass(frozen=True)
class Curve:
    """A simulated entropy curve (nats) and the truth about it."""

    kind: str
    expected: str
    """One of CLASSES."""
    entropy: np.ndarray
    onsets: tuple[int, ...] = ()
    """First steps of its eruptions."""
    rises: tuple[int, ...] = ()
    """Steps that each eruption takes to its peak."""
    resume: int | None = None
    """First step after a resume, of which the detector is told."""


def _descent(rng: np.random.Generator, steps: np.ndarray) -> np.ndarray:
    """Entropy that settles: from a start to a floor, as in the first phase of a run."""
    start, floor = rng.uniform(0.3, 1.2), rng.uniform(0.12, 0.3)
    return floor + (start - floor) * np.exp(-steps / rng.uniform(10, 40))


def _bump(rng, steps: np.ndarray, onset: int, rise=(8, 26), height=(0.4, 2.5)) -> tuple[np.ndarray, int, int]:
    """Rise to a peak and fall: the bump, the steps up, and the first step after it."""
    up, hold, down = int(rng.integers(*rise)), int(rng.integers(0, 10)), int(rng.integers(8, 26))
    knots = [onset, onset + up, onset + up + hold, onset + up + hold + down]
    shape = np.interp(steps, knots, [0.0, 1.0, 1.0, rng.uniform(0.0, 0.2)])
    shape = np.where(steps < onset, 0.0, shape)
    return rng.uniform(*height) * shape**1.5, up, knots[-1]


def _quiet_white(rng, steps):
    return _descent(rng, steps), "quiet", (), ()


def _quiet_heavy(rng, steps):
    """Another 15 to 30 % of white noise: small batches."""
    return _descent(rng, steps) * (1 + rng.normal(0, rng.uniform(0.15, 0.3), len(steps))), "quiet", (), ()


def _quiet_correlated(rng, steps):
    noise, decay, scale = np.zeros(len(steps)), rng.uniform(0.5, 0.95), rng.uniform(0.003, 0.012)
    for i in range(1, len(steps)):
        noise[i] = decay * noise[i - 1] + rng.normal(0, scale)
    return _descent(rng, steps) + noise, "quiet", (), ()


def _drift_up(rng, steps):
    """A trend of up to a doubling over the run."""
    start = rng.uniform(0.2, 0.8)
    return start * (1 + rng.uniform(0.3, 1.0) * steps / LENGTH), "quiet", (), ()


def _drift_fast(rng, steps):
    """A steady rise to three to six times the start, without a bend: a runaway."""
    return rng.uniform(0.2, 0.5) * (1 + rng.uniform(2.0, 5.0) * steps / LENGTH), "eruption", (), ()


def _drift_down(rng, steps):
    start = rng.uniform(0.4, 1.5)
    return start * (1 - rng.uniform(0.3, 0.9) * steps / LENGTH), "quiet", (), ()


def _collapse(rng, steps):
    return rng.uniform(0.3, 1.2) * np.exp(-steps / rng.uniform(8, 30)), "collapse", (), ()


def _single(rng, steps):
    onset = int(rng.integers(40, 120))
    bump, up, _ = _bump(rng, steps, onset)
    return _descent(rng, steps) + bump, "eruption", (onset,), (up,)


def _single_slow(rng, steps):
    """An eruption that takes 30 to 60 steps and gains .15 to .5 nats."""
    onset = int(rng.integers(40, 100))
    bump, up, _ = _bump(rng, steps, onset, rise=(30, 61), height=(0.15, 0.5))
    return _descent(rng, steps) + bump, "eruption", (onset,), (up,)


def _single_sudden(rng, steps):
    """An eruption at its peak after 1 to 4 steps."""
    onset = int(rng.integers(40, 120))
    bump, up, _ = _bump(rng, steps, onset, rise=(1, 5))
    return _descent(rng, steps) + bump, "eruption", (onset,), (up,)


def _cyclical(rng, steps):
    curve, onset, onsets, rises = _descent(rng, steps), int(rng.integers(25, 50)), [], []
    while onset < LENGTH - 50 or len(onsets) < 2:
        bump, up, end = _bump(rng, steps, onset)
        curve, onsets, rises = curve + bump, [*onsets, onset], [*rises, up]
        onset = end + int(rng.integers(12, 35))
    return curve, "cyclical", tuple(onsets), tuple(rises)


def _step_up(rng, steps):
    """A shift at a resume."""
    at = int(rng.integers(40, 160))
    return _descent(rng, steps) + rng.uniform(0.3, 1.5) * (steps >= at), "step_change", (), (), at


def _step_soft(rng, steps):
    """A rise within 1 to 6 steps, of which nobody tells, and which stays."""
    at, width = int(rng.integers(40, 160)), int(rng.integers(1, 7))
    return _descent(rng, steps) + rng.uniform(0.3, 1.5) * np.clip((steps - at) / width, 0, 1), "eruption", (at,), (width,)


def _step_down(rng, steps):
    at = int(rng.integers(40, 160))
    return _descent(rng, steps) + rng.uniform(0.3, 1.5) * (steps < at), "quiet", (), ()


KINDS: dict[str, Callable] = {
    "noise, white": _quiet_white,
    "noise, heavy": _quiet_heavy,
    "noise, correlated": _quiet_correlated,
    "drift up": _drift_up,
    "runaway": _drift_fast,
    "drift down": _drift_down,
    "step down": _step_down,
    "resume, shifted": _step_up,
    "step that stays": _step_soft,
    "collapse": _collapse,
    "single eruption": _single,
    "eruption, slow": _single_slow,
    "eruption, sudden": _single_sudden,
    "cyclical eruptions": _cyclical,
}


def _family(rng: np.random.Generator, name: str) -> tuple[np.ndarray, np.ndarray, int | None, int | None]:
    """Steps, entropies, first step of the (first) eruption or None, and first step after a resume or None."""
    n = 400 if name in ("long run",) else LENGTH
    steps = np.arange(n, dtype=float)
    sigma, clean, onset, resume = rng.uniform(0.02, 0.1), _descent(rng, steps), None, None
    if name in ERUPTING:
        onset = int(rng.integers(*{"early": (18, 30), "late": (150, 175), "long run": (200, 330)}.get(name, (40, 120))))
        rise = {"slow": (30, 61), "sudden": (1, 5)}.get(name, (8, 26))
        height = {"slow": (0.25, 0.6), "low": (0.15, 0.3), "tall": (2.0, 5.0)}.get(name, (0.4, 2.5))
        bump, up, end = _bump(rng, steps, onset, rise, height)
        if name == "low":
            clean = rng.uniform(0.04, 0.08) + 0.2 * np.exp(-steps / 15)
        if name == "stays high":
            bump = np.maximum.accumulate(bump)
        if name == "cyclical":
            bump = bump + _bump(rng, steps, min(end + 20, n - 20))[0]
        clean = clean + bump
        if name == "after a resume":
            resume = int(rng.integers(20, onset - 10))
            clean = clean + rng.uniform(0.2, 0.8) * (steps >= resume)
    elif name == "log random walk":
        clean = rng.uniform(0.2, 0.8) * np.exp(np.cumsum(rng.normal(0, rng.uniform(0.02, 0.04), n)))
    elif name == "curriculum waves":
        wave = np.sin(2 * np.pi * (steps / rng.uniform(25, 60) + rng.random()))
        clean = rng.uniform(0.2, 0.8) * (1 + rng.uniform(0.1, 0.25) * wave)
    elif name == "collapse, then recovery":
        low = int(rng.integers(40, 90))
        down = rng.uniform(0.3, 1.2) * np.exp(-steps / rng.uniform(6, 12))
        back = rng.uniform(0.1, 0.3) * np.clip((steps - low) / rng.uniform(10, 40), 0, 1)
        clean = down + back
    elif name == "strong waves":
        clean = rng.uniform(0.3, 0.8) * rng.uniform(1.6, 2.4) ** (0.5 * np.cos(2 * np.pi * steps / rng.uniform(30, 90)))
    elif name == "plateau, collapse, recovery":
        low = int(rng.integers(60, 90))
        down = np.clip((steps - low) / rng.uniform(4, 20), 0, 1)
        back = np.clip((steps - low - rng.uniform(30, 70)) / rng.uniform(10, 40), 0, 1)
        pit = rng.uniform(0.55, 0.85)
        clean = rng.uniform(0.3, 1.2) * (1 - pit * down + (pit - rng.uniform(0.0, 0.2)) * back)
    elif name == "flat":
        clean = np.full(n, rng.uniform(0.1, 1.0))
    elif name == "drift up":
        clean = _drift_up(rng, steps)[0]
    elif name == "drift down":
        clean = _drift_down(rng, steps)[0]
    elif name == "heavy noise":
        sigma = rng.uniform(0.15, 0.3)
    elif name == "correlated noise":
        clean = _quiet_correlated(rng, steps)[0]
    elif name == "step down":
        clean = _step_down(rng, steps)[0]
    elif name == "a resume's shift":
        resume = int(rng.integers(40, 160))
        clean = clean + rng.uniform(0.3, 1.5) * (steps >= resume)
    noise = sigma * rng.normal(size=n)
    if name == "noise that grows":
        noise *= 1 + 3 * clean / clean.max()
    entropy = np.maximum(clean * (1 + noise), 0.0)
    entropy[rng.random(n) < MISSING] = np.nan
    if name == "missing in the rise":
        at = onset + int(rng.integers(0, max(up // 2, 1)))
        entropy[at : at + 10] = np.nan
    if name == "every fifth step":
        entropy[steps % 5 != 0] = np.nan
    return steps, entropy, onset, resume


ERUPTING = (
    *("single", "slow", "sudden", "cyclical", "low", "tall", "early", "late", "stays high", "long run"),
    *("missing in the rise", "noise that grows", "every fifth step", "after a resume"),
)
CALM = (
    *("white noise", "heavy noise", "correlated noise", "drift up", "drift down", "step down", "flat"),
    *("log random walk", "curriculum waves", "collapse, then recovery", "plateau, collapse, recovery"),
)
WAVES = "strong waves"
"""As high and as fast as an eruption, and none: what no rule can tell at the first crest."""
SHIFT = "a resume's shift"
FAMILIES = (*ERUPTING, *CALM, SHIFT, WAVES)


def ours(steps: np.ndarray, entropy: np.ndarray, resume: int | None, settings: Phases | None = None) -> list[int]:
    """Steps at which the detector calls an eruption or a runaway."""
    detector = detect(steps, entropy, settings, resumes=() if resume is None else (resume,))[0]
    return [event.step for event in detector.events if event.name in ("eruption", "runaway")]


def trough_times_two(steps: np.ndarray, entropy: np.ndarray, resume: int | None) -> list[int]:
    """The first step at which the median of 5 stands at twice the lowest of the last 60 steps (and .05 nats above it); values before
    a resume do not count."""
    recent: list[float] = []
    levels: list[float] = []
    for step, value in zip(steps, entropy, strict=True):
        if step == resume:
            recent, levels = [], []
        if not np.isfinite(value):
            continue
        recent = [*recent[-4:], float(value)]
        if len(recent) == 5:
            levels = [*levels[-59:], sorted(recent)[2]]
            if levels[-1] > max(2 * min(levels), min(levels) + 0.05):
                return [int(step)]
    return []


def cusum(steps: np.ndarray, entropy: np.ndarray, resume: int | None, drift: float = 1.0, limit: float = 12.0) -> list[int]:
    """The first step at which the one-sided sum of (deviation from a slow mean, in standard deviations, minus ``drift``) passes
    ``limit``; mean and deviation are exponential with 1/20, from 10 values on. It begins anew at a resume."""
    mean = spread = total = 0.0
    count = 0
    for step, value in zip(steps, entropy, strict=True):
        if step == resume:
            count = 0
        if not np.isfinite(value):
            continue
        if count == 0:
            mean, spread, total = float(value), 0.0, 0.0
        z = (value - mean) / max(spread, 0.02) if count >= 10 else 0.0
        total = max(total + z - drift, 0.0)
        if total > limit:
            return [int(step)]
        mean, spread, count = mean + (value - mean) / 20, spread + (abs(value - mean) * 1.25 - spread) / 20, count + 1
    return []


RULES = {"ours": ours, "trough x 2": trough_times_two, "CUSUM": cusum}


def evaluate_families(seeds: int = 100, rules: Sequence[str] = tuple(RULES), families: Sequence[str] = FAMILIES) -> dict:
    """Per rule: share of the erupting families' curves whose first eruption was found (an alarm from its onset to 60 steps later, and
    none before), of the calm ones with an alarm, of resumes called one, and the median delay. All rules know the resumes."""
    found: dict[str, dict] = {}
    for rule in rules:
        rates, delays = {}, []
        for name in families:
            hits = 0
            for seed in range(seeds):
                steps, entropy, onset, resume = _family(np.random.default_rng([seed, FAMILIES.index(name)]), name)
                alarms = RULES[rule](steps, entropy, resume)
                if onset is None:
                    hits += bool(alarms)
                elif alarms and onset <= alarms[0] < onset + 60:
                    hits += 1
                    delays.append(alarms[0] - onset)
            rates[name] = round(hits / seeds, 3)
        chosen = {key: [rates[n] for n in group if n in rates] for key, group in (("found", ERUPTING), ("false_alarms", CALM))}
        found[rule] = {key: round(float(np.mean(values)), 4) for key, values in chosen.items() if values}
        found[rule].update(
            {
                "shift": rates.get(SHIFT),
                "waves": rates.get(WAVES),
                "delay": float(np.median(delays or [np.nan])),
                "families": rates,
            }
        )
    return found


def evaluate_bench(rules: Sequence[str] = tuple(RULES)) -> dict:
    """Per rule: of the bench's real runs that erupted, those found; of the others, those with an alarm.

    Erupted: by the bench's own outcome, and highest after step 10; before that it is the fall from the start.
    """
    found = {rule: {"erupted": 0, "found": 0, "calm": 0, "alarmed": 0} for rule in rules}
    for path in sorted(BENCH.rglob("*.json")):
        run = json.loads(path.read_text())
        entropy = np.array([np.nan if v is None else v for v in run["curves"]["entropy"]])
        highest = int(np.argmax(np.convolve(np.nan_to_num(entropy), np.ones(5) / 5, mode="valid")))
        erupted = bool(run["outcome"]["erupted"]) and highest >= 10
        for rule in rules:
            alarms = RULES[rule](np.arange(1, len(entropy) + 1), entropy, None)
            found[rule]["erupted" if erupted else "calm"] += 1
            found[rule]["found" if erupted else "alarmed"] += bool(alarms)
    return found


HARD = ("eruption, slow",)
"""Shapes of which some are smaller than the rule's least rise; counted apart."""
RISING = ("eruption", "cyclical")


def corpus(per_kind: int, seed: int) -> list[Curve]:
    """``per_kind`` curves of each kind, with multiplicative white noise of 2 to 10 % and missing values."""
    rng = np.random.default_rng(seed)
    steps = np.arange(LENGTH, dtype=float)
    curves = []
    for kind, draw in KINDS.items():
        for _ in range(per_kind):
            clean, expected, onsets, rises, *resume = draw(rng, steps)
            noisy = np.maximum(clean * (1 + rng.normal(0, rng.uniform(0.02, 0.1), LENGTH)), 0.0)
            noisy[rng.random(LENGTH) < MISSING] = np.nan
            curves.append(Curve(kind, expected, noisy, onsets, rises, *resume))
    return curves


def _delays(curve: Curve, seen: list[tuple[int, int]]) -> list[tuple[int, float, int]]:
    """Per true eruption that was found: delay in steps, share of its rise gone by then, error of the estimated onset."""
    found = []
    limits = [*curve.onsets[1:], LENGTH] if curve.onsets else []
    for onset, rise, limit in zip(curve.onsets, curve.rises, limits, strict=True):
        hit = next((s for s in seen if onset <= s[0] < limit), None)
        if hit is not None:
            found.append((hit[0] - onset, (hit[0] - onset) / rise, hit[1] - onset))
    return found


def evaluate_detector(settings: Phases | None = None, *, per_kind: int = 50, seed: int = 1) -> dict:
    """Confusion matrix over kinds of curves, false alarms, misses and delay of the detector, as plain JSON values.

    Shares are of curves, delays in steps; alarms before the onset of a true eruption are not counted apart. The same people wrote
    the rule and drew the curves, so read the numbers as a description of the rule, not as its accuracy on real runs.
    """
    confusion: dict[str, Counter] = {kind: Counter() for kind in KINDS}
    correct, right_easy, delays, onsets, alarms, quiet_steps, signs = 0, 0, [], 0, 0, 0, 0
    curves = corpus(per_kind, seed)
    rng = np.random.default_rng(seed)
    for curve in curves:
        sign = -1.0 + 0.05 * rng.normal(size=LENGTH)  # no fall in it: every sign is a false one
        resumes = () if curve.resume is None else (curve.resume,)
        detector, _ = detect(np.arange(LENGTH), curve.entropy, settings, resumes=resumes, valid_log_prob=sign)
        names = [event.name for event in detector.events]
        signs += "sign_likelihood" in names
        confusion[curve.kind][classify(names)] += 1
        correct += classify(names) == curve.expected
        right_easy += classify(names) == curve.expected and curve.kind not in HARD
        eruptions = [(e.step, e.onset) for e in detector.events if e.name == "eruption"]
        delays += _delays(curve, eruptions)
        onsets += len(curve.onsets)
        if curve.expected not in RISING:
            alarms += len(eruptions)
            quiet_steps += LENGTH
    delay = np.array([d for d, _, _ in delays] or [np.nan], dtype=float)
    share = np.array([s for _, s, _ in delays] or [np.nan])
    error = np.array([abs(e) for _, _, e in delays] or [np.nan], dtype=float)
    return {
        "curves": len(curves),
        "steps_per_curve": LENGTH,
        "seed": seed,
        "expected": {c.kind: c.expected for c in curves},
        "confusion": {kind: {c: row[c] for c in CLASSES} for kind, row in confusion.items()},
        "accuracy": round(correct / len(curves), 4),
        "accuracy_without_hard": round(right_easy / max(sum(c.kind not in HARD for c in curves), 1), 4),
        "false_alarm_rate_per_run": round(_false_alarms(confusion, ()), 4),
        "false_alarm_rate_per_run_without_hard": round(_false_alarms(confusion, HARD), 4),
        "false_alarms_per_1000_steps": round(1000 * alarms / quiet_steps, 4),
        "false_sign_rate_per_run": round(signs / len(curves), 4),
        "eruptions": onsets,
        "eruptions_found": round(len(delays) / max(onsets, 1), 4),
        "delay_steps": {name: round(float(np.percentile(delay, q)), 2) for name, q in (("p10", 10), ("p50", 50), ("p90", 90))},
        "delay_share_of_rise": {name: round(float(np.percentile(share, q)), 3) for name, q in (("p50", 50), ("p90", 90))},
        "onset_error_steps": {name: round(float(np.percentile(error, q)), 2) for name, q in (("p50", 50), ("p90", 90))},
    }


def _false_alarms(confusion: dict[str, Counter], without: Sequence[str]) -> float:
    """Share of the curves without an eruption in which one was called."""
    rising = {"runaway", "step that stays", *(kind for kind in KINDS if "eruption" in kind)}
    rows = [row for kind, row in confusion.items() if kind not in rising and kind not in without]
    return sum(row["eruption"] + row["cyclical"] for row in rows) / max(sum(row.total() for row in rows), 1)


def render(result: dict) -> str:
    """The table and numbers of ``diagnostics/README.md``, in 80 columns."""
    lines = [f"{'simulated curve':<20}{'expected':<13}" + "".join(f"{c[:8]:>9}" for c in CLASSES)]
    for kind, row in result["confusion"].items():
        lines.append(f"{kind:<20}{result['expected'][kind]:<13}" + "".join(f"{row[c]:>9}" for c in CLASSES))
    d, s, e = result["delay_steps"], result["delay_share_of_rise"], result["onset_error_steps"]
    lines += [
        "",
        f"{result['curves']} curves of {result['steps_per_curve']} steps; called right: {result['accuracy']:.1%},",
        f"  {result['accuracy_without_hard']:.1%} without {'; '.join(HARD)}",
        f"false alarms: {result['false_alarm_rate_per_run']:.2%} of the curves without an eruption,",
        f"  {result['false_alarm_rate_per_run_without_hard']:.2%} without those; "
        f"false early sign in {result['false_sign_rate_per_run']:.2%}",
        f"eruptions found: {result['eruptions_found']:.1%} of {result['eruptions']}",
        f"delay: {d['p50']:.0f} steps after the onset (80 %: {d['p10']:.0f} to {d['p90']:.0f}), "
        f"{s['p50']:.0%} of the way to the peak",
        f"estimated onset is off by {e['p50']:.0f} steps (90 %: within {e['p90']:.0f})",
    ]
    if families := result.get("families"):
        lines += ["", f"{'rule, ' + str(result['family_seeds']) + ' seeds':<20}{'found':>8}{'false':>8}{'shift':>8}{'delay':>8}"]
        for rule, row in families.items():
            shares = "".join(f"{row[key]:>8.1%}" for key in ("found", "false_alarms", "shift"))
            lines.append(f"{rule:<20}{shares}{row['delay']:>8.0f}")
    for rule, row in result.get("bench", {}).items():
        lines.append(
            f"real runs of the bench, {rule}: {row['found']} of {row['erupted']} found, {row['alarmed']} of {row['calm']} false"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the evaluation, and write it with --write."""
    parser = argparse.ArgumentParser(description="Evaluate the phase detector.")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-kind", type=int, default=50)
    parser.add_argument("--family-seeds", type=int, default=100)
    args = parser.parse_args(argv)
    result = evaluate_detector(per_kind=args.per_kind, seed=args.seed)
    result["families"], result["family_seeds"] = evaluate_families(args.family_seeds), args.family_seeds
    result["bench"] = evaluate_bench()
    print(render(result))
    if args.write:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
