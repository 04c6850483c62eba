# SPDX-License-Identifier: Apache-2.0
"""No advantage for a group whose trajectories all have the same return, where verl's GRPO leaves a rounding error."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.numerics import group_range
from verl_entropy.turns import Turns

ROUNDED = ("grpo", "grpo_vectorized")
"""verl's estimators that divide a group's fp32 deviations by std + 1e-6."""


def zero_equal_returns(advantages_RT: Tensor, turns: Turns) -> tuple[Tensor, float]:
    """0 on every token of a prompt group of two or more whose trajectories all have the same advantage; (R, T).

        A = (R - mean) / (std + 1e-6)    with R = -1.2 eight times, in fp32: -1.2e-7 / (1.3e-7 + 1e-6) = -.106, not 0

    Advantages relative to a group sum to 0 over it, so equal ones that are not 0 are rounding. verl's GRPO gives such a group up to
    .11 of either sign on all of its tokens; where a policy fails everywhere, that is the whole batch, and it is driven away from
    what it does.

    Returns:
        the advantages, and the size of the largest one set to 0.
    """
    inside_RT = turns.turn_RT >= 0
    group_N, value_N = turns.group_K[turns.turn_RT[inside_RT]], advantages_RT[inside_RT]
    low_N, high_N = group_range(value_N, group_N, turns.num_groups)
    members_P = torch.bincount(turns.group_J, minlength=turns.num_groups)
    equal_N = (low_N == high_N) & (members_P[group_N] > 1)
    if not bool(equal_N.any()):
        return advantages_RT, 0.0
    fixed_RT = advantages_RT.clone()
    fixed_RT[inside_RT] = torch.where(equal_N, 0.0, value_N)
    return fixed_RT, float(value_N[equal_N].abs().max())
