# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks of this folder and write results.json, from which recipes/README.md takes its figures.

[VERL_AGENT_HOME=<checkout of 796ed31>] python tests/benchmarks/run_all.py

Without the checkout the comparison with verl-agent is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def measure(name: str, *arguments: str) -> dict[str, Any]:
    """The JSON that one benchmark writes; its tables go to the screen."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(out)], check=True)
        return json.loads(out.read_text())


def main() -> None:
    advantages, numerics = measure("bench_advantages"), measure("bench_numerics")
    head, transforms = measure("bench_seal_head"), measure("bench_transforms")
    step = {row["6,400 rows x 512 tokens"]: row["ms"] for row in advantages["step"]}
    diagnostics, glue = measure("bench_diagnostics"), measure("bench_glue")
    values = head["results"]
    rows = [
        ("GiGPO, 16 prompts x 8 rollouts x 50 turns, one core", f"{step['gigpo']:.1f} ms"),
        ("AEM, the same batch", f"{step['aem']:.1f} ms"),
        ("turns of the same batch, shared by all methods", f"{step['build_turns']:.0f} ms"),
    ]
    rows += [
        (f"{name}, 6,400 rows x 512 tokens, one core", f"{r['ms']:.1f} ms") for name, r in sorted(transforms["results"].items())
    ]
    rows += [
        ("SEAL head, share of the FLOPs of a Qwen2.5-1.5B update, equal tokens", f"{values['head / actor, same tokens']:.2%}"),
        ("the same with 512 response tokens of 2,560", f"{values['head / actor, 512 of 2560 tokens']:.2%}"),
        ("SEAL head, kept for backward per response token", f"{values['head bytes kept per response token']:,.0f} bytes"),
        ("SEAL head, weights, gradient and Adam", f"{values['head MB of weights, gradient and Adam']:.0f} MB"),
    ]
    rows += [
        (f"diagnostics at their defaults, a step of {int(number):,} rows x 512 tokens, one core", f"{ms:.0f} ms")
        for number, ms in diagnostics["spread_ms"].items()
    ]
    rows += [
        (f"{row['what']}: verl's code and ours, one core", f"{row['verl ms']:,.0f} and {row['ours ms']:.1f} ms")
        for row in glue["results"]
    ]
    raw = {
        "advantages": advantages,
        "numerics": numerics,
        "head": head,
        "transforms": transforms,
        "diagnostics": diagnostics,
        "glue": glue,
    }
    if os.environ.get("VERL_AGENT_HOME"):
        raw["verl_agent"] = measure("bench_verl_agent")
        rows += [
            (
                f"GiGPO's {what} in verl-agent's code and in ours, 6,400 rows, one core",
                f"{ms['verl-agent ms']:.0f} and {ms['ours ms']:.1f} ms",
            )
            for what, ms in (
                ("step advantage", raw["verl_agent"]["verl_agent"]["step"]),
                ("all", raw["verl_agent"]["verl_agent"]["all"]),
            )
        ]
    machine = advantages["machine"]
    report = {
        "machine": f"{machine['processor']}, {machine['threads']} thread, torch {machine['torch']}",
        "rows": [{"what": what, "value": value} for what, value in rows],
        "raw": raw,
    }
    (HERE / "results.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
