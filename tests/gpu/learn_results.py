# SPDX-License-Identifier: Apache-2.0
"""Runs of learn.sh as one small results.json, and results.png drawn from it.

    python3 tests/gpu/learn_results.py OUT --to recipes/first_look/textworld_express [--name results]
    python3 tests/gpu/learn_results.py --redraw --to recipes/first_look/textworld_express    # the picture again, from results.json

Reads OUT/runs/NAME-SEED (or NAME-SEED.jsonl of verl's file logger where there is no run file) and OUT/host.json. A run ends
before the first step that was sampled with other weights than the trainer's, as verl alone lets happen where runs share a host.
Then ``python3 tests/readme.py`` renews the READMEs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy.config.settings import lookup
from verl_entropy.diagnostics.live import OTHER_POLICY, POLICY_GAP
from verl_entropy.diagnostics.phases import classify
from verl_entropy.runs.report.plot import COLORS, STYLES, plain, png, style
from verl_entropy.runs.report.runs import ENTROPY, Group, P, Run, differing, load_readable, thin
from verl_entropy.runs.report.success import series as success_series
from verl_entropy.runs.runfile import STEPS

ENDS = 10
"""Steps at the start and at the end whose mean is a run's first and last value; half of a run that is shorter than both."""
POINTS = 60
"""Points of a stored series: a line of a small picture, and some 4 kB a run."""
LEAST = 1e-3
"""Nats at the foot of the picture's logarithmic axis; less than this is a policy that no longer samples."""
METHODS = ("grpo", "seal", "epo", "aem", "repo_r", "adapo")
"""Order of the runs; further settings of a method follow it."""
SERIES = {
    "entropy": ENTROPY,
    "success": (P + "success",),
    "grad_norm": ("actor/grad_norm",),
    "kl_old": ("actor/ppo_kl",),
    "kl_reference": ("actor/kl_loss",),
    "clipped": ("actor/pg_clipfrac",),
    "clipped_high": (P + "clipfrac_high",),
    "clipped_low": (P + "clipfrac_low",),
    "valid_actions": (P + "valid_action_ratio",),
    "groups_without_signal": (P + "group/zero_variance",),
    "response_length": ("response_length/mean",),
}
SETTINGS = {
    "lr": "actor_rollout_ref.actor.optim.lr",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "n": "actor_rollout_ref.rollout.n",
    "prompts": "data.train_batch_size",
}
TIMES = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")
_NAME = re.compile(r"(?P<name>.+)-(?P<seed>\d+)$")


def find_runs(out: Path) -> list[Path]:
    """A path for every run, the run file before the logger's; GRPO first."""
    found = {}
    for path in sorted((out / "runs").iterdir() if (out / "runs").is_dir() else ()):
        stem = path.name.removesuffix(".jsonl")
        if _NAME.match(stem) and ((path / STEPS).is_file() or (path.suffix == ".jsonl" and stem not in found)):
            found[stem] = path
    if not found:
        raise SystemExit(f"{out}/runs: no NAME-SEED folder with a run file and no NAME-SEED.jsonl. Give the OUT of learn.sh.")

    def place(stem: str) -> tuple[int, str]:
        method = next((i for i, m in enumerate(METHODS) if stem.startswith((f"{m}-", f"{m}_"))), len(METHODS))
        return method, stem if "_" in stem else ""  # the method itself, then its other settings

    return [found[stem] for stem in sorted(found, key=lambda s: (*place(s), s))]


class Before:
    """A run's reader, up to the step before ``end``."""

    def __init__(self, reader: Any, end: int) -> None:
        self._reader, self.end = reader, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    @property
    def steps(self) -> np.ndarray:
        return self._reader.steps[self._reader.steps < self.end]

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        steps, values = self._reader.series(key)
        return steps[steps < self.end], values[steps < self.end]


def end_before_other_policies(run: Run) -> None:
    steps, gap = run.series((POLICY_GAP,))
    foreign = steps[gap > OTHER_POLICY]
    if len(foreign):
        run.reader = Before(run.reader, int(foreign[0]))


def short(value: float) -> float | None:
    """Four digits are more than a curve shows; None for what is missing."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def ends(values: np.ndarray) -> dict[str, float | None] | None:
    """Means of the first and the last steps, and how many those are."""
    if not len(values):
        return None
    count = min(ENDS, max(len(values) // 2, 1))
    return {"first": short(values[:count].mean()), "last": short(values[-count:].mean()), "steps": count}


def thinned(run: Run) -> dict[str, list]:
    """All series over shared steps, at most POINTS of them."""
    known = {name: run.series(keys) for name, keys in SERIES.items()}
    known = {name: pair for name, pair in known.items() if len(pair[0])}
    if not known:
        return {"steps": []}
    steps = np.unique(np.concatenate([s for s, _ in known.values()]))
    table = np.full((len(known), len(steps)), np.nan)
    for row, (at, values) in zip(table, known.values(), strict=True):
        row[np.searchsorted(steps, at)] = values
    steps, table = thin(steps, table, POINTS)
    rows = {name: [short(v) for v in row] for name, row in zip(known, table, strict=True)}
    return {"steps": [int(s) if s == int(s) else short(s) for s in steps], **rows}


def held_out(run: Run) -> dict[str, dict]:
    """Success at every validation, by validation set."""
    found = {}
    for label, keys in success_series([run])[1:]:
        steps, values = run.series(keys)
        if len(steps):
            found[label.removeprefix("validation ")] = {
                "key": keys[0],
                "steps": steps.tolist(),
                "values": [short(v) for v in values],
            }
    return found


def verdict(run: Run) -> dict[str, Any]:
    """What the detector makes of the run, with its own settings: a class, its events and its phases."""
    events = run.detector.events
    kind = classify([e.name for e in events]) if run.detector.phase != "warmup" else "too short"
    return {
        "class": kind,
        "events": [{"name": e.name, "onset": e.onset, "seen": e.step, "level": short(e.level)} for e in events],
        "phases": [[s.phase, s.first, s.last] for s in run.spans],
    }


def seconds(run: Run) -> dict[str, float]:
    """Medians over the steps, so that validations and the first step do not count."""
    keys = {name: f"timing_s/{name}" for name in ("step", *TIMES)} | {"diagnostics": P + "timing_s/diagnostics"}
    known = {name: run.series((key,))[1] for name, key in keys.items()}
    return {name: short(np.median(values)) for name, values in known.items() if len(values)}


def settings_of(run: Run) -> dict[str, Any]:
    config = run.reader.config
    found = {name: lookup(config, path) for name, path in SETTINGS.items()}
    presets = lookup(config, "algorithm.entropy.presets") or {}
    return {"presets": [name for name, on in presets.items() if on], **{k: v for k, v in found.items() if v is not None}}


def summary(run: Run, differs: dict[str, Any]) -> dict[str, Any]:
    name = _NAME.match(run.label)
    steps = run.reader.steps
    return {
        "name": name["name"],
        "seed": int(name["seed"]),
        "settings": settings_of(run),
        "differs": differs,
        "steps": int(steps.max(initial=0)),
        "foreign_step": getattr(run.reader, "end", None),
        "planned_steps": lookup(run.reader.config, "trainer.total_training_steps"),
        "train_success": ends(run.series((P + "success",))[1]),
        "held_out": held_out(run),
        "entropy": ends(run.series(ENTROPY)[1]),
        "valid_actions": ends(run.series((P + "valid_action_ratio",))[1]),
        "detector": verdict(run),
        "seconds": seconds(run),
        "series": thinned(run),
        "problems": len(run.reader.problems),
    }


def differences(runs: list[Run]) -> list[dict[str, Any]]:
    """Configuration keys that are set otherwise than in the first run, for each run; places of files left out."""
    table = {
        k: v for k, v in differing([Group(r.label, [r]) for r in runs]).items() if not k.endswith(("folder", "path", "_files"))
    }
    return [{k: row[i] for k, row in table.items() if row[i] not in (row[0], "(not set)")} for i in range(len(runs))]


def collect(out: Path) -> dict[str, Any]:
    paths = find_runs(out)
    runs, problems = load_readable(paths)
    for run in runs:
        run.label = run.reader.path.name.removesuffix(".jsonl")
        end_before_other_policies(run)
    for problem in [*problems, *(f"{run.label}: {p}" for run in runs for p in run.reader.problems)]:
        print(problem, file=sys.stderr)
    host, dev = out / "host.json", out / "data/textworld_express/dev.parquet"
    if not host.is_file():
        raise SystemExit(f"{host}: missing. On the machine of the runs: python3 tests/gpu/host.py {host} learn.sh ...")
    result = {"host": json.loads(host.read_text())}
    if dev.is_file():
        import pyarrow.parquet as pq

        result["held_out_tasks"] = pq.read_metadata(dev).num_rows
    return result | {"runs": [summary(run, d) for run, d in zip(runs, differences(runs), strict=True)]}


def dump(result: dict[str, Any]) -> str:
    """JSON with every list of plain values on one line."""
    text = json.dumps(result, indent=1, allow_nan=False)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: re.sub(r"\s*\n\s*", "", m[0]).replace(",", ", "), text) + "\n"


# ----------------------------------------------------------------------------- picture


def draw(result: dict[str, Any]) -> bytes:
    """Success on held-out tasks and in training, and entropy, over steps: a line for every run, thin where it is one of several seeds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    runs = result["runs"]
    panels = [("training success", "success"), ("entropy (nats)", "entropy")]
    panels = ([("held-out success", None)] if any(r["held_out"] for r in runs) else []) + panels
    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(7.2, 0.8 + 1.9 * len(panels)), dpi=130, layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    names = list(dict.fromkeys(r["name"] for r in runs))
    for i, name in enumerate(names):
        own = [r for r in runs if r["name"] == name]
        label = plain(name if len(own) == 1 else f"{name}, mean of {len(own)}")
        look = {"color": COLORS[i % len(COLORS)], "linestyle": STYLES[i // len(COLORS) % len(STYLES)]}
        for axis, (_, key) in zip(axes, panels, strict=True):
            lines = [_curve(run, key) for run in own]
            for line in lines if len(lines) > 1 else ():
                axis.plot(*line, **look, linewidth=0.6, alpha=0.45)
            steps, values = _shared_mean(lines)
            marks = {"marker": "os^Dv<>P"[i % 8], "markersize": 3.5, "markevery": max(len(steps) // 6, 1)}
            axis.plot(steps, values, **look, **marks, linewidth=1.3, label=label)
    for axis, (label, key) in zip(axes, panels, strict=True):
        style(axis, label)
        if key == "entropy":
            axis.set_yscale("log")  # a collapse is an order of magnitude or two, and an eruption as much the other way
            axis.set_ylim(bottom=LEAST)
            _eruptions(axis, runs, names)
        else:
            axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=5 if max(map(len, labels)) < 14 else 3, frameon=False, fontsize=8.5
    )
    return png(figure)


def _curve(run: dict, key: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a series; without a key, success of the first of the held-out sets."""
    if key is None:
        first = next(iter(run["held_out"].values()), {"steps": [], "values": []})
        steps, values = first["steps"], first["values"]
    else:
        values = run["series"].get(key, [])
        steps = run["series"]["steps"][: len(values)]
    values = np.array([np.nan if v is None else v for v in values])
    return np.array(steps), np.maximum(values, LEAST) if key == "entropy" else values


def _shared_mean(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The mean over the steps that all lines have: with one that ended, a mean would jump."""
    steps = reduce(np.intersect1d, (at for at, _ in lines))
    return steps, np.mean([values[np.isin(at, steps)] for at, values in lines], axis=0)


def _eruptions(axis, runs: list[dict], names: list[str]) -> None:
    """A triangle where the detector saw an eruption, in the method's colour and a row of its own."""
    for i, run in enumerate(runs):
        seen = [e["seen"] for e in run["detector"]["events"] if e["name"] == "eruption"]
        if seen:
            height = [0.97 - 0.06 * (i % 15)] * len(seen)
            color = COLORS[names.index(run["name"]) % len(COLORS)]
            axis.plot(seen, height, "v", markersize=4, color=color, transform=axis.get_xaxis_transform())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="the OUT of learn.sh")
    parser.add_argument("--to", type=Path, required=True, help="folder for NAME.json and NAME.png")
    parser.add_argument("--name", default="results", help="of the two files (results)")
    parser.add_argument("--redraw", action="store_true", help="only the picture, from the NAME.json that is there")
    args = parser.parse_args(arguments)
    if args.redraw == (args.out is not None):
        parser.error("give OUT to read runs, or --redraw without OUT")
    path, picture = args.to / f"{args.name}.json", args.to / f"{args.name}.png"
    if not args.redraw:
        args.to.mkdir(parents=True, exist_ok=True)
        path.write_text(dump(collect(args.out)))
    result = json.loads(path.read_text())
    picture.write_bytes(draw(result))
    for run in result["runs"]:
        print(f"{run['name']}-{run['seed']}: {run['steps']} steps, {run['detector']['class']}")
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB; {picture.name}: {picture.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
