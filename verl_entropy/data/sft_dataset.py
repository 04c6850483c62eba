# SPDX-License-Identifier: Apache-2.0
"""The data set of verl's SFT trainer that learns token sequences as they are, without a chat template in between.

    data.custom_cls.path=pkg://verl_entropy.data.sft_dataset data.custom_cls.name=TokenDataset

verl's own class renders every message again: a template may then drop the thought of an earlier answer, add an end of
line after the end token or a system prompt, and the policy is warm-started on sequences that its rollouts never hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

PAD_MODES = ("no_padding", "right")


class TokenDataset(Dataset):
    """Rows with ``prompt_ids`` and ``response_ids``; only the response is trained."""

    def __init__(
        self, parquet_files: str | Sequence[str], tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1
    ):
        import pandas as pd

        self.max_length, self.pad_mode = config.get("max_length", 1024), config.get("pad_mode", "no_padding")
        if self.pad_mode not in PAD_MODES:
            raise ValueError(f"data.pad_mode={self.pad_mode!r}: must be one of {', '.join(PAD_MODES)}.")
        self.pad_id = 0 if tokenizer is None or tokenizer.pad_token_id is None else tokenizer.pad_token_id
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        frames = [pd.read_parquet(file) for file in files]
        for file, frame in zip(files, frames, strict=True):
            absent = {"prompt_ids", "response_ids"} - set(frame.columns)
            if absent:
                raise ValueError(f"data.train_files: {file} has no column {', '.join(sorted(absent))}. Make it with --expert.")
        table = pd.concat(frames, ignore_index=True)
        self._rows = list(zip(table["prompt_ids"], table["response_ids"], strict=True))
        if max_samples > 0:
            self._rows = self._rows[:max_samples]
        longest = max((len(p) + len(r) for p, r in self._rows), default=0)
        if longest > self.max_length:
            raise ValueError(
                f"data.max_length={self.max_length}: the longest row has {longest} tokens. Set data.max_length={longest}."
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        prompt, response = self._rows[index]
        ids = torch.tensor([*prompt, *response], dtype=torch.long)
        mask = torch.zeros_like(ids)
        mask[len(prompt) :] = 1
        row = {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}
        if self.pad_mode == "no_padding":
            return row
        missing = self.max_length - len(ids)
        row = {key: torch.nn.functional.pad(value, (0, missing)) for key, value in row.items()}
        row["input_ids"][len(ids) :] = self.pad_id
        row["attention_mask"] = (torch.arange(self.max_length) < len(ids)).long()
        return row
