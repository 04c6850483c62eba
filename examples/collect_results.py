# SPDX-License-Identifier: Apache-2.0
"""Collect the summaries of quickstart runs into examples/results/quickstart.json, from which recipes/README.md takes its table.

python examples/collect_results.py .quickstart [MORE FOLDERS...]
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

from verl_entropy.quickstart.build import HELD_OUT


def main(folders: list[str]) -> None:
    """Write the JSON; runs are sorted by preset and seed."""
    runs = [json.loads(path.read_text()) for folder in folders for path in Path(folder).glob("*/summary.json")]
    versions = ", ".join(f"{name} {importlib.metadata.version(name).split('+')[0]}" for name in ("verl", "torch", "transformers"))
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    report = {
        "machine": f"{os.cpu_count()} cores of {names[0] if names else 'an unnamed processor'}",
        "versions": versions,
        "steps": runs[0]["steps"],
        "episodes": HELD_OUT,
        "temperature": 1.0,
        "runs": sorted(runs, key=lambda run: (run["preset"], run["seed"])),
    }
    out = Path(__file__).parent / "results" / "quickstart.json"
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
