# SPDX-License-Identifier: Apache-2.0
"""Write the generated parts of README.md: the table of algorithms and the results. ``python tests/readme.py``."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

from verl_entropy.commands import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "examples" / "results"


def quickstart_table() -> str:
    """Success before and after the quickstart, per seed, from examples/results/quickstart.json."""
    runs = json.loads((RESULTS / "quickstart.json").read_text())
    lines = [
        f"Quickstart (`bash examples/quickstart.sh --seed S`, {runs['steps']} steps, {runs['machine']}, {runs['versions']}). Success on "
        f"held-out tasks, {runs['episodes']} episodes per split, temperature {runs['temperature']}:",
        "",
        "| preset | seed | seen before | seen after | unseen before | unseen after | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs["runs"]:
        cells = (f"{run[k]:.2f}" for k in ("seen_before", "seen_after", "unseen_before", "unseen_after"))
        lines.append(f"| {run['preset']} | {run['seed']} | {' | '.join(cells)} | {run['minutes']:.1f} |")
    for split in ("seen", "unseen"):
        gains = [run[f"{split}_after"] - run[f"{split}_before"] for run in runs["runs"]]
        spread = f" +- {statistics.stdev(gains):.2f}, standard deviation" if len(gains) > 1 else ""
        lines += ["", f"Gain on {split}: {statistics.mean(gains):+.2f}{spread} over {len(gains)} seed(s)."]
    return "\n".join(lines)


def _gpu(name: str) -> dict:
    return json.loads((ROOT / "tests/gpu/results" / f"{name}.json").read_text())


def gpu_runs() -> str:
    """Runs with vLLM, from tests/gpu/results/{seams,steps}.json."""
    lines = []
    for r in (_gpu("seams"), _gpu("steps")):
        last = {key.removeprefix("timing_s/"): values[-1] for key, values in r["timing_s"].items()}
        v = r["versions"]
        line = (
            f"- {r['device']}, torch {v['torch']}, verl {v['verl']}, vllm {v['vllm']}, commit {r['commit']}: "
            f"step {r['steps'][-1]} took {last['step'] - last.get('save_checkpoint', 0.0):.1f} s without saving (generation {last['gen']:.1f}, "
            f"old log-probs {last['old_log_prob']:.1f}, advantages {last['adv']:.1f}, update {last['update_actor']:.1f})."
        )
        if "seams" in r:
            line += f" {sum(r['seams'].values())} of {len(r['seams'])} seams were active."
        if "diagnostics_s" in r:
            first, *others = r["diagnostics_s"]
            line += (
                f" The trainer's part of the diagnostics took {1e3 * first:.0f} ms in a step with the costly metrics and "
                f"{1e3 * max(others):.0f} ms in one without, {100 * max(others) / last['step']:.2f} % of it."
            )
        lines.append(line)
    intro = (
        "On a GPU (`tests/gpu/run.sh`; SmolLM2-135M, FSDP2, 256 episodes of up to 4 turns a step, `+entropy=[gigpo,aem,seal,epo]`, three "
        "steps, one run each):"
    )
    return "\n".join([intro, "", *lines])


def gpu_entropy() -> str:
    """Memory and time of entropy with gradient, from tests/gpu/results/overheads.json."""
    r = _gpu("overheads")
    lines = [
        f"Log-prob and entropy with gradient, both ways, on {r['device']} (bf16 logits, medians of {r['repeats']}; bytes per token and word "
        "beyond the logits: kept for backward, and peak with the gradient's 2):",
        "",
        "| path | vocabulary | tokens | ms | kept | peak |",
        "|---|---|---|---|---|---|",
    ]
    for row in r["entropy"]:
        if row["tokens"] not in (16_384, 65_536) or "SmolLM" in row["model"]:
            continue
        cells = ("does not fit", "", "") if row["ms"] is None else (f"{row['ms']:.1f}", f"{row['kept']:.1f}", f"{row['peak']:.1f}")
        lines.append(f"| {row['path']} | {row['vocab']:,} | {row['tokens']:,} | {' | '.join(cells)} |")
    lines += ["", "In every row log-prob is this package's; verl's own is a Python loop over rows where flash-attn is missing."]
    for row in r["head"]:
        lines += [
            "",
            f"SEAL's head beside {row['model']}: {row['head_ms']:.1f} ms for {row['trained_tokens']:,} trained tokens, "
            f"{100 * row['head_share']:.1f} % of the {row['update_ms']:.0f} ms of the model's forward and backward on {row['tokens']:,} tokens; "
            f"{row['head_state_mb']:.0f} MB of weights and Adam. Its time is kernel launches, so the share falls with larger micro-batches.",
        ]
    return "\n".join(lines)


def gpu_numerics() -> str:
    """Largest errors against fp64, from tests/gpu/results/numerics.json."""
    r = _gpu("numerics")
    worst: dict[tuple[str, str], float] = {}
    for row in r["rows"]:
        if "entropy" in row:
            key = (row["path"], row["logits"])
            worst[key] = max(worst.get(key, 0.0), row["entropy"])
    lines = [
        f"Largest error of a token's entropy against fp64 on {r['device']} ({r['tokens']:,} tokens, vocabulary {r['vocab']:,}, mean entropies "
        "of 1.5 to 11 nats):",
        "",
        "| path | bf16 | fp16 | fp32 |",
        "|---|---|---|---|",
    ]
    for path in dict.fromkeys(path for path, _ in worst):
        cells = []
        for dtype in ("bfloat16", "float16", "float32"):
            value = worst.get((path, dtype), worst.get((path, f"{dtype} hidden")))
            cells.append("" if value is None else f"{value:.0e}")
        lines.append(f"| {path} | {' | '.join(cells)} |")
    return "\n".join(lines)


def detector_table() -> str:
    """What the phase detector makes of simulated curves, from verl_entropy/diagnostics/detector_results.json."""
    r = json.loads((ROOT / "verl_entropy/diagnostics/detector_results.json").read_text())
    seen = list(next(iter(r["confusion"].values())))
    lines = [f"| simulated curve | right | {' | '.join(seen)} |", "|---|---|" + "---|" * len(seen)]
    for shape, row in r["confusion"].items():
        lines.append(f"| {shape} | {r['expected'][shape]} | {' | '.join(str(row[k]) for k in seen)} |")
    delay = r["delay_steps"]
    return "\n".join(
        [
            *lines,
            "",
            f"{r['curves']} curves of {r['steps_per_curve']} steps: {100 * r['accuracy']:.0f} % right, a false alarm in "
            f"{100 * r['false_alarm_rate_per_run']:.1f} % of the runs without an eruption; {100 * r['accuracy_without_hard']:.0f} % and "
            f"{100 * r['false_alarm_rate_per_run_without_hard']:.1f} % without the three hard shapes (fast drift up, soft step up, sudden "
            f"eruption). {100 * r['eruptions_found']:.0f} % of {r['eruptions']} eruptions are found, {delay['p50']:.0f} steps after their "
            f"onset (median; {delay['p90']:.0f} for one in ten). A fast steady rise and a soft step look like an eruption to it, and a "
            "sudden eruption like a step, until entropy falls again.",
        ]
    )


ENVIRONMENT_COLUMNS = {
    "env": "environment",
    "version": "version",
    "licence": "licence",
    "splits": "splits",
    "episodes": "episodes",
    "steps_per_s": "steps/s",
    "start_up_s": "start-up s",
    "memory_mb": "memory MB",
    "expert_success": "expert",
}


def environments_table() -> str:
    """The conformance suite's table, from tests/env/conformance.json (``python tests/env/conformance.py --json FILE``)."""
    r = json.loads((ROOT / "tests/env/conformance.json").read_text())
    lines = [f"| {' | '.join(ENVIRONMENT_COLUMNS.values())} |", "|---" * len(ENVIRONMENT_COLUMNS) + "|"]
    for row in r["rows"]:
        cells = [", ".join(row[k]) if k == "splits" else str(row[k]) for k in ENVIRONMENT_COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"One process on a machine with {r['cpu']} cores; memory is what the environment adds."]
    return "\n".join(lines)


def benchmark_table() -> str:
    """Costs from tests/benchmarks/results.json (``python tests/benchmarks/run_all.py``)."""
    r = json.loads((ROOT / "tests/benchmarks/results.json").read_text())
    lines = [f"Costs, median on {r['machine']}:", "", "| what | value |", "|---|---|"]
    return "\n".join(lines + [f"| {row['what']} | {row['value']} |" for row in r["rows"]])


def render(text: str) -> str:
    """``text`` with its generated parts renewed."""
    results = "\n\n".join([quickstart_table(), benchmark_table(), gpu_runs(), gpu_entropy(), gpu_numerics()])
    parts = {
        "table: verl-entropy table": ("table", table.algorithms()),
        "table: verl-entropy table commands": ("commands", table.commands()),
        "environments": ("environments", environments_table()),
        "detector": ("detector", detector_table()),
        "results": ("results", results),
    }
    for start, (end, body) in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(start)} -->\n).*?(<!-- end of {end} -->)", re.S)
        text = pattern.sub(lambda m, body=body: m.group(1) + body + "\n" + m.group(2), text)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))
