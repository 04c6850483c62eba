# SPDX-License-Identifier: Apache-2.0
"""Worked numbers of AEM, and its drift theorem on a three-action policy."""

import pytest
import torch
from episodes import two_rows

from verl_entropy.batch.numerics import log_probs_and_entropy
from verl_entropy.batch.turns import build_turns
from verl_entropy.methods.transforms.aem import aem, aem_weights

ENTROPY = torch.tensor([[0.2, 0.4, 9.0], [1.0, 0.8, 0.6], [1.5, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
ADVANTAGE = torch.tensor([[1.0], [1.0], [-1.0]]).expand(3, 3)


def turns_of(mask):
    rows = len(mask)
    return build_turns(mask, ["p"] * rows, range(rows), [0] * rows, [False] * rows, torch.zeros(rows))


@pytest.mark.parametrize("temperature, alpha", [(1.0, [1.479932, 0.975631, 0.544437]), (2.0, [1.910909, 0.830478, 0.258613])])
def test_three_turns(temperature, alpha):
    turns = turns_of(MASK)
    entropy_K = turns.mean(ENTROPY)
    torch.testing.assert_close(entropy_K, torch.tensor([0.3, 0.8, 1.5]), atol=1e-6, rtol=0)
    weights = aem_weights(entropy_K, turns, temperature=temperature)
    torch.testing.assert_close(weights, torch.tensor(alpha), atol=1e-6, rtol=0)
    assert float(weights.double().mean()) == pytest.approx(1.0, abs=1e-7)
    shaped = aem(ADVANTAGE, turns, ENTROPY, temperature=temperature).advantages_RT
    expected = torch.tensor([alpha[0], alpha[1], -alpha[2]])[:, None].expand(3, 3)
    torch.testing.assert_close(shaped[MASK.bool()], expected[MASK.bool()], atol=1e-6, rtol=0)


def test_two_rows():
    rows = two_rows()
    turns = turns_of(rows.mask)
    entropy_K = turns.mean(rows.entropy)
    torch.testing.assert_close(entropy_K.float(), torch.tensor([0.944197, 1.217500]), atol=1e-6, rtol=0)
    shaped = aem(torch.tensor([[1.0] * 3, [-1.0] * 3]), turns, rows.entropy).advantages_RT
    torch.testing.assert_close(shaped[:, 0], torch.tensor([1.462117, -0.537883]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("action, drift", [(0, -0.336506), (1, 0.174320), (2, 0.579785)])
def test_entropy_drifts_by_advantage_times_relative_surprisal(action, drift):
    """Thm 3.2.2: moving along e_a - pi changes the entropy by S(a) - H."""
    pi = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    logits = pi.log().requires_grad_()
    log_prob, entropy = log_probs_and_entropy(logits, torch.tensor([action]))
    assert float(-log_prob - entropy) == pytest.approx(drift, abs=1e-6)
    entropy.sum().backward()
    direction = torch.nn.functional.one_hot(torch.tensor([action]), 3) - pi  # in probabilities
    assert float((logits.grad * direction / pi).sum()) == pytest.approx(drift, abs=1e-6)


def test_token_normalisation_keeps_the_size_of_the_advantages():
    """Three turns of 2, 3 and 1 tokens: Eq. 15 has mean weight 1 over turns, so long low-entropy turns raise sum |A'|."""
    turns = turns_of(MASK)
    inside = MASK.bool()
    by_turn = aem(ADVANTAGE, turns, ENTROPY).advantages_RT[inside].abs().sum() / 6
    by_token = aem(ADVANTAGE, turns, ENTROPY, normalise="token").advantages_RT
    assert float(by_turn) == pytest.approx((2 * 1.479932 + 3 * 0.975631 + 0.544437) / 6, abs=1e-5)  # 1.07
    assert float(by_token[inside].abs().sum() / 6) == pytest.approx(1.0, abs=1e-6)
    assert float(by_token[0, 0] / by_token[1, 0]) == pytest.approx(1.479932 / 0.975631, abs=1e-5)  # the same relative weights
