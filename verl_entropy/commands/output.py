# SPDX-License-Identifier: Apache-2.0
"""What the commands print: text of at most 80 columns, or JSON."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 80
MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


def json_option(parser: argparse.ArgumentParser) -> None:
    """The option --json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    print(to_json(value))


def to_json(value: Any) -> str:
    """``value`` as JSON text; JSON has no NaN or infinity, they become null."""
    return json.dumps(_finite(value), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; bars in cells are escaped."""
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {row} |" for row in cells)])


def labelled(label: str, text: str, indent: int = 2, column: int = 12) -> str:
    """``text`` wrapped behind ``label``, with its lines below one another."""
    first = " " * indent + f"{label:<{column}}"
    return fill(text, first, " " * (indent + column))


def fill(text: str, first: str = "", rest: str = "") -> str:
    """``text`` wrapped to 80 columns; a word that is longer (a configuration key) keeps its line."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
