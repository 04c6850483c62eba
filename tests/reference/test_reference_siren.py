# SPDX-License-Identifier: Apache-2.0
"""Nucleus entropy and peaks equal slow versions; values, gradients, ties and chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from math_batches import random_batch
from torch.testing import assert_close

from verl_entropy.methods.regularizers.siren import masked_row_mean, nucleus_entropy, peak_mask
from verl_entropy.methods.transforms.clip_v import vocab_centre


def slow_nucleus(logits, top_p, crossing):
    """Entropy of one token with gradient, the kept set found in plain Python."""
    order = sorted(range(len(logits)), key=lambda v: (-float(logits[v]), v))
    prob = torch.softmax(logits, -1)
    kept, mass = [], 0.0
    for v in order:
        if (mass if crossing == "include" else mass + float(prob[v])) >= top_p:
            break
        kept.append(v)
        mass += float(prob[v])
    if not kept:
        return logits.sum() * 0.0
    u = prob[kept] / prob[kept].sum()
    return -(u * u.log()).sum()


@pytest.mark.parametrize("crossing", ["include", "exclude"])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.8, 0.95])
def test_nucleus_entropy_and_its_gradient(crossing, top_p):
    logits = random_batch(3).logits_RTV[:6, :5].double().requires_grad_()
    fast = nucleus_entropy(logits, top_p, crossing=crossing, chunk_size=7)
    slow = torch.stack([slow_nucleus(z, top_p, crossing) for z in logits.flatten(0, 1)]).view(6, 5)
    assert_close(fast, slow, atol=1e-12, rtol=1e-9)
    weight = torch.linspace(-1, 2, 30, dtype=torch.float64).view(6, 5)
    (got,) = torch.autograd.grad((fast * weight).sum(), logits)
    (want,) = torch.autograd.grad((slow * weight).sum(), logits)
    assert_close(got, want, atol=1e-12, rtol=1e-9)
    # A small nucleus is a single action, or empty.
    assert top_p < 0.8 or bool(got.abs().sum() > 0.1)


@pytest.mark.parametrize("crossing", ["include", "exclude"])
def test_ties_at_the_edge_are_cut_by_vocabulary_order(crossing):
    logits = torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    fast, slow = nucleus_entropy(logits, 0.7, crossing=crossing), slow_nucleus(logits[0], 0.7, crossing)
    assert_close(fast[0], slow, atol=1e-12, rtol=0.0)
    (got,) = torch.autograd.grad(fast.sum(), logits)
    (want,) = torch.autograd.grad(slow, logits)
    assert_close(got, want, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_computed_in_fp32(dtype):
    logits = (4 * torch.randn(5, 300, generator=torch.Generator().manual_seed(0))).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = nucleus_entropy(logits, 0.9)
    assert low.dtype == torch.float32
    assert_close(low, nucleus_entropy(logits.double(), 0.9).float(), atol=2e-5, rtol=0.0)


def test_full_nucleus_and_banned_tokens():
    logits = torch.tensor([[0.3, -math.inf, 2.0, -1.0], [-math.inf, -math.inf, 5.0, -math.inf]], requires_grad=True)
    entropy = nucleus_entropy(logits, 1.0)
    finite = torch.tensor([0.3, 2.0, -1.0])
    assert_close(entropy, torch.stack((torch.distributions.Categorical(logits=finite).entropy(), torch.tensor(0.0))))
    # The first action has probability 1 in fp32, and yet the full nucleus holds the other one.
    assert float(nucleus_entropy(torch.tensor([[17.3, 0.0]]), 1.0)) == pytest.approx(5.6e-7, rel=0.1)
    for top_p in (0.5, 0.999999, 1.0):
        for crossing in ("include", "exclude"):
            (grad,) = torch.autograd.grad(nucleus_entropy(logits, top_p, crossing=crossing).sum(), logits)
            assert bool(grad.isfinite().all())
    assert nucleus_entropy(torch.zeros(0, 4)).shape == (0,)


@pytest.mark.parametrize("tau", [0.0, 0.25, 0.5, 0.8, 0.99])
def test_peaks_equal_numpys_quantile(tau):
    b = random_batch(5, tokens=40)
    peaks = peak_mask(b.entropy_RT, b.mask_RT, tau)
    for row, mask, got in zip(b.entropy_RT.double().numpy(), b.mask_RT.numpy(), peaks.numpy(), strict=True):
        expected = mask & (row > np.quantile(row[mask], tau)) if mask.any() else mask
        assert (got == expected).all()


def test_mean_over_rows_that_have_peaks():
    b = random_batch(6, tokens=20)
    peaks = peak_mask(b.entropy_RT, b.mask_RT, 0.8)
    rows = [float(h[m].double().mean()) for h, m in zip(b.entropy_RT, peaks, strict=True) if m.any()]
    assert 0 < len(rows) < len(peaks)
    assert float(masked_row_mean(b.entropy_RT, peaks)) == pytest.approx(np.mean(rows), rel=1e-6)


def test_vocab_centre_in_chunks_and_with_banned_tokens():
    b = random_batch(7)
    assert_close(vocab_centre(b.logits_RTV, chunk_size=10), b.centre_RT, atol=1e-6, rtol=1e-5)
    banned = torch.cat((b.logits_RTV, torch.full_like(b.logits_RTV[..., :2], -math.inf)), -1)
    assert_close(vocab_centre(banned), b.centre_RT, atol=1e-6, rtol=1e-5)
    assert vocab_centre(b.logits_RTV.bfloat16()).dtype == torch.float32
