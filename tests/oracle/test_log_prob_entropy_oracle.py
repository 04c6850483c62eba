# SPDX-License-Identifier: Apache-2.0
"""Worked numbers of log-probabilities, entropies and their means."""

import pytest
import torch
from episodes import two_rows

from verl_entropy.batch.numerics import aggregate, log_probs_and_entropy, masked_mean

LOG_PROB = [-0.440190, -1.667224, -0.139206, -0.493812, -1.386294]
ENTROPY = [0.947537, 1.355994, 0.529061, 1.048705, 1.386294]


@pytest.mark.parametrize("chunk_tokens", [None, 1, 2])
def test_values(chunk_tokens):
    rows = two_rows()
    log_prob, entropy = log_probs_and_entropy(rows.logits, rows.tokens, chunk_tokens=chunk_tokens)
    torch.testing.assert_close(log_prob[rows.mask], torch.tensor(LOG_PROB), atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy[rows.mask], torch.tensor(ENTROPY), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode, expected", [("token-mean", 1.053518), ("seq-mean-token-mean", 1.080849)])
def test_mean_entropy(mode, expected):
    rows = two_rows()
    _, entropy = log_probs_and_entropy(rows.logits, rows.tokens)
    value = aggregate(entropy, rows.mask, mode, num_tokens=5, num_rows=2)
    assert float(value) == pytest.approx(expected, abs=1e-6)
    if mode == "token-mean":
        assert float(masked_mean(entropy, rows.mask)) == pytest.approx(expected, abs=1e-6)


def test_gradient_of_the_entropy():
    rows = two_rows()
    logits = rows.logits.clone().requires_grad_()
    log_probs_and_entropy(logits, rows.tokens)[1][1, 0].backward()
    p = torch.tensor([1.0, 2.0, 0.0, 0.0]).softmax(0)
    torch.testing.assert_close(logits.grad[1, 0], -p * (p.log() + ENTROPY[3]), atol=1e-6, rtol=0)
    assert not logits.grad[0].any()
