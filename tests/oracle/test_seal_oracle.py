# SPDX-License-Identifier: Apache-2.0
"""Worked numbers of the SEAL loss."""

import pytest
import torch

from verl_entropy.batch.numerics import aggregate
from verl_entropy.methods.heads.seal import seal_loss, seal_parts

LOGITS = [[0.5, -1.0, 2.0], [0.3, -0.2, float("nan")]]
LABEL = torch.tensor([1.0, 0.0])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
DAPO_LOSS = -0.303240


def test_loss_and_gradient():
    logits = torch.tensor(LOGITS, requires_grad=True)
    loss_RT = seal_loss(logits, LABEL, MASK)
    expected = torch.tensor([[0.474077, 1.313262, 0.126928], [0.854355, 0.598139, 0.0]])
    torch.testing.assert_close(loss_RT, expected, atol=1e-6, rtol=0)
    loss = aggregate(loss_RT, MASK, "token-mean", num_tokens=5, num_rows=None)
    assert float(loss) == pytest.approx(0.673352, abs=1e-6)
    assert DAPO_LOSS + 0.02 * float(loss) == pytest.approx(-0.289773, abs=1e-6)
    loss.backward()
    slope = torch.tensor([[-0.075508, -0.146212, -0.023841], [0.114889, 0.090033, 0.0]])
    torch.testing.assert_close(logits.grad, slope, atol=1e-6, rtol=0)


def test_parts():
    parts = seal_parts(torch.tensor(LOGITS), LABEL, MASK)
    assert parts["accuracy"].tolist() == [[1, 0, 1], [0, 1, 0]]
    assert parts["label"].tolist() == [[1, 1, 1], [0, 0, 0]]
    torch.testing.assert_close(parts["probability"], torch.tensor(LOGITS).sigmoid().nan_to_num(0.0))
