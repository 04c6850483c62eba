# SPDX-License-Identifier: Apache-2.0
"""Pieces shared by the transforms that drop tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.method import Metric
from verl_entropy.methods.result import TransformResult

DROPPED = {"dropped_fraction": Metric("share of the trained tokens that the method drops", "share")}
"""The metric of ``keep_result``."""
MIN_STD = 1e-12
"""Below this spread of the discriminator nothing is an outlier (value of the released code)."""


def check_keep_settings(mu: float, max_frac: float | None) -> None:
    """Raise ValueError for settings of Clip_B and Clip_V that make no sense."""
    if not mu >= 0.0:
        raise ValueError(f"mu={mu}: must be >= 0 (a number of standard deviations). Use 2.5 (clip_b) or 8.5 (clip_v).")
    if max_frac is not None and not 0.0 <= max_frac <= 1.0:
        raise ValueError(f"max_frac={max_frac}: must be in [0, 1]. Use 1e-4, or null for no limit.")


def limit_dropped(dropped_N: Tensor, distance_N: Tensor, max_frac: float) -> Tensor:
    """``dropped_N`` cut down to at most max(int(max_frac N), 1) tokens, those with the largest distance."""
    limit = max(int(max_frac * len(dropped_N)), 1)
    candidate = dropped_N.nonzero().squeeze(-1)
    if len(candidate) <= limit:
        return dropped_N
    worst = candidate[torch.topk(distance_N[candidate], limit).indices]
    return torch.zeros_like(dropped_N).index_fill_(0, worst, True)


def keep_result(advantages_RT: Tensor | Packed, turns: Turns, dropped_N: Tensor, **scalars: float) -> TransformResult:
    """Advantages as given, the mask without the dropped tokens, and the dropped share as a metric."""
    dropped = int(torch.count_nonzero(dropped_N))
    metrics = {"dropped_fraction": dropped / max(len(dropped_N), 1)} | {k: float(v) for k, v in scalars.items()}
    kept_RT = turns.unpack(~dropped_N) if dropped else turns.mask_RT
    return TransformResult(advantages_RT, kept_RT, metrics)
