# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out advantage: RLOO (arXiv 2402.14740), the base of LOOP and REPO."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.numerics import center_by_group
from verl_entropy.batch.turns import Turns


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
