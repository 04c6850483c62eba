# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML page without network, and its figures as PNG files.

Everything that comes out of a run is escaped by the template or set as text by the page's script, and the page's own policy
(Content-Security-Policy) lets only its two scripts and its style run, by their hashes, and nothing connect; so hostile text in a
trajectory is shown and does nothing. The figures are drawn by plotly.js (MIT), which is part of the page, compressed.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import json
import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from verl_entropy import __version__
from verl_entropy.diagnostics.phases import Phases
from verl_entropy.files import write_atomic
from verl_entropy.runs.report import advice, figures, summary, trajectories
from verl_entropy.runs.report.chart import Steps, as_json
from verl_entropy.runs.report.plot import Panel, limit_of
from verl_entropy.runs.report.runs import ENTROPY, Group, Run, differing, group, load_readable, without_steps
from verl_entropy.runs.report.success import CONVERGED, LEAST, SuccessRate, success_rates
from verl_entropy.runs.report.text import printable, spelled
from verl_entropy.runs.runfile import RunFileError

ASSETS = Path(__file__).parent / "assets"
MAX_CASES = 8
"""Runs that are named under one symptom."""
MAX_KEYS = 40
"""Differing configuration keys in the table of settings."""
MAX_CELL = 120
"""Characters of a cell of a table; paths are longer, and what differs is seldom beyond it."""


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
    page = Path(out) if Path(out).suffix.lower() in (".html", ".htm") else Path(out) / "report.html"
    _writable(page)
    loaded, unread = load_readable(runs, settings)
    if not loaded:
        raise RunFileError("no runs given. Give the folder of a run, or verl's .jsonl file.")
    empty = without_steps(loaded)
    if len(empty) == len(loaded):
        raise RunFileError("\n".join(unread + empty))
    groups = group(loaded)
    panels = [draw(groups) for draw in figures.PANELS]
    rates = success_rates(groups)
    model = page_model(groups, panels, rates, unread)
    pngs = []
    for panel in panels:
        path = page.with_name(f"{page.stem}_{panel.name}.png")
        if panel.png is not None:
            pngs.append(path)
            write_atomic(path, panel.png, flush=False)
        else:
            path.unlink(missing_ok=True)  # an earlier report's figure would pass for this one's
    write_atomic(page, document(model).encode("utf-8", errors="replace"), flush=False)
    return Report(page, pngs, {p.name: p.missing for p in panels if p.chart is None}, problems_of(loaded, unread), rates)


def _writable(page: Path) -> None:
    """Say before the drawing that the page cannot be written."""
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if page.is_dir():
            raise IsADirectoryError("it is a folder")
        probe = page.with_name(f".{page.name}.{os.getpid()}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunFileError(f"--out {page}: cannot be written ({error.strerror or error}). Give another file or folder.") from None


# ----------------------------------------------------------------------------- the page


def page_model(groups: list[Group], panels: list[Panel], rates: list[SuccessRate], unread: list[str]) -> dict[str, Any]:
    """What the page shows, as plain values: its head (HTML), its figures and trajectories."""
    runs = [run for g in groups for run in g.runs]
    steps = Steps()
    told = trajectories.section(runs)  # reads the last of the runs: problems are complete after it
    drawn = [as_json(p.name, spelled(p.title), spelled(p.caption), p.chart, steps) for p in panels if p.chart is not None]
    colors = {number: g for g, members in enumerate(groups) for number in _numbers(groups, members)}
    return {
        "title": _title(runs),
        "head": _head(groups, panels, rates, problems_of(runs, unread)),
        "runs": [{"name": spelled(run.name), "group": colors[i]} for i, run in enumerate(runs)],
        "steps": steps.lists,
        "figures": drawn,
        "trajectories": told,
        "live": False,
    }


def _numbers(groups: list[Group], wanted: Group) -> range:
    first = 0
    for members in groups:
        if members is wanted:
            break
        first += len(members.runs)
    return range(first, first + len(wanted.runs))


def _title(runs: list[Run]) -> str:
    identity = summary.identity(runs)
    parts = (identity["runs"], identity["model"], identity["methods"], identity["date"])
    return spelled(" - ".join(part for part in parts if part))


def document(model: dict[str, Any], live: bool = False) -> str:
    """The page; ``live``: it asks its server for new steps."""
    style, script, plotly = _asset("page.css"), _asset("page.js"), plotly_js()
    policy = {
        "default-src": "'none'",
        "script-src": f"{_hash(plotly)} {_hash(script)}",
        # plotly.js adds its rules to the second, empty one, which needs no permission of its own.
        "style-src": f"{_hash(style)} {_hash('')}",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            policy="; ".join(f"{name} {value}" for name, value in policy.items()),
            style=style,
            plotly=_packed(plotly),
            script=script,
            title=model["title"],
            head=model["head"],
            data=script_json({**model, "live": live}),
        )
    )


@functools.cache
def plotly_js() -> str:
    """The script of plotly.js (MIT) from the installed package plotly, which is not imported for it."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'plotly'", name="plotly")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


@functools.cache
def _packed(text: str) -> str:
    """``text`` compressed, in base64; half a second for plotly.js, so once and not for each page that ``watch`` serves."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: no end tag, no comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@functools.cache
def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def templates():
    """Jinja2 with the page's templates; everything is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    found.filters["spelled"] = spelled
    found.filters["cell"] = lambda value: spelled(str(value)[:MAX_CELL])
    return found


def _head(groups: list[Group], panels: list[Panel], rates: list[SuccessRate], problems: list[str]) -> str:
    """What stands above the figures, as HTML."""
    runs = [run for g in groups for run in g.runs]
    differ = list(differing(groups).items())
    width = -(-max(len(run.reader) for run in runs) // limit_of(groups))
    return (
        templates()
        .get_template("head.html.j2")
        .render(
            identity=summary.identity(runs),
            version=__version__,
            sentences=summary.sentences(runs),
            problems=problems,
            runs=[_row(run) for run in runs],
            rates=[(r, _spread(r.best, r.best_spread), _converged(r)) for r in rates],
            converged=CONVERGED,
            least=LEAST,
            labels=[g.label for g in groups],
            differ=differ[:MAX_KEYS],
            differ_more=max(len(differ) - MAX_KEYS, 0),
            configured=runs[0].name,
            configuration=summary.configuration(runs[0]),
            advice=_advice(runs),
            most=MAX_CASES,
            missing=[p for p in panels if p.chart is None],
            seeds=any(len(g.runs) > 1 for g in groups),
            width=width,
        )
    )


def _row(run: Run) -> tuple[str, str, str, str, str]:
    steps = run.reader.steps
    span = f"{len(steps)} ({steps[0]} to {steps[-1]})" if len(steps) else "0"
    phase = run.detector.phase if run.detector.seen else "-"
    return run.name, span, _last(run, ENTROPY), phase, _events(run)


def _last(run: Run, keys: Sequence[str]) -> str:
    values = run.series(keys)[1]
    return f"{values[-1]:.4g}" if len(values) else "-"


def _events(run: Run) -> str:
    found = [
        f"{e.name.replace('_', ' ')} seen at {e.step} (from {e.onset})" for e in run.detector.events if e.name in summary.TOLD
    ]
    return "; ".join(found[:6]) + (f"; {len(found) - 6} more" if len(found) > 6 else "") or "none"


def _spread(value: float, spread: float | None) -> str:
    return f"{value:.3f}" + ("" if spread is None else f" \u00b1 {spread:.3f}")


def _converged(rate: SuccessRate) -> str:
    if rate.converged is None:
        return f"too few values (fewer than {LEAST})"
    return f"{_spread(rate.converged, rate.converged_spread)} (moved {rate.change:+.3f})"


def _advice(runs: list[Run]) -> list[tuple[advice.Advice, list[tuple[str, str]]]]:
    """Each symptom with its methods, and the runs that show it with their figures."""
    found: dict[tuple[str, tuple[str, ...]], list[tuple[Run, advice.Advice]]] = {}
    for run in runs:
        for item in advice.advise_run(run).items:
            found.setdefault((item.symptom, item.methods), []).append((run, item))
    return [(cases[0][1], [(run.name, item.figure) for run, item in cases]) for cases in found.values()]


def problems_of(runs: list[Run], unread: list[str]) -> list[str]:
    """What could not be read, a line each."""
    lines = unread + [f"{run.name}: {text}" for run in runs for text in run.reader.problems]
    return lines + [
        f"{run.name}: a step is being written, or the run was killed in it; it is left out"
        for run in runs
        if run.reader.under_way
    ]
