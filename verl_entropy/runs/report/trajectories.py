# SPDX-License-Identifier: Apache-2.0
"""Stored trajectories on the page, each token coloured by its entropy."""

from __future__ import annotations

import math
from typing import Any

from verl_entropy.runs.report.runs import Run
from verl_entropy.runs.report.text import shown

MAX_PAGE_TOKENS = 20_000
"""Coloured tokens on the page: about 1 MB of HTML, which a browser still scrolls."""
MAX_TRAJECTORIES = 12
MAX_TURN_CHARS = 4000
"""On the page, shared by its runs (at least two of each, 24 in all), and of a turn: what a person reads."""
SHADES = 12
"""Shades of the colour: more cannot be told apart."""
FACTS = ("reward", "penalty", "valid", "action", "advantage")

STYLE = "\n".join(f".e{i}{{background:rgba(230,97,1,{0.75 * i / (SHADES - 1):.2f})}}" for i in range(SHADES))
"""White at 0 to orange at the 95th percentile of the shown entropies."""


def chosen_samples(run: Run, most: int) -> list[tuple[int, dict[str, Any]]]:
    """Trajectories to show: from the first and last stored steps and from around each eruption, of each one correct and one
    wrong where there are both."""
    if not run.samples or most < 1:
        return []
    steps = [step for step, _ in run.samples]
    wanted = [0, len(steps) - 1]
    for event in run.detector.events:
        if event.name in ("eruption", "subsidence"):
            wanted.append(min(range(len(steps)), key=lambda i: abs(steps[i] - event.onset)))
    found = []
    for place in sorted(dict.fromkeys(wanted[: max(most // 2, 1) + 1])):
        step, samples = run.samples[place]
        found += [(step, sample) for sample in _two(samples)]
    return found[:most]


def _two(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    samples = [sample for sample in samples if _turns(sample)]  # some hold a representation only
    first = samples[:1]
    other = [s for s in samples[1:] if bool(s.get("success")) != bool(samples[0].get("success"))]
    return first + (other or samples[1:])[:1]


def section(runs: list[Run]) -> str:
    """The part of the page with trajectories."""
    share = max(MAX_TRAJECTORIES // len(runs), 2)
    chosen = [(run, step, sample) for run in runs for step, sample in chosen_samples(run, share)][: 2 * MAX_TRAJECTORIES]
    title = '<h2 id="trajectories">Trajectories</h2>'
    if not chosen:
        return f"{title}<p class=missing>None to show: the runs have no stored trajectories.</p>"
    values = sorted(v for _, _, s in chosen for t in _turns(s) for v in _numbers(t.get("entropy")))
    top = max(values[int(0.95 * (len(values) - 1))], 1e-3) if values else 1.0
    budget = [MAX_PAGE_TOKENS]
    parts = "".join(_trajectory(run, step, sample, top, budget, opened=i == 0) for i, (run, step, sample) in enumerate(chosen))
    marks = range(0, SHADES, 2)
    scale = "".join(f"<span class=e{i}>{i / (SHADES - 1) * top:.2f}</span>" for i in (*marks, SHADES - 1))
    return f"{title}<p class='note scale'>Entropy of a token in nats {scale}</p>{parts}"


def _turns(sample: dict[str, Any]) -> list[dict[str, Any]]:
    turns = sample.get("turns")
    return [t for t in turns if isinstance(t, dict)] if isinstance(turns, list) else []


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list):
        return []
    return [float(v) for v in values if type(v) in (int, float) and abs(v) < 1e30]


def _brief(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)[:200]


def _trajectory(run: Run, step: int, sample: dict[str, Any], top: float, budget: list[int], *, opened: bool) -> str:
    outcome = [
        {True: "correct", False: "wrong"}.get(sample.get("success"), "") if isinstance(sample.get("success"), bool) else ""
    ]
    facts = [f"step {step}", *filter(None, outcome)] + ([f"score {_brief(sample['score'])}"] if "score" in sample else [])
    judged = run.judgement(step, sample)
    reason = ""
    if judged is not None:
        facts.append(f"degeneracy {judged.score:g} of 10")
        reason = f"<p class=note>Judge {shown(judged.model)}: {shown(judged.reason or 'gave no reason')}</p>"
    body = "".join(_turn(i, turn, top, budget) for i, turn in enumerate(_turns(sample)))
    if sample.get("cut_tokens"):
        body += f"<p class=note>{shown(sample['cut_tokens'])} tokens were not stored.</p>"
    head = f"<b>{shown(run.name)}</b> {shown(', '.join(facts))}"
    return f"<details{' open' if opened else ''}><summary>{head}</summary>{reason}{body}</details>"


def _turn(index: int, turn: dict[str, Any], top: float, budget: list[int]) -> str:
    facts = [f"{k} {_brief(turn[k])}" for k in FACTS if k in turn]
    known = _numbers(turn.get("entropy"))
    facts += [f"entropy {sum(known) / len(known):.3g} nats"] if known else []
    tokens, entropy = turn.get("tokens"), turn.get("entropy")
    if isinstance(tokens, list) and isinstance(entropy, list):
        left = tokens[: budget[0]]
        budget[0] -= len(left)
        text = "".join(_token(t, e, top) for t, e in zip(left, [*entropy, *[None] * len(left)], strict=False))
        text += f"<i> ... {len(tokens) - len(left)} tokens are not shown</i>" if len(left) < len(tokens) else ""
    else:
        text = shown(str(turn.get("text") or "")[:MAX_TURN_CHARS])
    before = ""
    if isinstance(turn.get("observation"), str) and turn["observation"]:
        before = f"<div class=seen>{shown(turn['observation'][:MAX_TURN_CHARS])}</div>"
    head = f"turn {index}: {', '.join(facts)}" if facts else f"turn {index}"
    return f"<div class=turn><div class=note>{shown(head)}</div>{before}<div class=text>{text}</div></div>"


def _token(token: Any, entropy: Any, top: float) -> str:
    text = shown(str(token)[:MAX_TURN_CHARS])
    known = _numbers([entropy])
    if not known:
        return text
    shade = round(min(max(known[0] / top, 0.0), 1.0) * (SHADES - 1))
    return f'<span class=e{shade} title="{known[0]:.3f} nats">{text}</span>'
