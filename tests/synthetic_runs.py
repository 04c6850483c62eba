# SPDX-License-Identifier: Apache-2.0
"""Runs written by the real writer from drawn curves: what the tests of report, diff and advice read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from verl_entropy.runs.runfile import RunSettings, RunWriter

P = "verl_entropy/"
HOSTILE = (
    "</span></div><script>document.title='pwned'</script>",
    '"><img src=x onerror="document.title=1">',
    "<svg/onload=alert(1)>",
    "\u202egnp.exe\x00\x1b[31m",
    "javascript:alert(1)",
    "\ud800",
)


def entropy_curve(steps: int, *, erupts: bool, seed: int) -> np.ndarray:
    """Descent, and with ``erupts`` a rise at 40 % of the run to a peak at 55 % and back."""
    x = np.arange(steps)
    curve = 0.25 + 0.6 * np.exp(-x / (0.12 * steps))
    if erupts:
        curve = curve + np.interp(x, [0.4 * steps, 0.55 * steps, 0.6 * steps, 0.75 * steps], [0, 1.3, 1.3, 0.1])
    return curve * (1 + np.random.default_rng(seed).normal(0, 0.04, steps))


def metrics_of(step: int, h: float, share: float, rng: np.random.Generator) -> dict[str, float]:
    """A full set of metrics around entropy ``h`` at ``share`` of the run."""
    found = {
        "entropy": h,
        "success": min(0.2 + 0.6 * share, 0.8) - 0.2 * max(h - 0.6, 0) + rng.normal(0, 0.02),
        "valid_action_ratio": 0.97 - 0.2 * max(h - 0.5, 0),
        "invalid_turn_ratio": 0.03 + 0.2 * max(h - 0.5, 0),
        "repeated_action_ratio": 0.1 + 0.05 * rng.random(),
        "duplication": 0.05 + 0.2 * max(h - 0.5, 0),
        "entropy_early/turns": 1.2 * h,
        "entropy_late/turns": 0.8 * h,
        "windows_overlap/turns": 0.0,
        "group/zero_variance": 0.3,
        "interference/drift_positive": 0.4,
        "interference/drift_negative": -0.2 - 0.3 * share,
        **{f"entropy_of/{c}": h * w for c, w in (("correct", 0.8), ("wrong", 1.2 + 0.3 * max(h - 0.6, 0)))},
        "representation/probe_auc": 0.6 + 0.2 * share,
        "representation/ratio": 0.9,
        **{f"likelihood/{c}_log_prob_mean": -h * w for c, w in (("correct", 0.8), ("wrong", 1.2), ("valid", 0.9))},
        **{f"turn_entropy/{k}": h * (1.3 - 0.05 * k) for k in range(10)},
    }
    workers = {"clipfrac_high": 0.004 + 0.002 * rng.random(), "clipfrac_low": 0.003 + 0.001 * rng.random()}
    others = {"timing_s/step": rng.random(), "val-core/house/acc/mean@1": share}
    # As verl logs them: what a worker's loss reports gets "actor/" in front.
    return {P + k: float(v) for k, v in found.items()} | {f"actor/{P}{k}": v for k, v in workers.items()} | others


def turns_of(h: float, erupted: bool, rng: np.random.Generator, count: int = 40) -> dict[str, np.ndarray]:
    advantage = rng.normal(size=count // 10).repeat(10)
    slope = 0.1 if erupted else 0.4
    return {
        "turn": np.arange(count) % 10,
        "trajectory": np.arange(count) // 10,
        "entropy": rng.gamma(4.0, h / 4, count),
        "advantage": advantage,
        "interference": 1.0 - slope * advantage + rng.normal(0, 0.2, count // 10).repeat(10),
    }


TASKS = ("put a mug on the desk", "heat an egg", "clean a plate")


def sample_of(h: float, rng: np.random.Generator, texts: tuple[str, ...] = (), task: str = TASKS[0]) -> dict:
    words = "I should look in the drawer first . <action> open drawer 1 </action>".split()
    odd = " ".join(texts)
    turns = []
    for k in range(3):
        tokens = [w + " " for w in words] + list(texts)
        entropy = rng.gamma(1.0, h, len(tokens)).round(3).tolist()
        turn = {"text": "".join(tokens), "tokens": tokens, "entropy": entropy, "reward": float(k == 2), "valid": True}
        turn |= {"prompt": f"Your task: {task} {odd}", "observation": f"You see drawer {k}. {odd}", "action": "open drawer 1"}
        turn |= {"thought": f"I look {odd}", "advantage": 0.5 * (k + 1), "advantage_before": 0.5}
        turn["clip"] = [1, *[0] * (len(tokens) - 2), -1]
        turn["advantages"] = np.linspace(-h, h, len(tokens)).round(4).tolist()
        turns.append(turn)
    correct = bool(rng.random() < 0.5)
    vector = (rng.normal(size=12) + (1.5 if correct else 0.0)).round(4).tolist()
    return {
        "turns": turns,
        "score": 10.0 * correct,
        "success": correct,
        "representation": vector,
        "task": f"{task} {odd}".strip(),
    }


def write_run(
    folder: Path, *, steps: int = 120, erupts: bool = True, seed: int = 0, config: dict | None = None, full: bool = True, texts=()
) -> Path:
    """A run with every series (``full``) or with entropy alone."""
    rng = np.random.default_rng(seed)
    curve = entropy_curve(steps, erupts=erupts, seed=seed)
    settings = RunSettings(flush=False, samples_every=20, join_every=50)
    with RunWriter(
        folder, settings, config=config or {"trainer": {"seed": seed}, "algorithm": {"adv_estimator": "grpo"}}
    ) as writer:
        for i, h in enumerate(curve):
            metrics = metrics_of(i + 1, h, i / steps, rng) if full else {P + "entropy": h}
            turns = turns_of(h, i > 0.6 * steps, rng) if full else None
            samples = (
                [sample_of(h, rng, texts, TASKS[k % 3]) for k in range(26)] if full and writer.wants_samples(i + 1) else None
            )
            for sample in samples[6:] if samples else ():
                del sample["turns"]  # as the trainer stores those of which only the representation is kept
            writer.step(i + 1, metrics, turns, samples)
    return folder
