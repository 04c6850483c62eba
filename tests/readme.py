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


def gpu_line() -> str:
    """The seams on a GPU, from tests/gpu/results/seams_h100.json."""
    r = json.loads((ROOT / "tests/gpu/results/seams_h100.json").read_text())
    active = sum(r["seams"].values())
    return (
        f"On {r['device']} (torch {r['versions']['torch']}, verl {r['versions']['verl']}, vllm {r['versions']['vllm']}; SmolLM2-135M, "
        f"FSDP2, {r['steps']} steps): {active} of {len(r['seams'])} seams active; a step takes {r['timing_s']['timing_s/step']:.1f} s "
        f"(generation {r['timing_s']['timing_s/gen']:.1f}, old log-probs {r['timing_s']['timing_s/old_log_prob']:.1f}, update "
        f"{r['timing_s']['timing_s/update_actor']:.1f}). One run."
    )


def benchmark_table() -> str:
    """Costs from tests/benchmarks/results.json (``python tests/benchmarks/run_all.py``)."""
    r = json.loads((ROOT / "tests/benchmarks/results.json").read_text())
    lines = [f"Costs, median on {r['machine']}:", "", "| what | value |", "|---|---|"]
    return "\n".join(lines + [f"| {row['what']} | {row['value']} |" for row in r["rows"]])


def render(text: str) -> str:
    """``text`` with its generated parts renewed."""
    results = "\n\n".join([quickstart_table(), benchmark_table(), gpu_line()])
    parts = {"table: verl-entropy table": ("table", table.algorithms()), "results": ("results", results)}
    for start, (end, body) in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(start)} -->\n).*?(<!-- end of {end} -->)", re.S)
        text = pattern.sub(lambda m, body=body: m.group(1) + body + "\n" + m.group(2), text)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))
