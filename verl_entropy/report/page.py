# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML page without network or scripts, and its figures as PNG files.

Everything that comes out of a run is escaped, and the page forbids scripts and connections by its own policy
(Content-Security-Policy), so hostile text in a trajectory is shown and does nothing.
"""

from __future__ import annotations

import base64
import html
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_entropy import __version__
from verl_entropy.diagnostics.phases import Phases
from verl_entropy.report import advice, figures
from verl_entropy.report.runs import ENTROPY, P, Run, group, load
from verl_entropy.runfile import RunFileError, write_atomic

MAX_PAGE_TOKENS = 20_000
"""Coloured tokens on the page: about 2 MB of HTML, which a browser still scrolls."""
MAX_TRAJECTORIES = 12
MAX_TURN_CHARS = 4000
MAX_CASES = 8
"""Runs that are named under one symptom."""

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:1rem 1.2rem;color:#1a1a1a;background:#fff}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .3rem;border-bottom:1px solid #ddd}
figure{margin:.5rem 0}img{max-width:100%;height:auto}figcaption,.note{color:#555;font-size:.87rem}
table{border-collapse:collapse;font-size:.87rem;display:block;overflow-x:auto}
td,th{border-bottom:1px solid #e4e4e4;padding:.25rem .6rem;text-align:left}
.missing{border:1px dashed #bbb;padding:.6rem .8rem;color:#555}.problem{color:#8a2b00}
details{margin:.4rem 0;border:1px solid #e0e0e0;border-radius:4px;padding:.3rem .7rem}summary{cursor:pointer}
.text{white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.65 ui-monospace,monospace;unicode-bidi:isolate}
.turn{border-left:3px solid #ccc;padding-left:.6rem;margin:.5rem 0}.scale span{padding:0 .6rem}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """What was written."""

    html: Path
    pngs: list[Path]
    missing: dict[str, str]
    """Panels without a figure, with what to log."""
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return {
            "html": str(self.html),
            "pngs": [str(p) for p in self.pngs],
            "missing": dict(self.missing),
            "problems": list(self.problems),
        }

    def render(self) -> str:
        """What was written and what could not be drawn, for a terminal."""
        lines = [f"report: {self.html}", f"figures: {len(self.pngs)} PNG files beside it"]
        lines += [f"not drawn: {name}: {why}" for name, why in self.missing.items()]
        return "\n".join(lines + [f"problem: {text}" for text in self.problems])


def build_report(runs: Iterable[str | Path], out: str | Path, settings: Phases | None = None) -> Report:
    """Write the report on ``runs`` to ``out`` (an .html file, or a folder for report.html) with its figures beside it."""
    loaded = load(runs, settings)
    if not loaded:
        raise RunFileError("no runs given. Give the folder of a run, or verl's .jsonl file.")
    page = Path(out) if Path(out).suffix.lower() in (".html", ".htm") else Path(out) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    groups = group(loaded)
    panels = [draw(groups) for draw in figures.PANELS]
    pngs = []
    for panel in panels:
        if panel.png is not None:
            pngs.append(page.with_name(f"{page.stem}_{panel.name}.png"))
            write_atomic(pngs[-1], panel.png, flush=False)
    document = _document(loaded, panels)
    write_atomic(page, document.encode("utf-8", errors="replace"), flush=False)
    problems = [f"{run.name}: {text}" for run in loaded for text in run.reader.problems]
    return Report(page, pngs, {p.name: p.missing for p in panels if p.png is None}, problems)


def shown(text: Any) -> str:
    """``text`` as HTML text: escaped, with control and direction characters spelled out."""
    text = str(text)
    if not text.isprintable():
        text = "".join(
            c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co") else f"<U+{ord(c):04X}>" for c in text
        )
    return html.escape(text, quote=True)


# ----------------------------------------------------------------------------- parts


def _document(runs: list[Run], panels: list[figures.Panel]) -> str:
    names = ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    body = [
        f"<h1>Entropy report</h1><p class=note>{shown(names)} - verl-entropy {shown(__version__)}</p>",
        _table(runs),
        _advice(runs),
        *(_panel(panel) for panel in panels),
        _trajectories(runs),
        _problems(runs),
    ]
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>Entropy report</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _last(run: Run, keys: Sequence[str]) -> str:
    values = run.series(keys)[1]
    return f"{values[-1]:.4g}" if len(values) else "-"


def _events(run: Run) -> str:
    found = [
        f"{e.name} seen at {e.step} (from {e.onset})"
        for e in run.detector.events
        if e.name in ("eruption", "step_change", "collapse")
    ]
    return "; ".join(found[:6]) + (f"; {len(found) - 6} more" if len(found) > 6 else "") or "none"


def _table(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        steps = run.reader.steps
        span = f"{len(steps)} ({steps[0]} to {steps[-1]})" if len(steps) else "0"
        phase = run.detector.phase if run.detector.seen else "-"
        cells = (run.name, span, _last(run, ENTROPY), _last(run, (P + "success", "critic/score/mean")), phase, _events(run))
        rows.append("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("run", "steps", "last entropy (nats)", "last success", "phase", "events"))
    return f"<h2>Runs</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _advice(runs: list[Run]) -> str:
    found: dict[str, list[tuple[Run, advice.Advice]]] = {}
    for run in runs:
        for item in advice.advise_run(run).items:
            found.setdefault(item.symptom, []).append((run, item))
    items = []
    for symptom, cases in found.items():
        first = cases[0][1]
        figures_seen = "".join(f"<li>{shown(run.name)}: {shown(item.figure)}</li>" for run, item in cases[:MAX_CASES])
        more = f"<li>and {len(cases) - MAX_CASES} more runs</li>" if len(cases) > MAX_CASES else ""
        methods = ", ".join(f"<code>{shown(method)}</code>" for method in first.methods)
        items.append(f"<li><b>{shown(symptom)}</b>. {shown(first.why)}<br>Try {methods}<ul>{figures_seen}{more}</ul></li>")
    return f"<h2>Advice</h2><ul>{''.join(items)}</ul>" if items else "<h2>Advice</h2><p>No symptom that a rule looks for.</p>"


def _panel(panel: figures.Panel) -> str:
    head = f'<h2 id="{shown(panel.name)}">{shown(panel.title)}</h2>'
    if panel.png is None:
        return f"{head}<p class=missing>Not drawn: {shown(panel.missing)}</p>"
    data = base64.b64encode(panel.png).decode("ascii")
    caption = f"<figcaption>{shown(panel.caption)}</figcaption>"
    return f'{head}<figure><img alt="{shown(panel.title)}" src="data:image/png;base64,{data}">{caption}</figure>'


def _problems(runs: list[Run]) -> str:
    lines = [f"<li class=problem>{shown(run.name)}: {shown(text)}</li>" for run in runs for text in run.reader.problems]
    live = [
        f"<li>{shown(run.name)}: a step is being written, or the run was killed in it</li>"
        for run in runs
        if run.reader.under_way
    ]
    return f"<h2>Reading the runs</h2><ul>{''.join(lines + live)}</ul>" if lines or live else ""


# ----------------------------------------------------------------------------- trajectories


def chosen_samples(run: Run, most: int) -> list[tuple[int, dict[str, Any]]]:
    """Trajectories to show: from the first and last stored steps, and from around each eruption, two of each step."""
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
        found += [(step, sample) for sample in samples[:2]]
    return found[:most]


def _trajectories(runs: list[Run]) -> str:
    share = max(MAX_TRAJECTORIES // len(runs), 2)
    chosen = [(run, step, sample) for run in runs for step, sample in chosen_samples(run, share)][: 2 * MAX_TRAJECTORIES]
    title = "<h2>Trajectories</h2>"
    if not chosen:
        return f"{title}<p class=missing>Not drawn: no stored trajectories (samples of RunWriter.step).</p>"
    values = sorted(v for _, _, s in chosen for t in _turns(s) for v in _numbers(t.get("entropy")))
    top = max(values[int(0.95 * (len(values) - 1))], 1e-3) if values else 1.0
    budget = [MAX_PAGE_TOKENS]
    parts = "".join(_trajectory(run, step, sample, top, budget, opened=i == 0) for i, (run, step, sample) in enumerate(chosen))
    scale = "".join(f'<span style="background:{_color(x * top, top)}">{x * top:.2f}</span>' for x in (0.0, 0.25, 0.5, 0.75, 1.0))
    return f"{title}<p class='note scale'>Colour: entropy of the token in nats {scale}</p>{parts}"


def _turns(sample: dict[str, Any]) -> list[dict[str, Any]]:
    turns = sample.get("turns")
    return [t for t in turns if isinstance(t, dict)] if isinstance(turns, list) else []


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list):
        return []
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]


def _color(value: float, top: float) -> str:
    """White at 0 to orange at ``top`` nats."""
    share = min(max(value / top, 0.0), 1.0)
    return f"rgba(230,97,1,{0.75 * share:.2f})"


def _trajectory(run: Run, step: int, sample: dict[str, Any], top: float, budget: list[int], *, opened: bool) -> str:
    facts = [f"step {step}", *(f"{k} {sample[k]}" for k in ("success", "score") if k in sample)]
    body = "".join(_turn(i, turn, top, budget) for i, turn in enumerate(_turns(sample)))
    if sample.get("cut_tokens"):
        body += f"<p class=note>{shown(sample['cut_tokens'])} tokens were not stored.</p>"
    return f"<details{' open' if opened else ''}><summary>{shown(run.name)}: {shown(', '.join(facts))}</summary>{body}</details>"


def _turn(index: int, turn: dict[str, Any], top: float, budget: list[int]) -> str:
    facts = ", ".join(f"{k} {turn[k]}" for k in ("reward", "penalty", "valid", "action", "advantage") if k in turn)
    tokens, entropy = turn.get("tokens"), turn.get("entropy")
    if isinstance(tokens, list) and isinstance(entropy, list):
        left = tokens[: budget[0]]
        budget[0] -= len(left)
        text = "".join(_token(t, e, top) for t, e in zip(left, [*entropy, *[None] * len(left)], strict=False))
        text += f"<i> ... {len(tokens) - len(left)} tokens are not shown</i>" if len(left) < len(tokens) else ""
    else:
        text = shown(str(turn.get("text", ""))[:MAX_TURN_CHARS])
    head = f"turn {index}: {facts}" if facts else f"turn {index}"
    return f"<div class=turn><div class=note>{shown(head)}</div><div class=text>{text}</div></div>"


def _token(token: Any, entropy: Any, top: float) -> str:
    text = shown(str(token)[:MAX_TURN_CHARS])
    known = _numbers([entropy])
    if not known:
        return text
    return f'<span style="background:{_color(known[0], top)}" title="{known[0]:.3f}">{text}</span>'
