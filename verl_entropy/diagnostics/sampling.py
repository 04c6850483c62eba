# SPDX-License-Identifier: Apache-2.0
"""The sample of trajectories whose hidden states and output-layer gradients are compared, and what the training workers collect.

The driver numbers some trajectories and marks their tokens; each worker sums the hidden states of its marked tokens and keeps
those of the picked ones, with their logits; one exchange between the ranks gives every rank the whole. Cost, every
``costly_every`` steps: no forward pass of its own; picked tokens x vocabulary x 10 bytes on each rank while it is computed
(256 tokens and 152,000 words: 0.4 GB), and a product of [picked, vocabulary] with its transpose. In the exchange every rank's part
is padded to the largest: 2 bytes x ranks x largest part x vocabulary more, for a moment.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from verl_entropy.diagnostics.interference import interference_gram


def choose(trajectory_R: Sequence[Hashable], group_R: Sequence[Hashable], limit: int) -> dict[Hashable, int]:
    """Numbers from 0 for at most ``limit`` trajectories: whole groups, evenly spaced in the batch; part of one that is larger."""
    members: dict[Hashable, dict[Hashable, None]] = {}
    for trajectory, group in zip(trajectory_R, group_R, strict=True):
        members.setdefault(group, {})[trajectory] = None
    sizes = [len(m) for m in members.values()]
    if not sizes:
        return {}
    number = max(int(limit / np.mean(sizes)), 1)
    groups = list(members.values())
    places = np.unique(np.linspace(0, len(groups) - 1, min(number, len(groups))).round().astype(int))
    found = [trajectory for place in places for trajectory in groups[place]][:limit]
    return {trajectory: j for j, trajectory in enumerate(found)}


def mark(mask_N: np.ndarray, trajectory_N: np.ndarray, tokens: int) -> np.ndarray:
    """Codes of the response tokens: 0, or j + 1 for a trained token of trajectory j >= 0, negative if it is picked.

    ``tokens`` of each trajectory are picked, evenly spaced over it.
    """
    inside = np.flatnonzero(mask_N & (trajectory_N >= 0))
    code_N = np.zeros(len(mask_N), dtype=np.int32)
    code_N[inside] = trajectory_N[inside] + 1
    for j in np.unique(trajectory_N[inside]):
        own = inside[trajectory_N[inside] == j]
        count = min(tokens, len(own))
        code_N[own[((np.arange(count) + 0.5) * len(own) / count).astype(int)]] *= -1
    return code_N


class Collector:
    """Sums and picks of one forward pass in a training worker."""

    def __init__(self, num: int):
        self.num = num
        self.total_JD: Tensor | None = None
        self.count_J: Tensor | None = None
        self._picked: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []

    def add(self, hidden_ND: Tensor, logits_NV: Tensor | None, tokens_N: Tensor, code_N: Tensor) -> None:
        """A micro-batch's marked tokens: the states and logits that predict them, and their codes."""
        if self.total_JD is None:
            self.total_JD = torch.zeros(self.num, hidden_ND.shape[-1], device=hidden_ND.device)
            self.count_J = torch.zeros(self.num, device=hidden_ND.device)
        trajectory_N = code_N.long().abs() - 1
        self.total_JD.index_add_(0, trajectory_N, hidden_ND.float())
        self.count_J.index_add_(0, trajectory_N, torch.ones_like(trajectory_N, dtype=torch.float32))
        picked = code_N < 0
        logits = None if logits_NV is None else logits_NV[picked]
        self._picked.append((hidden_ND[picked], tokens_N[picked], trajectory_N[picked], logits))

    def finish(self, group=None) -> tuple[Tensor, Tensor]:
        """Over all ranks of ``group``: inner products of the gradients [J, J] (NaN without logits), mean states [J, D].

        A gradient is the mean over the picked tokens of its trajectory, so lengths do not matter.
        """
        hidden_ND, tokens_N, trajectory_N, logits = zip(*self._picked, strict=True)
        parts = [torch.cat(hidden_ND), torch.cat(tokens_N), torch.cat(trajectory_N)]
        with_logits = all(part is not None for part in logits)
        parts += [torch.cat(logits)] if with_logits else []
        self._picked.clear()
        total_JD, count_J = self.total_JD, self.count_J
        if group is not None and torch.distributed.get_world_size(group) > 1:
            for tensor in (total_JD, count_J):
                torch.distributed.all_reduce(tensor, group=group)
            parts = [_gather(part, group) for part in parts]
        mean_JD = total_JD / count_J.clamp_min(1.0).unsqueeze(-1)
        if not with_logits:
            return torch.full((self.num, self.num), torch.nan, device=mean_JD.device), mean_JD
        hidden_ND, tokens_N, trajectory_N, logits_NV = parts
        gram_JJ = interference_gram(logits_NV, tokens_N, hidden_ND, trajectory_N, self.num)
        picked_J = torch.bincount(trajectory_N, minlength=self.num).clamp_min(1)
        return gram_JJ / (picked_J.unsqueeze(0) * picked_J.unsqueeze(1)), mean_JD


def _gather(x_N: Tensor, group) -> Tensor:
    """Rows of all ranks, rank by rank; ranks may have different numbers of them."""
    world = torch.distributed.get_world_size(group)
    size = torch.tensor([len(x_N)], device=x_N.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    torch.distributed.all_gather(sizes, size, group=group)
    counts = [int(s) for s in sizes]
    padded = torch.cat([x_N, x_N.new_zeros(max(counts) - len(x_N), *x_N.shape[1:])])
    found = [torch.empty_like(padded) for _ in range(world)]
    torch.distributed.all_gather(found, padded, group=group)
    return torch.cat([part[:n] for part, n in zip(found, counts, strict=True)])


def pack(gram_JJ: Tensor, mean_JD: Tensor, lead_R: Tensor) -> list[Tensor]:
    """What goes back to the driver, a vector per row: gram[j] and mean[j] in the row that leads trajectory j, else one zero.

    ``lead_R``: j + 1, or 0.
    """
    both = torch.cat([gram_JJ, mean_JD], dim=1)
    return [both[lead - 1] if lead else both.new_zeros(1) for lead in lead_R.tolist()]


def unpack(rows: Sequence[Tensor], lead_R: np.ndarray, num: int) -> tuple[Tensor, Tensor]:
    """The driver's side of ``pack``: [J, J] and [J, D] from the rows."""
    order = np.argsort(lead_R, kind="stable")[-num:]
    both = torch.stack([rows[r] for r in order])
    return both[:, :num], both[:, num:]
