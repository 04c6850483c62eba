# SPDX-License-Identifier: Apache-2.0
"""Group-normalised advantage (GRPO's) with a choice of what the statistics of a group run over."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns
from verl_entropy.methods.estimators.gigpo import episode_advantage


def group_norm(
    turns: Turns,
    *,
    statistics: str = "trajectory",
    norm: str = "mean_std",
    singleton: str = "zero",
    eps: float = 1e-6,
) -> tuple[Tensor, dict[str, float]]:
    """Score of the trajectory relative to the other rollouts of its prompt; (K,), fp32.

        A = (R - mean_G R) / (std_G R + eps)    norm="mean_std": GRPO (arXiv 2402.03300), ddof 1
        A =  R - mean_G R                       norm="mean":     Dr.GRPO (arXiv 2503.20783)

    Every turn of a trajectory gets its A. ``statistics="trajectory"`` takes mean and std over the
    trajectories of the prompt group (the papers); ``"row"`` over its turns, as verl-agent does by default
    (``compute_mean_std_cross_steps=True``): a trajectory with more turns then weighs more. A group of one
    member has nothing to compare with: 0, or its raw score with ``singleton="raw"``, which is verl's GRPO. A
    group with equal scores gives exactly 0.

    Returns:
        A_K, and metrics by short name (``verl_entropy/group_norm/<name>``).
    """
    if not eps > 0.0:
        raise ValueError(f"eps={eps}: must be > 0. Use 1e-6.")
    advantages_K = episode_advantage(turns, norm=norm, statistics=statistics, singleton=singleton, eps=eps)
    if not turns.num_turns:
        return advantages_K.float(), {}
    members_P = torch.bincount(turns.group_J, minlength=turns.num_groups)
    moved_P = torch.zeros(turns.num_groups, device=turns.device).index_add_(0, turns.group_K, advantages_K.abs().float())
    metrics = {
        "advantage_abs": float(advantages_K.abs().mean()),
        "zero_groups": float((moved_P == 0).double().mean()),
        "singleton_groups": float((members_P == 1).double().mean()),
    }
    return advantages_K.float(), metrics
