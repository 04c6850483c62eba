# SPDX-License-Identifier: Apache-2.0
"""Batches as verl-agent's trainer has them before ``compute_advantage``: one row per turn, copies, shuffled."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from verl_entropy.hosts.verl_agent import advantages, rows

PENALTY = 0.1


def rollout(groups: int = 2, size: int = 4, width: int = 6, vocabulary: int = 40, prompt: int = 5, seed: int = 0) -> dict:
    """Rows of a rollout in order, in the fields of ``gather_rollout_data``."""
    g = np.random.default_rng(seed)
    columns = {name: [] for name in ("uid", "traj_uid", "rewards", "is_action_valid", "anchor_obs", "episode_rewards", "won")}
    for group in range(groups):
        for member in range(size):
            turns, won = int(g.integers(1, 5)), bool(g.integers(2))
            for turn in range(turns):
                reward = 10.0 * won if turn == turns - 1 else 0.0
                values = (f"g{group}", f"t{group}{member}", reward, bool(g.integers(4)), f"room {g.integers(3)}", 10.0 * won, won)
                for name, value in zip(columns, values, strict=True):
                    columns[name].append(value)
    count = len(columns["uid"])
    lengths = g.integers(1, width + 1, count)
    tokens = torch.from_numpy(g.integers(3, vocabulary, (count, prompt + width)))
    pads = g.integers(0, prompt - 1, count)
    place = torch.arange(prompt + width)[None]
    attention = (place >= torch.from_numpy(pads)[:, None]) & (place < prompt + torch.from_numpy(lengths)[:, None])
    tensors = {
        "input_ids": tokens,
        "prompts": tokens[:, :prompt],
        "responses": tokens[:, prompt:],
        "attention_mask": attention.long(),
        "position_ids": (attention.long().cumsum(-1) - 1).clamp(min=0),
    }
    plain = {name: np.array(values, dtype=object) for name, values in columns.items()}
    plain.update(rows.tag(plain["traj_uid"], dict(zip(columns["traj_uid"], map(float, columns.pop("won")), strict=True))))
    plain.pop("won")
    return {"tensors": tensors, "plain": plain}


def arranged(batch: dict, copies: int = 0, shuffle: bool = False, seed: int = 0) -> dict:
    """The batch with ``copies`` random rows doubled, as ``adjust_batch`` does, and shuffled, as ``_balance_batch`` does."""
    g = np.random.default_rng(seed)
    count = len(batch["plain"]["uid"])
    index = np.concatenate([np.arange(count), g.choice(count, copies, replace=False)])
    index = g.permutation(index) if shuffle else index
    return {
        "tensors": {k: v[torch.from_numpy(index)] for k, v in batch["tensors"].items()},
        "plain": {k: v[index] for k, v in batch["plain"].items()},
        "index": index,
    }


def scored(batch: dict, seed: int = 1) -> SimpleNamespace:
    """The batch with rewards, old log-probs and entropies, each a function of the row's tag; in the attributes of a DataProto."""
    tensors, plain = dict(batch["tensors"]), dict(batch["plain"])
    width = tensors["responses"].shape[1]
    mask = tensors["attention_mask"][:, -width:]
    row = torch.from_numpy(plain[rows.ROW].astype(np.int64))
    g = torch.Generator().manual_seed(seed)
    number = int(row.max()) + 1
    rewards = torch.zeros(mask.shape)
    score = plain["episode_rewards"].astype(np.float32) - PENALTY * (1 - plain["is_action_valid"].astype(np.float32))
    rewards[torch.arange(len(row)), mask.sum(-1) - 1] = torch.from_numpy(score)
    tensors.update(
        {
            "response_mask": mask,
            "token_level_rewards": rewards,
            "old_log_probs": -torch.rand(number, width, generator=g)[row] * 3,
            advantages.OLD_ENTROPY: torch.rand(number, width, generator=g)[row] * 2,
            "verl_entropy_vocab_centre": torch.rand(number, width, generator=g)[row] - 0.5,
            "verl_entropy_nucleus_entropy": torch.rand(number, width, generator=g)[row],
        }
    )
    return SimpleNamespace(batch=tensors, non_tensor_batch=plain, meta_info={})
