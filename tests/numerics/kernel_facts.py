# SPDX-License-Identifier: Apache-2.0
"""Compares the Triton kernels with the chunked pass and fp64; run as a process, interpreted without a GPU (TRITON_INTERPRET=1)."""

import json
import os

import torch

from verl_entropy.batch import kernels
from verl_entropy.batch.numerics import log_probs_and_entropy

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def facts(vocab: int, dtype: torch.dtype) -> dict:
    torch.manual_seed(vocab)
    logits = (3 * torch.randn(7, vocab, dtype=torch.float64)).to(dtype)
    logits[0, 3:7] = -torch.inf  # banned words
    logits[1] *= 20  # nearly certain
    logits[2, 1:] = -torch.inf  # certain
    logits[3] = -torch.inf  # no distribution
    labels = torch.randint(vocab, (7,))
    labels[0], labels[2] = 10, 0
    temperature = torch.tensor([1.0, 0.7, 1.0, 1.0, 0.5, 2.0, 1.3])
    g_log_probs, g_entropy = torch.randn(7), torch.randn(7)
    g_log_probs[3] = g_entropy[3] = 0.0
    exact = logits.double().requires_grad_()
    expected = log_probs_and_entropy(exact, labels, temperature.double(), chunk_tokens=2)
    sum((e.float() * g).nan_to_num(0.0).sum() for e, g in zip(expected, (g_log_probs, g_entropy), strict=True)).backward()

    there = [x.to(DEVICE) for x in (logits, labels, temperature)]
    log_probs, entropy, lse = kernels.forward(*there)
    gradient = kernels.backward(*there, lse, entropy, g_log_probs.to(DEVICE), g_entropy.to(DEVICE)).cpu().double()
    finite = torch.arange(7) != 3
    unit = torch.finfo(dtype).eps
    return {
        "vocab": vocab,
        "dtype": str(dtype),
        "log_prob": float((log_probs.cpu() - expected[0])[finite].abs().max()),
        "entropy": float((entropy.cpu() - expected[1]).abs().max()),
        "gradient": float(((gradient - exact.grad).abs() / (unit * exact.grad.abs() + 1e-5)).max()),
        "no_distribution": [float(log_probs[3]), float(entropy[3]), float(gradient[3].abs().max())],
        "finite": bool(torch.isfinite(gradient).all()),
    }


if __name__ == "__main__":
    print(json.dumps([facts(v, d) for v in (50, 4096, 9001) for d in (torch.bfloat16, torch.float16)]))
