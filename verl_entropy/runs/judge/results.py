# SPDX-License-Identifier: Apache-2.0
"""Judgements on disk: ``judge.jsonl`` in the run's folder, one line a trajectory. Neither torch nor a network is needed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = "judge.jsonl"
FORMAT = 1
MAX_CHARS = 24_000
"""Characters of a trajectory that are judged, about 6000 tokens: beyond it the middle is left out."""
MAX_REASON = 500
"""Characters kept of a reason: 25 words are asked for."""
MAX_PROBLEMS = 5
"""Bad lines that are spelled out; the rest is counted."""


@dataclass(frozen=True)
class Judgement:
    """One judged trajectory."""

    step: int
    index: int
    """Place among the stored trajectories of the step."""
    digest: str
    """Of the text that was judged: another text at the same place is another trajectory."""
    model: str
    prompt: str
    """Version of the prompt."""
    score: float
    """0 clean to 10 fully degenerate."""
    reason: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    """As the endpoint counted them, failed attempts included; 0 where it did not say."""

    @property
    def key(self) -> tuple[int, int, str, str, str]:
        """What makes a second judgement superfluous."""
        return self.step, self.index, self.digest, self.model, self.prompt


def trajectory_text(sample: Mapping[str, Any], limit: int = MAX_CHARS) -> tuple[str, str]:
    """What the model wrote in a stored trajectory, turn by turn, and the digest of it; empty without text."""
    turns = sample.get("turns")
    parts = []
    for number, turn in enumerate(turns if isinstance(turns, list) else ()):
        text = _turn_text(turn)
        if text.strip():
            parts.append(f"[turn {number}]\n{text}")
    whole = "\n".join(parts)
    if len(whole) > limit:
        half = limit // 2
        whole = f"{whole[:half]}\n[... {len(whole) - 2 * half} characters left out ...]\n{whole[-half:]}"
    whole = whole.encode("utf-8", errors="replace").decode("utf-8")  # lone surrogates cannot be sent
    return whole, hashlib.sha256(whole.encode("utf-8")).hexdigest()[:16]


def _turn_text(turn: Any) -> str:
    if not isinstance(turn, Mapping):
        return ""
    if isinstance(turn.get("text"), str) and turn["text"]:
        return turn["text"]
    tokens = turn.get("tokens")
    return "".join(t for t in tokens if isinstance(t, str)) if isinstance(tokens, list) else ""


def read_results(path: str | Path) -> tuple[list[Judgement], list[str]]:
    """Judgements of a run's folder (or of a results file), the last of each key, and problems with lines."""
    path = Path(path) / RESULTS if Path(path).is_dir() else Path(path)
    if not path.is_file():
        return [], []
    found: dict[tuple, Judgement] = {}
    problems = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        item = _parse(line)
        if item is None:
            problems.append(f"{path.name}:{number}: no judgement of format {FORMAT}; left out")
        else:
            found[item.key] = item
    more = len(problems) - MAX_PROBLEMS
    return list(found.values()), problems[:MAX_PROBLEMS] + ([f"{path.name}: and {more} more"] if more > 0 else [])


def _parse(line: bytes) -> Judgement | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.pop("v", None) != FORMAT:
        return None
    kinds = {"step": int, "index": int, "digest": str, "model": str, "prompt": str, "score": (int, float)}
    if any(not isinstance(record.get(k), kind) or isinstance(record[k], bool) for k, kind in kinds.items()):
        return None
    if not 0 <= record["score"] <= 10:  # false for NaN
        return None
    known = {k: v for k, v in record.items() if k in Judgement.__dataclass_fields__}
    known["reason"] = str(known.get("reason", ""))[:MAX_REASON]
    known.update({k: 0 for k in ("input_tokens", "output_tokens") if not isinstance(known.get(k), int)})
    return Judgement(**known)


class ResultsWriter:
    """Appends judgements, each in one write; a line that a kill left open is closed first."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def add(self, item: Judgement) -> None:
        data = json.dumps({"v": FORMAT, **asdict(item)}, allow_nan=False).encode("ascii") + b"\n"
        while data:  # one write in practice; a full disk may take a part
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)
