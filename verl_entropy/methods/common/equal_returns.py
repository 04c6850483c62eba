# SPDX-License-Identifier: Apache-2.0
"""No advantage for a group whose trajectories all have the same return, where verl's GRPO leaves a rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.numerics import group_range
from verl_entropy.batch.turns import Turns

ROUNDED = ("grpo", "grpo_vectorized")
"""verl's estimators that divide a group's fp32 deviations by std + 1e-6."""


def unequal_tokens(turns: Turns, by_success: bool = False) -> tuple[Tensor, float]:
    """Tokens outside prompt groups of two or more trajectories whose scores are all the same; (R, T), bool; and the share of groups
    that have such scores. The REPO paper drops these groups from the batch (sec. 4); here they leave numerator and denominator.

    ``by_success``: groups that succeed or fail as one, instead. Where a penalty for invalid actions is all that tells eight failures
    apart, dividing by the group's std makes it weigh as much as success elsewhere, and the policy learns harmless failure.
    """
    compared_J = turns.success_J.float() if by_success else turns.score_J
    low_J, high_J = group_range(compared_J, turns.group_J, turns.num_groups)
    same_J = (low_J == high_J) & (torch.bincount(turns.group_J, minlength=turns.num_groups)[turns.group_J] > 1)
    groups = len(torch.unique(turns.group_J[same_J]))
    return turns.to_tokens((~same_J[turns.trajectory_K]).float()).bool(), groups / max(turns.num_groups, 1)


def zero_equal_returns(advantages_RT: Tensor, turns: Turns, return_X: Tensor, group_X: Tensor) -> tuple[Tensor, float]:
    """0 on every token of a prompt group of two or more whose returns, and whose advantages, are all the same; (R, T).

        A = (R - mean) / (std + 1e-6)    with R = -1.2 eight times, in fp32: -1.2e-7 / (1.3e-7 + 1e-6) = -.106, not 0

    Advantages relative to a group sum to 0 over it, so equal ones that are not 0 are rounding. verl's GRPO gives such a group up to
    .11 of either sign on all of its tokens; where a policy fails everywhere, that is the whole batch, and it is driven away from
    what it does. Only trained tokens are compared (verl's GRPO has 0 on the others), and returns as well, for a trajectory may have
    no trained token.

    Args:
        return_X: what the base compared, one for each trajectory, or for each row where its statistics run over rows.
        group_X: prompt group of each of them, in [0, P).

    Returns:
        the advantages, and the size of the largest one set to 0.
    """
    low_X, high_X = group_range(return_X, group_X, turns.num_groups)
    same_P = torch.bincount(group_X, minlength=turns.num_groups) > 1
    same_P[group_X[low_X != high_X]] = False
    if not bool(same_P.any()):
        return advantages_RT, 0.0
    inside_RT = turns.mask_RT & (turns.turn_RT >= 0)
    group_N, value_N = turns.group_K[turns.turn_RT[inside_RT]], advantages_RT[inside_RT]
    low_N, high_N = group_range(value_N, group_N, turns.num_groups)
    equal_N = (low_N == high_N) & same_P[group_N]
    if not bool(equal_N.any()):
        return advantages_RT, 0.0
    fixed_RT = advantages_RT.clone()
    fixed_RT[inside_RT] = torch.where(equal_N, 0.0, value_N)
    return fixed_RT, float(value_N[equal_N].abs().max())
