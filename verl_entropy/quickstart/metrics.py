# SPDX-License-Identifier: Apache-2.0
"""Reading the JSONL that verl's `file` logger writes: one {"step": int, "data": {key: number}} a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SUCCESS = "verl_entropy/success"
TURN_ENTROPY = re.compile(r"verl_entropy/turn_entropy/(\d+)")
# verl names a validation number val-core|val-aux/<data source>/<variable>/<statistic>; success is logged as `acc` too.
HELD_OUT = re.compile(r"val-(?:core|aux)/(?P<source>.+)/(?P<variable>acc|success)/mean@\d+")
ENTROPY = ("actor/entropy", "actor/entropy_loss")  # the first one that is there


def parse_line(line: str | bytes) -> tuple[int, dict[str, float]] | None:
    """(step, numbers) of a line; None for a line that is not complete yet, or holds no step."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict) or not isinstance(record.get("step"), int):
        return None
    return record["step"], {key: float(value) for key, value in record["data"].items() if _is_number(value)}


def read(path: str | Path) -> dict[int, dict[str, float]]:
    """Numbers by step, in order of the steps; several lines of a step are merged."""
    return collect(Path(path).read_text(encoding="utf-8").splitlines())


def collect(lines: Iterable[str | bytes]) -> dict[int, dict[str, float]]:
    """As `read`, from lines."""
    steps: dict[int, dict[str, float]] = {}
    for step, data in filter(None, map(parse_line, lines)):
        steps.setdefault(step, {}).update(data)
    return dict(sorted(steps.items()))


def entropy_of(data: dict[str, float]) -> float | None:
    """Mean token entropy of a step in nats, under whichever key it was logged."""
    return next((data[key] for key in ENTROPY if key in data), None)


def held_out(data: dict[str, float]) -> Iterator[tuple[str, float]]:
    """(data source, success rate) of the validation numbers of a step; `success` wins over `acc`."""
    found: dict[str, float] = {}
    for key in sorted(data, key=lambda key: key.endswith("success") or "/success/" in key):
        match = HELD_OUT.fullmatch(key)
        if match:
            found[match["source"]] = data[key]
    yield from sorted(found.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
