# SPDX-License-Identifier: Apache-2.0
"""Trained tokens as one vector: what the advantage transforms compute on.

A padded batch of agent turns is mostly padding. Taking the valid tokens out once makes every later operation cheaper, needs no
masks, and never reads what lies outside them. ``_N`` marks such vectors: the tokens of the mask, row by row.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 1024
"""Tokens whose sum is taken in fp32."""


def pack(x_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """The values where ``mask_RT`` is True, fp32 [N], without gradient."""
    x_RT = x_RT.detach().float()
    if x_RT.device.type != "cpu":
        return x_RT[mask_RT]
    # On the CPU numpy is several times faster here and below: its boolean indexing copies runs of True at once.
    return torch.from_numpy(x_RT.numpy()[mask_RT.numpy()])


def positions(mask_RT: Tensor) -> Tensor:
    """Flat positions of the tokens of the mask, long [N]."""
    if mask_RT.device.type != "cpu":
        return mask_RT.reshape(-1).nonzero().squeeze(-1)
    return torch.from_numpy(np.flatnonzero(mask_RT.numpy()))


def unpack(x_N: Tensor, position_N: Tensor, shape: torch.Size) -> Tensor:
    """Back to [R, T] in the dtype of ``x_N``, 0 (False) outside the mask."""
    out_RT = torch.zeros(shape, dtype=x_N.dtype, device=x_N.device)
    out_RT.view(-1).index_copy_(0, position_N, x_N)
    return out_RT


def row_lengths(mask_RT: Tensor) -> Tensor:
    """Tokens of the mask in each row, long [R]."""
    if mask_RT.device.type != "cpu":
        return mask_RT.sum(-1)
    return torch.from_numpy(np.count_nonzero(mask_RT.numpy(), axis=-1))


def spread(value_R: Tensor, length_R: Tensor) -> Tensor:
    """One number per row on each of its tokens, [N]."""
    if value_R.device.type != "cpu":
        return value_R.repeat_interleave(length_R)
    return torch.from_numpy(np.repeat(value_R.numpy(), length_R.numpy()))


def row_sums(x_N: Tensor, length_R: Tensor) -> Tensor:
    """Sum over the tokens of each row, fp64 [R]; 0 for an empty row."""
    if not len(x_N):
        return torch.zeros(length_R.shape, dtype=torch.float64, device=x_N.device)
    return torch.segment_reduce(x_N.double(), "sum", lengths=length_R)


def mean_and_std(x_N: Tensor, *, correction: int) -> tuple[float, float]:
    """Mean and standard deviation (ddof ``correction``); 0 where there are too few tokens.

    Taken over the distance to the first value, so that a constant has a std of exactly 0 and no rounding of the mean passes for
    spread; sums of blocks in fp32 and their sum in fp64: all in fp32 is off by 1e-5 at some million tokens.
    """
    if not len(x_N):
        return 0.0, 0.0
    pivot = x_N[0]
    distance_N = x_N - pivot
    mean = _sum(distance_N) / len(x_N)
    squares_N = distance_N.sub_(mean).square_()
    std = (_sum(squares_N) / (len(x_N) - correction)) ** 0.5 if len(x_N) > correction else 0.0
    return float(pivot) + mean, std


def _sum(x_N: Tensor) -> float:
    whole = len(x_N) - len(x_N) % BLOCK
    blocks = x_N[:whole].view(-1, BLOCK).sum(-1).double().sum()
    return float(blocks + x_N[whole:].double().sum())
