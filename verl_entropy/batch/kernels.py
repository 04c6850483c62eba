# SPDX-License-Identifier: Apache-2.0
"""Log-probability and entropy of bf16 and fp16 logits on a GPU: one Triton kernel each way, every logit read once per pass.

The same quantities as ``numerics.log_probs_and_entropy``, which calls these where it can. Forward keeps three running sums per row,
relative to the largest logit m seen so far:

    s = sum e^(z - m)      t = sum e^(z - m) (z - m)
    lse = m + log s        H = log s - t / s                                  (nats)

Neither has the size of the logits in it, so the error does not grow with them. Backward writes

    dz = g_lp (onehot - p) - g_H p (log p + H)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits of a row that a program holds at a time."""


@triton.jit  # type: ignore[untyped-decorator] # triton's package has no annotations that mypy may read
def _forward(  # type: ignore[no-untyped-def] # triton reads annotations as types of its own
    logits, labels, temperature, log_probs, entropy, lse_out, stride, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    scale = 1.0 / tl.load(temperature + row)
    m = -float("inf")
    s = 0.0
    t = 0.0
    for start in range(0, vocab, BLOCK):
        column = start + tl.arange(0, BLOCK)
        z = tl.load(logits + column, mask=column < vocab, other=-float("inf")).to(tl.float32) * scale
        new_m = tl.maximum(m, tl.max(z, axis=0))
        safe_m = tl.where(new_m == -float("inf"), 0.0, new_m)
        shift = tl.where(m == -float("inf"), 0.0, m - safe_m)
        e = tl.exp(z - safe_m)
        # sums so far, moved from m to the new maximum: e^(z - m') (z - m') = e^(m - m') e^(z - m) [(z - m) + (m - m')]
        t = tl.exp(shift) * (t + shift * s) + tl.sum(tl.where(e > 0.0, e * (z - safe_m), 0.0), axis=0)
        s = tl.exp(shift) * s + tl.sum(e, axis=0)
        m = new_m
    label = tl.load(labels + row)
    chosen = tl.load(logits + label).to(tl.float32) * scale
    banned = m == -float("inf")  # every logit is -inf: no distribution
    s = tl.where(banned, 1.0, s)
    lse = m + tl.log(s)
    tl.store(lse_out + row, lse)
    tl.store(log_probs + row, tl.where(banned, m, chosen - m - tl.log(s)))
    tl.store(entropy + row, tl.where(banned, 0.0, tl.log(s) - t / s))


@triton.jit  # type: ignore[untyped-decorator] # triton's package has no annotations that mypy may read
def _backward(  # type: ignore[no-untyped-def] # triton reads annotations as types of its own
    logits, labels, temperature, lse_in, entropy, g_log_probs, g_entropy, grad, stride, vocab, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    scale = 1.0 / tl.load(temperature + row)
    z = tl.load(logits + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32) * scale
    lse = tl.load(lse_in + row)
    lse = tl.where(lse == -float("inf"), 0.0, lse)
    log_p = z - lse
    p = tl.exp(log_p)
    g_lp = tl.load(g_log_probs + row)
    towards_entropy = tl.where(p > 0.0, p * (log_p + tl.load(entropy + row)), 0.0)
    onehot = tl.where(column == tl.load(labels + row), 1.0, 0.0)
    dz = (g_lp * (onehot - p) - tl.load(g_entropy + row) * towards_entropy) * scale
    tl.store(grad + row * vocab + column, dz.to(grad.dtype.element_ty), mask=inside)


def forward(logits_NV: Tensor, labels_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log pi(label), entropy and logsumexp of logits / temperature; fp32 (N,) each."""
    rows, vocab = logits_NV.shape
    out = [torch.empty(rows, dtype=torch.float32, device=logits_NV.device) for _ in range(3)]
    if rows:
        with torch.cuda.device_of(logits_NV):
            _forward[(rows,)](logits_NV, labels_N, temperature_N, *out, logits_NV.stride(0), vocab, BLOCK=BLOCK, num_warps=8)
    return out[0], out[1], out[2]


def backward(
    logits_NV: Tensor,
    labels_N: Tensor,
    temperature_N: Tensor,
    lse_N: Tensor,
    entropy_N: Tensor,
    g_log_probs_N: Tensor,
    g_entropy_N: Tensor,
) -> Tensor:
    """Gradient (N, V) in the dtype of the logits; contiguous."""
    rows, vocab = logits_NV.shape
    grad_NV = torch.empty(rows, vocab, dtype=logits_NV.dtype, device=logits_NV.device)
    if rows:
        inputs = (logits_NV, labels_N, temperature_N, lse_N, entropy_N, g_log_probs_N, g_entropy_N)
        with torch.cuda.device_of(logits_NV):
            grid = (rows, triton.cdiv(vocab, BLOCK))
            _backward[grid](*inputs, grad_NV, logits_NV.stride(0), vocab, BLOCK=BLOCK, num_warps=8)
    return grad_NV
