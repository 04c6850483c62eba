# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out advantage: RLOO (arXiv 2402.14740), the base of LOOP and REPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.numerics import center_by_group
from verl_entropy.batch.turns import Turns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Estimator, Metric, setting
from verl_entropy.methods.result import RowScores


@dataclass(frozen=True)
class Loop:
    """Leave-one-out advantage of RLOO, the base of LOOP (REPO paper, sec. 2)."""

    statistics: str = setting("trajectory", "leave one trajectory or one row out", choices=("trajectory", "row"))


def loop(turns: Turns, *, statistics: str = "trajectory", singleton: str = "zero") -> tuple[Tensor, dict[str, float]]:
    """Score minus the mean score of the other members of the prompt group; (K,), fp32.

        A_i = R_i - mean_{j != i} R_j = n / (n - 1) (R_i - mean R)

    ``statistics="trajectory"`` leaves one trajectory out (the paper); ``"row"`` leaves one turn out, as
    verl-agent's code does: n is then the number of turns, and the other turns of a trajectory stay in its
    baseline. A group of one has no baseline: 0, or its raw score with ``singleton="raw"`` (verl's RLOO).

    Returns:
        A_K, and metrics by short name (``verl_entropy/loop/<name>``).
    """
    if statistics == "trajectory":
        score_N, group_N, of_turn_K = turns.score_J, turns.group_J, turns.trajectory_K
    elif statistics == "row":
        score_N, group_N = turns.score_J[turns.trajectory_K], turns.group_K
        of_turn_K = torch.arange(turns.num_turns, device=turns.device)
    else:
        raise ValueError(f"statistics={statistics!r}: allowed are 'trajectory' and 'row'.")
    count_N = torch.bincount(group_N, minlength=turns.num_groups)[group_N]
    centered_N = center_by_group(score_N, group_N, turns.num_groups, singleton=singleton)
    advantages_K = (centered_N * count_N / (count_N - 1).clamp(min=1)).float()[of_turn_K]
    return advantages_K, {"advantage_abs": float(advantages_K.abs().mean())} if turns.num_turns else {}


def _apply(ctx: AdvantageContext, s: Loop) -> tuple[Tensor, dict[str, float]]:
    return loop(ctx.turns, statistics=s.statistics)


def _over_rows(rows: RowScores, s: Loop) -> tuple[Tensor, dict[str, float]]:
    return loop(rows.scored(None), statistics="row", singleton="raw")


LOOP = Estimator(
    name="loop",
    summary="leave-one-out baseline over trajectories, no division by the std",
    when="an unbiased base for LOOP, DAPO and REPO",
    cost="negligible",
    source="REPO paper, sec. 2 (RLOO)",
    settings=Loop,
    function="verl_entropy.methods.estimators.loop.loop",
    needs=frozenset({"group"}),
    metrics={"advantage_abs": Metric("mean size of the advantage", "advantage", "RLOO, REPO paper sec. 2")},
    apply=_apply,
    over_rows=_over_rows,
)
