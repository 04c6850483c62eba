# SPDX-License-Identifier: Apache-2.0
"""What agent loops of verl store with their rows (``extra_fields``), read for turns and metrics."""

from __future__ import annotations

import numpy as np
import torch

from verl_entropy.agent.cut import ENDINGS
from verl_entropy.batch.foreign import read_bool


def turn_fields(extra_fields: list[dict], padding_R: np.ndarray) -> list[list[dict]] | None:
    """Per row the environment's record of each turn, or None if the agent loop gives none."""
    real = [row for row, pad in zip(extra_fields, padding_R, strict=True) if not pad]
    if not real or not all("turns" in row for row in real):
        return None
    return [[] if pad else row["turns"] for row, pad in zip(extra_fields, padding_R, strict=True)]


def success(extra_fields: list[dict], score_R: torch.Tensor, threshold: float) -> list[bool]:
    """Per row whether its trajectory reached its goal: the environment's flag, else a score above the threshold."""
    flags = [row.get("success") for row in extra_fields]
    return [
        bool(s > threshold) if flag is None else read_bool(flag, f"extra_fields['success'] of row {row}")
        for row, (flag, s) in enumerate(zip(flags, score_R.tolist(), strict=True))
    ]


def ending_metrics(extra_fields: list[dict], keys: list[str]) -> dict[str, float]:
    """Why the episodes of our agent loops ended, and what was cut; nothing for other loops.

    ``episodes/ended/<reason>``: share of the episodes; ``episodes/cut_answers`` and ``episodes/cut_prompts``: share of the turns.
    """
    episodes = {key.rsplit("_", 1)[0]: row["ended"] for key, row in zip(keys, extra_fields, strict=True) if "ended" in row}
    turns = [turn for row in extra_fields if "ended" in row for turn in row.get("turns") or ()]
    if not episodes or not turns:
        return {}
    reasons = list(episodes.values())
    found = {f"ended/{reason}": reasons.count(reason) / len(reasons) for reason in ENDINGS}
    for name in ("cut", "prompt_cut"):
        found["cut_answers" if name == "cut" else "cut_prompts"] = sum(bool(turn.get(name)) for turn in turns) / len(turns)
    return {f"verl_entropy/episodes/{name}": value for name, value in found.items()}
