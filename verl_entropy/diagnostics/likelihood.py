# SPDX-License-Identifier: Apache-2.0
"""Log-probability of correct, wrong and valid trajectories."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns


def per_trajectory(mean_K: Tensor, turns: Turns) -> tuple[Tensor, Tensor]:
    """Token sum and token mean of each trajectory from the token means of its turns, fp64 [J]; 0 for one without tokens."""
    lengths = turns.lengths_K.double()
    zeros = torch.zeros(turns.num_trajectories, dtype=torch.float64, device=mean_K.device)
    total = zeros.index_add(0, turns.trajectory_K, mean_K.double() * lengths)
    count = zeros.index_add(0, turns.trajectory_K, lengths)
    return total, total / count.clamp_min(1.0)


def valid_trajectories(turns: Turns) -> Tensor | None:
    """Trajectories whose every turn was valid, bool [J]; None if the environment does not say."""
    if turns.valid_K is None:
        return None
    wrong = torch.zeros(turns.num_trajectories, dtype=torch.long, device=turns.mask_RT.device)
    return wrong.index_add(0, turns.trajectory_K, (~turns.valid_K).long()) == 0
