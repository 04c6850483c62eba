# SPDX-License-Identifier: Apache-2.0
"""Entropy at the start and the end of an episode, and entropy summed over training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EntropyWindows:
    """Mean entropy (nats) of the first and last n units of a trajectory, averaged over trajectories."""

    early: float
    late: float
    overlap: float
    """Share of trajectories shorter than 2n, whose two windows share units."""


def window_means(value: Tensor, rank: Tensor, length_J: Tensor, trajectory: Tensor, n: int) -> EntropyWindows:
    """Windows of any units (turns or tokens): ``value``, ``rank`` and ``trajectory`` of each unit, ``length_J`` units a trajectory.

    early = mean_j (1 / min(n, L_j)) sum_{rank < n} value, late likewise over rank >= L_j - n; in the unit of ``value`` (nats).
    """
    if n < 1:
        raise ValueError(f"n={n}: must be >= 1 (units in a window). Use 10.")
    present = length_J > 0
    if not bool(present.any()):
        return EntropyWindows(math.nan, math.nan, math.nan)

    def mean(inside: Tensor) -> float:
        total = torch.zeros(len(length_J), dtype=torch.float64, device=value.device)
        total = total.index_add(0, trajectory[inside], value[inside].double())
        return float((total[present] / length_J[present].clamp(max=n)).mean())

    late = rank >= length_J[trajectory] - n
    return EntropyWindows(mean(rank < n), mean(late), float((length_J[present] < 2 * n).double().mean()))


class CumulativeEntropy:
    """Running sum over iterations of the mean token entropy (REPO, appendix E.3).

    It predicts test accuracy there better than the iteration does. A non-finite entropy is left out.
    """

    def __init__(self) -> None:
        self.total = 0.0

    def update(self, entropy: float) -> float:
        """Add this iteration's mean token entropy (nats) and return the sum."""
        entropy = float(entropy)
        if math.isfinite(entropy):
            self.total += entropy
        return self.total

    def state_dict(self) -> dict[str, float]:
        """Plain JSON values."""
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore ``state_dict``; a missing or surplus key is an error."""
        if set(state) != {"total"}:
            raise ValueError(f"cumulative entropy state has keys {sorted(state)}: expected ['total']. Use a matching checkpoint.")
        self.total = float(state["total"])
