# SPDX-License-Identifier: Apache-2.0
"""Group-normalised advantage (GRPO's) with a choice of what the statistics of a group run over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.estimators.gigpo import episode_advantage
from verl_entropy.methods.method import Estimator, Metric, setting
from verl_entropy.methods.result import RowScores


@dataclass(frozen=True)
class GroupNorm:
    """Score relative to the other rollouts of the prompt: GRPO (arXiv 2402.03300) and Dr.GRPO (arXiv 2503.20783)."""

    norm: str = setting("mean_std", "divide by the group's std (GRPO) or not (Dr.GRPO)", choices=("mean_std", "mean"))
    statistics: str = setting(
        "trajectory", "group statistics over trajectories (papers) or rows (verl-agent's code)", choices=("trajectory", "row")
    )
    singleton: str = setting("zero", "a group of one: advantage 0, or its raw score (verl's GRPO)", choices=("zero", "raw"))


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


def _apply(ctx: AdvantageContext, s: GroupNorm) -> tuple[Tensor, dict[str, float]]:
    return group_norm(ctx.turns, statistics=s.statistics, norm=s.norm, singleton=s.singleton)


def _over_rows(rows: RowScores, s: GroupNorm) -> tuple[Tensor, dict[str, float]]:
    return group_norm(rows.scored(None), statistics="row", norm=s.norm, singleton=s.singleton)


GROUP_NORM = Estimator(
    name="group_norm",
    summary="GRPO or Dr.GRPO with statistics over trajectories or rows",
    when="to compare with verl-agent, whose group statistics run over rows",
    cost="negligible",
    source="arXiv 2402.03300; arXiv 2503.20783",
    settings=GroupNorm,
    function="verl_entropy.methods.estimators.group_norm.group_norm",
    needs=frozenset({"group"}),
    metrics={
        "advantage_abs": Metric("mean size of the advantage", "advantage", "GRPO, arXiv 2402.03300"),
        "zero_groups": Metric("share of groups without any advantage", "share", "GRPO"),
        "singleton_groups": Metric("share of groups with one trajectory", "share", "GRPO"),
    },
    apply=_apply,
    over_rows=_over_rows,
)
