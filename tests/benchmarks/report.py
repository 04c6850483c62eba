# SPDX-License-Identifier: Apache-2.0
"""Timing and reporting shared by the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def median_ms(function: Callable[[], Any], repeats: int) -> float:
    """Median CPU time of this thread: other work on the machine only takes cache and bandwidth."""
    function()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return 1e3 * statistics.median(times)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def parser(description: str) -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--repeats", type=int, default=15)
    out.add_argument("--json", type=Path, help="write machine and results to this file")
    return out


def table(rows: list[dict[str, Any]]) -> None:
    """Print dicts with the same keys as aligned columns."""
    columns = [[name, *(_text(row[name]) for row in rows)] for name in rows[0]]
    widths = [max(map(len, column)) for column in columns]
    for cells in zip(*columns, strict=True):
        print(
            "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True)))
        )
    print()


def _text(value: Any) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


def write(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n", encoding="utf-8")
