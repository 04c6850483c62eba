# SPDX-License-Identifier: Apache-2.0
"""Reductions over the data-parallel ranks, which are all ranks: sequence parallelism is refused. One process needs no group."""

from __future__ import annotations

import torch
from torch import Tensor


def average(x: Tensor) -> Tensor:
    """Mean over the ranks, in place."""
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(x)
        x /= torch.distributed.get_world_size()
    return x


def total(x: Tensor) -> Tensor:
    """Sum over the ranks, in place."""
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(x)
    return x


def world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
