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


def trajectory_log_prob(log_prob_RT: Tensor, turns: Turns) -> tuple[Tensor, Tensor]:
    """Sum and token mean of the log-probability of each trajectory, fp32 [J]; 0 for a trajectory without trained tokens.

    SEAL (arXiv 2605.27954), Fig. 5 and 10, says "log-probability" only; hence both.
    """
    zeros = torch.zeros(turns.num_trajectories, dtype=torch.float64, device=turns.mask_RT.device)
    total = zeros.index_add(0, turns.trajectory_K, turns.sum(log_prob_RT).double())
    count = zeros.index_add(0, turns.trajectory_K, turns.lengths_K.double())
    return total.float(), (total / count.clamp_min(1.0)).float()


def valid_trajectories(turns: Turns) -> Tensor | None:
    """Trajectories whose every turn was valid, bool [J]; None if the environment does not say."""
    if turns.valid_K is None:
        return None
    wrong = torch.zeros(turns.num_trajectories, dtype=torch.long, device=turns.mask_RT.device)
    return wrong.index_add(0, turns.trajectory_K, (~turns.valid_K).long()) == 0


def likelihood_by_class(log_prob_RT: Tensor, turns: Turns) -> dict[str, float]:
    """Mean over the trajectories of a class of their log-probability, summed and per token.

    Keys ``<class>_log_prob_sum`` and ``<class>_log_prob_mean`` for correct, wrong and valid; a class without
    trajectories has no key. These are the current samples, not a fixed probe set: the class mean also moves
    because the samples do.
    """
    total_J, mean_J = trajectory_log_prob(log_prob_RT, turns)
    classes = {"correct": turns.success_J, "wrong": ~turns.success_J, "valid": valid_trajectories(turns)}
    metrics = {}
    for name, member_J in classes.items():
        if member_J is not None and bool(member_J.any()):
            metrics[f"{name}_log_prob_sum"] = float(total_J[member_J].double().mean())
            metrics[f"{name}_log_prob_mean"] = float(mean_J[member_J].double().mean())
    return metrics
