# SPDX-License-Identifier: Apache-2.0
"""Centred log-probability and means over a scope, shared by REPO-R and REPO-D."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.packed import row_sums, spread
from verl_entropy.batch.turns import Turns

CENTRES = ("exact", "batch_mean", "group_mean")


def _sum_in_group(value_R: Tensor, turns: Turns) -> Tensor:
    """Sum of a number per row over the rows of its prompt group, back on each row; rows without turns are one group."""
    group_R = torch.zeros(value_R.shape, dtype=torch.long, device=value_R.device)
    group_R[turns.row_K] = turns.group_K + 1
    total = torch.zeros(turns.num_groups + 1, dtype=value_R.dtype, device=value_R.device)
    return total.index_add_(0, group_R, value_R)[group_R]


ROUNDING = 1e-6
"""Mean size of advantages that is rounding: verl's RLOO leaves 1e-7 on groups of equal returns."""


def active_rows(advantages_N: Tensor, turns: Turns) -> Tensor:
    """Rows of a prompt group in which any advantage differs from 0 by more than rounding, bool [R]."""
    size_R = _sum_in_group(row_sums(advantages_N.abs(), turns.tokens_R), turns)
    return size_R > ROUNDING * _sum_in_group(turns.tokens_R.to(size_R.dtype), turns)


def scope_mean(x_N: Tensor, turns: Turns, scope: str, active_R: Tensor | None = None) -> Tensor:
    """Mean over the valid tokens of the batch, 0-d, or of the token's prompt group, [N]; fp32.

    With ``active_R`` only the tokens of those rows count.
    """
    if scope == "batch" and active_R is None:
        return x_N.sum() / max(len(x_N), 1)
    length_R = turns.tokens_R
    active_R = torch.ones_like(length_R, dtype=torch.bool) if active_R is None else active_R
    sum_R, count_R = row_sums(x_N, length_R) * active_R, length_R.double() * active_R
    if scope == "batch":
        return (sum_R.sum() / count_R.sum().clamp_min(1.0)).float()
    mean_R = _sum_in_group(sum_R, turns) / _sum_in_group(count_R, turns).clamp_min(1.0)
    return spread(mean_R.float(), length_R)


def centred_log_prob(log_prob_N: Tensor, entropy_RT: Tensor | None, turns: Turns, center: str) -> Tensor:
    """L = log pi(a|s) - E_{a ~ pi}[log pi(a|s)] of each valid token, fp32 [N], in nats.

    ``exact``: the expectation is minus the entropy, so L = log pi + H. ``batch_mean`` / ``group_mean``: the mean of log pi over
    the valid tokens of the batch / the prompt group stands for it, which needs no logits (the paper's own run probably centred
    so, its footnote 4).
    """
    if center not in CENTRES:
        raise ValueError(f"center={center!r}: allowed are {', '.join(CENTRES)}.")
    if center != "exact":
        return log_prob_N - scope_mean(log_prob_N, turns, center.removesuffix("_mean"))
    if entropy_RT is None:
        raise ValueError(
            "center='exact' needs the entropy of the old-log-prob pass, which is missing. "
            "Turn its computation on, or set center=batch_mean."
        )
    return log_prob_N + turns.pack(entropy_RT)
