# SPDX-License-Identifier: Apache-2.0
"""Stored trajectories for the page: which are shown, and as plain values for its script, which colours and filters them."""

from __future__ import annotations

import math
from typing import Any

from verl_entropy.runs.report.chart import rounded
from verl_entropy.runs.report.runs import Run
from verl_entropy.runs.report.text import spelled

MAX_PAGE_TOKENS = 30_000
"""Tokens on the page, some 15 bytes each with their values."""
MAX_PAGE_CHARS = 600_000
"""Characters of prompts, observations, thoughts and actions on the page."""
MAX_TURN_CHARS = 4000
"""Of a text of a turn on the page: what a person reads."""
MAX_TRAJECTORIES = 240
PER_TOKEN = ("entropy", "advantages", "advantages_before", "ratio", "dropped", "clip")
NUMBERS = ("reward", "penalty", "advantage", "advantage_before")
FLAGS = ("valid", "admissible", "cut")
TEXTS = ("prompt", "observation", "thought", "action")


def section(runs: list[Run]) -> dict[str, Any]:
    """Trajectories of all runs within the page's bounds, pairs of the same task before and in an eruption, and what is left out."""
    queues = [_by_interest(run) for run in runs]
    total = sum(len(queue) for queue in queues)
    budget = {"tokens": MAX_PAGE_TOKENS, "chars": MAX_PAGE_CHARS}
    chosen: list[tuple[int, int, dict[str, Any]]] = []
    place = 0
    while place < max(map(len, queues), default=0) and len(chosen) < MAX_TRAJECTORIES:
        for number, queue in enumerate(queues):
            if place < len(queue) and min(budget.values()) > 0 and len(chosen) < MAX_TRAJECTORIES:
                step, sample = queue[place]
                chosen.append((number, step, _told(runs[number], number, step, sample, budget)))
        place += 1
    chosen.sort(key=lambda item: item[:2])
    found = [sample for _, _, sample in chosen]
    note = f"{len(found)} of {total} stored trajectories are on this page." if len(found) < total else ""
    return {"items": found, "pairs": _pairs(found), "note": note}


def _by_interest(run: Run) -> list[tuple[int, dict[str, Any]]]:
    """All stored trajectories with turns: first those before and in the first eruption that share a task, then by step, from the
    ends and the events inwards."""
    stored = [(step, [s for s in samples if _turns(s)]) for step, samples in run.samples]
    stored = [(step, samples) for step, samples in stored if samples]
    if not stored:
        return []
    steps = [step for step, _ in stored]
    wanted = []
    for span in run.spans:
        if span.phase == "eruption":
            before = [i for i, step in enumerate(steps) if step < span.first]
            inside = [i for i, step in enumerate(steps) if span.first <= step <= span.last]
            wanted += [*before[-1:], *inside[len(inside) // 2 : len(inside) // 2 + 1], *inside]
    wanted += [0, len(stored) - 1, *_spread(len(stored))]
    order = [stored[i] for i in dict.fromkeys(wanted)]
    # Of each step one correct and one wrong first, then the rest.
    first = [(step, sample) for step, samples in order for sample in _two(samples)]
    rest = [(step, sample) for step, samples in order for sample in samples if sample not in _two(samples)]
    return first + rest


def _spread(count: int) -> list[int]:
    """All numbers below ``count``, the middles of the gaps first."""
    found, gaps = [], [(0, count)]
    while gaps:
        low, high = gaps.pop(0)
        if high > low:
            middle = (low + high) // 2
            found.append(middle)
            gaps += [(low, middle), (middle + 1, high)]
    return found


def _two(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = samples[:1]
    other = [s for s in samples[1:] if bool(s.get("success")) != bool(samples[0].get("success"))]
    return first + (other or samples[1:])[:1]


def _pairs(found: list[dict[str, Any]]) -> list[list[int]]:
    """Numbers of two trajectories of one run and task, one before and one in an eruption."""
    pairs = []
    for a, before in enumerate(found):
        for b in range(a + 1, len(found)):
            inside = found[b]
            same = before["run"] == inside["run"] and before["task"] == inside["task"] != ""
            if same and before["phase"] != "eruption" and inside["phase"] == "eruption":
                pairs.append([a, b])
                break
    return pairs


def _turns(sample: dict[str, Any]) -> list[dict[str, Any]]:
    turns = sample.get("turns")
    return [t for t in turns if isinstance(t, dict)] if isinstance(turns, list) else []


def _number(value: Any) -> float | None:
    known = type(value) in (int, float, bool) and abs(value) < 1e30 and math.isfinite(value)
    return float(f"{float(value):.5g}") if known else None


def _told(run: Run, number: int, step: int, sample: dict[str, Any], budget: dict[str, int]) -> dict[str, Any]:
    success = sample.get("success")
    judged = run.judgement(step, sample)
    found = {
        "run": number,
        "step": step,
        "phase": next((s.phase for s in reversed(run.spans) if s.first <= step), ""),
        "task": _text(sample.get("task"), budget, 500) or _task_of(sample),
        "type": _text(sample.get("task_type"), budget, 80),
        "success": success if isinstance(success, bool) else None,
        "score": _number(sample.get("score")),
        "turns": [_turn(i, turn, budget) for i, turn in enumerate(_turns(sample))],
        "cut": sample.get("cut_tokens") if isinstance(sample.get("cut_tokens"), int) else 0,
    }
    if judged is not None:
        reason = _text(judged.reason, budget, 500) or "gave no reason"
        found["judged"] = f"degeneracy {judged.score:g} of 10 (judge {spelled(judged.model)}: {reason})"
    return found


def _task_of(sample: dict[str, Any]) -> str:
    """The beginning of the first prompt, of runs that did not store their tasks."""
    first = _turns(sample)[0].get("prompt")
    return spelled(first[:500]) if isinstance(first, str) else ""


def _text(value: Any, budget: dict[str, int], most: int = MAX_TURN_CHARS) -> str:
    if not isinstance(value, str) or not value or budget["chars"] <= 0:
        return ""
    budget["chars"] -= min(len(value), most)
    return spelled(value if len(value) <= most else f"{value[: most // 2]}\n[...]\n{value[-most // 2 :]}")


def _turn(index: int, turn: dict[str, Any], budget: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in TEXTS:
        # A prompt repeats the history, which the turns before it show: one is enough where there are observations.
        if name != "prompt" or index == 0 or not turn.get("observation"):
            text = _text(turn.get(name), budget)
            if text:
                found[name] = text
    for name in NUMBERS:
        if name in turn and (value := _number(turn[name])) is not None:
            found[name] = value
    found.update({name: turn[name] for name in FLAGS if isinstance(turn.get(name), bool)})
    tokens = turn.get("tokens")
    if not isinstance(tokens, list):
        return found | {"text": _text(turn.get("text"), budget)}
    kept = [spelled(str(token)[:MAX_TURN_CHARS]) for token in tokens[: max(budget["tokens"], 0)]]
    budget["tokens"] -= len(kept)
    found["tokens"] = _spaced(kept, turn.get("text"))
    if len(kept) < len(tokens):
        found["hidden"] = len(tokens) - len(kept)
    for name in PER_TOKEN:
        values = turn.get(name)
        if isinstance(values, list) and values:
            known = [_number(v) for v in values[: len(kept)]]
            found[name] = rounded([math.nan if v is None else v for v in known])
    return found


def _spaced(tokens: list[str], text: Any) -> list[str]:
    """The tokens with the spaces of ``text`` between them, for runs that stored each token's own text."""
    if not isinstance(text, str) or "".join(tokens) == text:
        return tokens
    found, at = [], 0
    for token in tokens:
        start = text.find(token, at) if token else -1
        if start < 0 or text[at:start].strip():
            return tokens
        found.append(text[at:start] + token)
        at = start + len(token)
    return found
