# SPDX-License-Identifier: Apache-2.0
"""Worked numbers of EPO: hinge, indicator, their means, beta_k and the total loss."""

import pytest
import torch
from episodes import two_rows

from verl_entropy.batch.numerics import aggregate
from verl_entropy.methods.regularizers.epo import epo_beta, epo_hinge, epo_indicator, epo_regularizer, epo_released_weight

CORRIDOR = {"smooth_coeff": 0.1, "kappa_low": 0.8, "kappa_high": 1.2}
HBAR = 0.9
DAPO_LOSS = -0.303240

PENALTY = {
    epo_hinge: [[0, 0.027599, 0.019094], [0, 0.030629, 0]],
    epo_indicator: [[0, 0.1, 0.1], [0, 0.1, 0]],
}
MEANS = {  # seq-mean-token-mean, token-mean
    epo_hinge: (0.015440, 0.015465),
    epo_indicator: (0.058333, 0.060000),
}
SLOPE = {epo_hinge: [[0, 0.1, -0.1], [0, 0.1, 0]], epo_indicator: [[0.0] * 3] * 2}


def mean(x, mask, mode):
    return float(aggregate(x, mask, mode, num_tokens=5, num_rows=2))


@pytest.mark.parametrize("penalty", [epo_hinge, epo_indicator])
def test_penalty(penalty):
    rows = two_rows()
    entropy = rows.entropy.float()
    value = torch.where(rows.mask, penalty(entropy, HBAR, **CORRIDOR), 0.0)
    torch.testing.assert_close(value, torch.tensor(PENALTY[penalty]), atol=1e-6, rtol=0)
    seq_mean, token_mean = MEANS[penalty]
    assert mean(value, rows.mask, "seq-mean-token-mean") == pytest.approx(seq_mean, abs=1e-6)
    assert mean(value, rows.mask, "token-mean") == pytest.approx(token_mean, abs=1e-6)


@pytest.mark.parametrize("penalty", ["hinge", "indicator"])
def test_slope(penalty):
    rows = two_rows()
    entropy = rows.entropy.float().requires_grad_()
    loss, _ = epo_regularizer(entropy, rows.mask, hbar=HBAR, beta=2.0, entropy_coeff=1.0, penalty=penalty, **CORRIDOR)
    loss.sum().backward()
    slope = torch.tensor(SLOPE[epo_hinge if penalty == "hinge" else epo_indicator])
    expected = torch.where(rows.mask, -(1 - 2.0 * slope), 0.0)
    torch.testing.assert_close(entropy.grad, expected, atol=1e-6, rtol=0)


def test_total_loss():
    rows = two_rows()
    loss, parts = epo_regularizer(rows.entropy.float(), rows.mask, hbar=HBAR, beta=2.0, **CORRIDOR)
    assert DAPO_LOSS + mean(loss, rows.mask, "seq-mean-token-mean") == pytest.approx(-0.304290, abs=1e-6)
    assert mean(parts["entropy"], rows.mask, "seq-mean-token-mean") == pytest.approx(1.080849, abs=1e-6)
    assert mean(parts["penalty"], rows.mask, "seq-mean-token-mean") == pytest.approx(0.015440, abs=1e-6)
    assert mean(parts["outside"], rows.mask, "token-mean") == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    "total, start, end, table",
    [
        (125, 2.0, 1.0, {0: 2.0, 10: 1.616393, 62: 1.049787, 63: 1.0, 125: 1.0}),
        (150, 2.0, 1.0, {0: 2.0, 10: 1.670320, 75: 1.049787, 76: 1.0, 150: 1.0}),
        (100, 0.5, 2.0, {0: 0.5, 25: 0.888435, 50: 0.975106, 75: 1.776870, 100: 1.950213}),
    ],
)
def test_beta(total, start, end, table):
    for k, expected in table.items():
        assert epo_beta(k, total, start, end, 3.0) == pytest.approx(expected, abs=1e-6)


def test_released_weight():
    for k, expected in {0: 1.0, 10: 0.953186, 75: 0.827067, 76: 0.768632, 150: 0.039830}.items():
        assert epo_released_weight(k, 150) == pytest.approx(expected, abs=1e-6)
