# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML page without network or scripts, and its figures as PNG files.

Everything that comes out of a run is escaped, and the page forbids scripts, connections and foreign styles by its own policy
(Content-Security-Policy), so hostile text in a trajectory is shown and does nothing.
"""

from __future__ import annotations

import base64
import hashlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_entropy import __version__
from verl_entropy.diagnostics.phases import Phases
from verl_entropy.runs.report import advice, figures, trajectories
from verl_entropy.runs.report.plot import MAX_POINTS, Panel
from verl_entropy.runs.report.runs import ENTROPY, Group, Run, differing, group, load_readable, without_steps
from verl_entropy.runs.report.success import CONVERGED, SuccessRate, success_rates
from verl_entropy.runs.report.text import printable, shown
from verl_entropy.runs.runfile import RunFileError, write_atomic

MAX_CASES = 8
"""Runs that are named under one symptom."""
MAX_KEYS = 20
"""Differing configuration keys in the table of settings."""
MAX_CELL = 120
"""Characters of a cell of a table; paths are longer, and what differs is seldom beyond it."""

STYLE = (
    """
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;margin:0 auto;max-width:76rem;padding:1rem 1.2rem 4rem;
color:#1b1f24;background:#fff}
h1{font-size:1.55rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid #d8dde3;padding-bottom:.15rem}
h3{font-size:.98rem;margin:0 0 .2rem}a{color:#0b5394;text-decoration:none}a:hover{text-decoration:underline}
nav{font-size:.87rem;margin:.4rem 0;display:flex;flex-wrap:wrap;gap:.1rem .9rem}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:1rem;align-items:start}
figure{margin:0;border:1px solid #e1e5ea;border-radius:6px;padding:.7rem .8rem;min-width:0}
img{display:block;width:100%;height:auto}figcaption,.note{color:#57606a;font-size:.85rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.87rem}
td,th{border-bottom:1px solid #e1e5ea;padding:.28rem .7rem .28rem 0;text-align:left;vertical-align:top}
td.n{font-variant-numeric:tabular-nums}td.n,td:first-child{white-space:nowrap}
code{font-size:.87em;background:#f3f5f7;padding:.05em .3em;border-radius:3px;overflow-wrap:anywhere}
.missing{color:#57606a;font-size:.87rem;overflow-wrap:anywhere}
.problem{background:#fff6ed;border:1px solid #f0c9a0;border-radius:6px;padding:.5rem .9rem;color:#7a3300;font-size:.87rem;
overflow-wrap:anywhere}.problem ul{margin:.2rem 0;padding-left:1.2rem}
li{margin:.15rem 0}details{margin:.4rem 0;border:1px solid #e1e5ea;border-radius:6px;padding:.35rem .8rem}
summary{cursor:pointer}.text{white-space:pre-wrap;overflow-wrap:anywhere;font:12.5px/1.65 ui-monospace,Menlo,Consolas,monospace;
unicode-bidi:isolate}.turn{border-left:3px solid #c8d0d8;padding-left:.7rem;margin:.6rem 0}.scale span{padding:.1rem .55rem}
.seen{white-space:pre-wrap;overflow-wrap:anywhere;color:#57606a;font-size:.8rem;max-height:8rem;overflow-y:auto}
@media print{nav{display:none}figure,details{break-inside:avoid}}
"""
    + trajectories.STYLE
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; img-src data:; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """What was written."""

    html: Path
    pngs: list[Path]
    missing: dict[str, str]
    """Panels without a figure, with what to log."""
    problems: list[str]
    success: list[SuccessRate] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return {
            "html": str(self.html),
            "pngs": [str(p) for p in self.pngs],
            "success": [asdict(rate) for rate in self.success],
            "missing": dict(self.missing),
            "problems": list(self.problems),
        }

    def render(self, width: int = 80) -> str:
        """What was written and what could not be drawn, for a terminal of ``width`` columns."""
        lines = [f"report: {self.html}", f"figures: {len(self.pngs)} PNG files beside it"]
        for rate in self.success:
            lines.append(f"success: {rate.setting}, {rate.series}")
            text = f"  best {_spread(rate.best, rate.best_spread)}, after convergence {_converged(rate)}"
            lines.append(text.replace("\u00b1", "+-"))  # a terminal may know ASCII only
        lines += [f"not drawn: {name}: {why}" for name, why in self.missing.items()]
        lines += [f"problem: {text}" for text in self.problems]
        wrapped = (
            textwrap.fill(printable(line), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            for line in lines
        )
        return "\n".join(wrapped)


def build_report(runs: Iterable[str | Path], out: str | Path, settings: Phases | None = None) -> Report:
    """Write the report on ``runs`` to ``out`` (an .html file, or a folder for report.html) with its figures beside it.

    Runs that cannot be read are left out and named; RunFileError if none can, or if none has a step.
    """
    loaded, unread = load_readable(runs, settings)
    if not loaded:
        raise RunFileError("no runs given. Give the folder of a run, or verl's .jsonl file.")
    empty = without_steps(loaded)
    if len(empty) == len(loaded):
        raise RunFileError("\n".join(unread + empty))
    page = Path(out) if Path(out).suffix.lower() in (".html", ".htm") else Path(out) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    groups = group(loaded)
    panels = [draw(groups) for draw in figures.PANELS]
    pngs = []
    for panel in panels:
        path = page.with_name(f"{page.stem}_{panel.name}.png")
        if panel.png is not None:
            pngs.append(path)
            write_atomic(path, panel.png, flush=False)
        else:
            path.unlink(missing_ok=True)  # an earlier report's figure would pass for this one's
    rates = success_rates(groups)
    shown_trajectories = trajectories.section(loaded)  # reads the last of the run: problems are complete after it
    problems = unread + [f"{run.name}: {text}" for run in loaded for text in run.reader.problems]
    document = _document(groups, panels, rates, shown_trajectories, problems)
    write_atomic(page, document.encode("utf-8", errors="replace"), flush=False)
    return Report(page, pngs, {p.name: p.missing for p in panels if p.png is None}, problems, rates)


# ----------------------------------------------------------------------------- parts


def _document(groups: list[Group], panels: list[Panel], rates: list[SuccessRate], samples: str, problems: list[str]) -> str:
    runs = [run for g in groups for run in g.runs]
    names = ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    drawn = [panel for panel in panels if panel.png is not None]
    links = "".join(f'<a href="#{p.name}">{shown(p.title)}</a>' for p in drawn)
    seeds = any(len(g.runs) > 1 for g in groups)
    spread = "<p class=note>Thick: mean over seeds. Band: standard deviation. Thin: each run.</p>" if seeds else ""
    width = -(-max(len(run.reader) for run in runs) // MAX_POINTS)
    if width > 1:
        spread += f"<p class=note>Long runs are thinned: a point of a line is the mean of up to {width} neighbouring steps.</p>"
    body = [
        f"<h1>Entropy report</h1><p class=note>{shown(names)} - verl-entropy {shown(__version__)}</p>",
        f'<nav>{links}<a href="#trajectories">Trajectories</a></nav>',
        _problems(runs, problems),
        _table(runs),
        _success(rates),
        _settings(groups),
        _advice(runs),
        f"<h2>Figures</h2>{spread}<div class=grid>{''.join(map(_panel, drawn))}</div>",
        _missing([panel for panel in panels if panel.png is None]),
        samples,
    ]
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>Entropy report</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; ``rows`` are text, ``numbers`` the columns that do not wrap."""
    top = "".join(f"<th>{shown(name)}</th>" for name in head)
    lines = []
    for row in rows:
        cells = (f"<td{' class=n' if i in numbers else ''}>{shown(cell[:MAX_CELL])}</td>" for i, cell in enumerate(row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class=wide><table><tr>{top}</tr>{''.join(lines)}</table></div>"


def _last(run: Run, keys: Sequence[str]) -> str:
    values = run.series(keys)[1]
    return f"{values[-1]:.4g}" if len(values) else "-"


def _events(run: Run) -> str:
    found = [
        f"{e.name.replace('_', ' ')} seen at {e.step} (from {e.onset})"
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
        rows.append((run.name, span, _last(run, ENTROPY), phase, _events(run)))
    return "<h2>Runs</h2>" + _rows(("run", "steps", "last entropy (nats)", "phase", "events"), rows, (1, 2))


def _spread(value: float, spread: float | None) -> str:
    return f"{value:.3f}" + ("" if spread is None else f" \u00b1 {spread:.3f}")


def _converged(rate: SuccessRate) -> str:
    return f"{_spread(rate.converged, rate.converged_spread)} (moved {rate.change:+.3f})"


def _success(rates: list[SuccessRate]) -> str:
    if not rates:
        return ""
    rows = [(r.setting, r.series, f"{r.seeds} / {r.values}", _spread(r.best, r.best_spread), _converged(r)) for r in rates]
    note = (
        f"Best: highest value of a run. After convergence: mean of the last {CONVERGED:.0%} of its values; in brackets how much "
        "they still moved. Both: mean over seeds, \u00b1 standard deviation. The best of noisy training batches is biased upwards."
    )
    head = ("setting", "measured on", "seeds / values", "best over training", "after convergence")
    return f"<h2>Success rates</h2>{_rows(head, rows, (2, 3, 4))}<p class=note>{note}</p>"


def _settings(groups: list[Group]) -> str:
    table = differing(groups)
    if not table:
        return ""
    rows = [(key, *(str(value)[:80] for value in row)) for key, row in list(table.items())[:MAX_KEYS]]
    more = f"<p class=note>and {len(table) - MAX_KEYS} more keys</p>" if len(table) > MAX_KEYS else ""
    return f"<h2>Settings that differ</h2>{_rows(('key', *(g.label for g in groups)), rows)}{more}"


def _advice(runs: list[Run]) -> str:
    found: dict[tuple[str, tuple[str, ...]], list[tuple[Run, advice.Advice]]] = {}
    for run in runs:
        for item in advice.advise_run(run).items:
            found.setdefault((item.symptom, item.methods), []).append((run, item))
    items = []
    for (symptom, tried), cases in found.items():
        first = cases[0][1]
        figures_seen = "".join(f"<li>{shown(run.name)}: {shown(item.figure)}</li>" for run, item in cases[:MAX_CASES])
        more = f"<li>and {len(cases) - MAX_CASES} more runs</li>" if len(cases) > MAX_CASES else ""
        methods = "<br>Try " + " ".join(f"<code>{shown(method)}</code>" for method in tried) if tried else ""
        items.append(f"<li><b>{shown(symptom)}</b>. {shown(first.why)}{methods}<ul>{figures_seen}{more}</ul></li>")
    return f"<h2>Advice</h2><ul>{''.join(items)}</ul>" if items else "<h2>Advice</h2><p>No symptom that a rule looks for.</p>"


def _panel(panel: Panel) -> str:
    data = base64.b64encode(panel.png).decode("ascii")
    image = f'<img alt="{shown(panel.title)}" src="data:image/png;base64,{data}">'
    return (
        f'<figure id="{shown(panel.name)}"><h3>{shown(panel.title)}</h3>{image}'
        f"<figcaption>{shown(panel.caption)}</figcaption></figure>"
    )


def _missing(panels: list[Panel]) -> str:
    if not panels:
        return ""
    items = "".join(f"<li><b>{shown(panel.title)}</b>: {shown(panel.missing)}</li>" for panel in panels)
    return f"<h2>Not drawn</h2><ul class=missing>{items}</ul>"


def _problems(runs: list[Run], problems: list[str]) -> str:
    lines = [f"<li>{shown(text)}</li>" for text in problems]
    lines += [
        f"<li>{shown(run.name)}: a step is being written, or the run was killed in it; it is left out</li>"
        for run in runs
        if run.reader.under_way
    ]
    return f"<div class=problem>Reading the runs:<ul>{''.join(lines)}</ul></div>" if lines else ""
