# SPDX-License-Identifier: Apache-2.0
"""What happened in the runs, in three sentences with figures, and what they were: model, methods, date, versions."""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from verl_entropy import __version__
from verl_entropy.config.settings import lookup
from verl_entropy.methods import registry
from verl_entropy.runs.report.advice import NAMES_OF_SUCCESS, active_methods
from verl_entropy.runs.report.runs import ENTROPY, Run, flatten

TOLD = ("eruption", "runaway", "collapse", "step_change", "recovery", "non_finite", "dead", "template_collapse")
"""Events that a sentence names."""
MODEL = "actor_rollout_ref.model.path"


def names(runs: list[Run], most: int = 3) -> str:
    """The runs' names, the first few."""
    more = len(runs) - most
    return ", ".join(run.name for run in runs[:most]) + (f" and {more} more" if more > 0 else "")


def methods(run: Run) -> list[str]:
    """The base estimator, the methods of ours and the presets that a run has, as far as its configuration is known."""
    known = {method.name for method in registry.methods()}
    base = lookup(run.reader.config, "algorithm.adv_estimator")
    on = active_methods(run.reader.config)
    return [*([str(base)] if base and str(base) not in known else []), *sorted(on & known)]


def identity(runs: list[Run]) -> dict[str, str]:
    """Run, model, methods, date and versions, each "" where it is not known."""
    models = dict.fromkeys(
        PurePosixPath(str(path).rstrip("/")).name or str(path) for run in runs if (path := lookup(run.reader.config, MODEL))
    )
    used = dict.fromkeys("+".join(found) for run in runs if (found := methods(run)))
    started = [run.reader.meta["started"] for run in runs if type(run.reader.meta.get("started")) in (int, float)]
    dates = sorted({time.strftime("%Y-%m-%d", time.gmtime(at)) for at in started if 0 < at < 4e9})
    versions: dict[str, list[str]] = {}
    for run in runs:
        told = run.reader.meta.get("versions")
        for name, version in {
            "verl-entropy": run.reader.meta.get("verl_entropy"),
            **(told if isinstance(told, dict) else {}),
        }.items():
            if version and str(version) not in versions.setdefault(name, []):
                versions[name].append(str(version))
    return {
        "runs": names(runs),
        "model": _few(list(models)),
        "methods": _few(list(used)),
        "date": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "",
        "versions": ", ".join(f"{name} {'/'.join(found)}" for name, found in versions.items())
        or f"page by verl-entropy {__version__}",
    }


def _few(found: list[str], most: int = 4) -> str:
    return "; ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def sentences(runs: list[Run]) -> list[str]:
    """Three sentences: success, entropy, events and what was on."""
    runs = [run for run in runs if len(run.reader)]
    if not runs:
        return ["No step has been read yet."]
    if len(runs) == 1:
        return [_success(runs[0]), _entropy(runs[0]), _events(runs[0])]
    return [_success_of_many(runs), _entropy_of_many(runs), _events_of_many(runs)]


def _ends(values: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last tenth, at most ten values each."""
    n = min(max(len(values) // 10, 1), 10)
    return float(values[:n].mean()), float(values[-n:].mean())


def _success(run: Run) -> str:
    steps, values = run.series(NAMES_OF_SUCCESS)
    if not len(steps):
        return "No success was logged."
    first, last = _ends(values)
    best = int(values.argmax())
    return (
        f"Success in training went from {first:.2f} to {last:.2f} over steps {steps[0]} to {steps[-1]}, "
        f"with its best, {values[best]:.2f}, at step {steps[best]}."
    )


def _entropy(run: Run) -> str:
    steps, values = run.series(ENTROPY)
    if not len(steps):
        return "No entropy was logged."
    first, last = _ends(values)
    low, high = int(values.argmin()), int(values.argmax())
    return (
        f"Entropy went from {first:.3g} to {last:.3g} nats, between {values[low]:.3g} at step {steps[low]} and {values[high]:.3g} at "
        f"step {steps[high]}."
    )


def _events(run: Run) -> str:
    found = [e for e in run.detector.events if e.name in TOLD]
    on = methods(run)
    told = ", ".join(f"{_article(e.name)} at step {e.step} (from step {e.onset})" for e in found[:4])
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    events = f"The detector saw {told}{more}" if found else "The detector saw no eruption, runaway or collapse"
    if not on:
        return f"{events}; the methods are not recorded."
    return f"{events}; {_list(on)} {'was' if len(on) == 1 else 'were'} on."


def _article(name: str) -> str:
    name = name.replace("_", " ")
    return (
        name
        if name in ("non finite", "dead", "recovery", "template collapse")
        else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    )


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _success_of_many(runs: list[Run]) -> str:
    ends = [(_ends(values)[1], run.name) for run in runs if len(values := run.series(NAMES_OF_SUCCESS)[1])]
    if not ends:
        return f"None of the {len(runs)} runs logged success."
    low, high = min(ends), max(ends)
    return f"Success in training at the end of {len(ends)} runs is between {low[0]:.2f} ({low[1]}) and {high[0]:.2f} ({high[1]})."


def _entropy_of_many(runs: list[Run]) -> str:
    ends = [(_ends(values)[1], run.name) for run in runs if len(values := run.series(ENTROPY)[1])]
    if not ends:
        return f"None of the {len(runs)} runs logged entropy."
    low, high = min(ends), max(ends)
    return f"Entropy at the end is between {low[0]:.3g} nats ({low[1]}) and {high[0]:.3g} nats ({high[1]})."


def _events_of_many(runs: list[Run]) -> str:
    hit: dict[str, list[tuple[int, str]]] = {}
    for run in runs:
        for name in dict.fromkeys(e.name for e in run.detector.events if e.name in TOLD):
            step = next(e.step for e in run.detector.events if e.name == name)
            hit.setdefault(name, []).append((step, run.name))
    told = ", ".join(
        f"{name.replace('_', ' ')} in {len(found)} of {len(runs)} runs (first {min(found)[1]}, step {min(found)[0]})"
        for name, found in hit.items()
    )
    used = dict.fromkeys("+".join(found) for run in runs if (found := methods(run)))
    events = f"The detector saw {told}" if hit else f"The detector saw no eruption, runaway or collapse in {len(runs)} runs"
    return f"{events}; methods: {_few(list(used))}." if used else f"{events}; the methods are not recorded."


def configuration(run: Run) -> list[tuple[str, Any]]:
    """Every key of a run's configuration with its value."""
    return sorted(flatten(run.reader.config).items())
