# SPDX-License-Identifier: Apache-2.0
"""What the plugin adds to ``import verl``: alternating pairs of fresh processes, with it and with VERL_USE_EXTERNAL_PLUGINS=none.

    python tests/benchmarks/bench_import.py [--repeats 15] [--json FILE]

Wall and processor time, median of each and median of the differences of pairs; wall time only means something on a quiet machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time

from report import parser, table, write


def once(plugins: str) -> tuple[float, float]:
    """Wall and processor seconds of a process that imports verl."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | {"VERL_USE_EXTERNAL_PLUGINS": plugins}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-c", "import verl"], env=env, check=True, capture_output=True)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    args = parser(__doc__).parse_args()
    once("auto"), once("none")
    pairs = [(once("auto"), once("none")) for _ in range(args.repeats)]
    rows = []
    for number, what in enumerate(("wall s", "processor s")):
        ours, theirs = ([side[number] for side in pair] for pair in zip(*pairs, strict=True))
        rows.append(
            {
                "time": what,
                "with the plugin": statistics.median(ours),
                "without": statistics.median(theirs),
                "median difference": statistics.median(a - b for a, b in zip(ours, theirs, strict=True)),
            }
        )
    table(rows)
    write(args.json, {"import": rows})


if __name__ == "__main__":
    main()
