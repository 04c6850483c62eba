# SPDX-License-Identifier: Apache-2.0
"""No silent zero gradient: entropy, EPO's hinge, and the indicator that really has none."""

import pytest
import torch
import yaml

from verl_entropy.batch.numerics import aggregate, log_probs_and_entropy
from verl_entropy.config import presets
from verl_entropy.methods.regularizers.epo import EPO, EntropyHistory, epo_beta, epo_hinge, epo_indicator, epo_regularizer

CORRIDOR = {"smooth_coeff": 0.1, "kappa_low": 0.8, "kappa_high": 1.2}


def logits_of(dtype=torch.float64):
    return (2 * torch.randn(5, 11, generator=torch.Generator().manual_seed(4))).to(dtype)


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-3)])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_entropy_gradient_is_minus_p_log_p_plus_h(dtype, atol, temperature):
    logits = logits_of(dtype).requires_grad_()
    _, entropy = log_probs_and_entropy(logits, torch.zeros(5, dtype=torch.long), temperature)
    entropy.sum().backward()
    log_p = (logits.detach().double() / temperature).log_softmax(-1)
    h = -(log_p.exp() * log_p).sum(-1, keepdim=True)
    expected = -log_p.exp() * (log_p + h) / temperature
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(logits.grad.double(), expected, atol=atol, rtol=0)


def test_gradient_of_the_mean_entropy_reaches_a_head():
    """The way of a training step: hidden states, LM head, entropy, aggregate."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 4, generator=generator, requires_grad=True)
    weight = torch.randn(9, 4, generator=generator)
    _, entropy = log_probs_and_entropy(hidden @ weight.T, torch.zeros(6, dtype=torch.long))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    aggregate(entropy.view(2, 3), mask, "token-mean", num_tokens=3, num_rows=2).backward()
    kept = hidden.grad.view(2, 3, 4)
    assert (kept[mask.bool()].abs().sum(-1) > 0).all() and not kept[~mask.bool()].any()


ENTROPY = [[0.2, 0.9, 1.5], [0.71, 1.09, 0.5]]


def regularizer_gradient(penalty: str, beta: float) -> torch.Tensor:
    entropy = torch.tensor(ENTROPY, dtype=torch.float64, requires_grad=True)
    loss, _ = epo_regularizer(entropy, torch.ones(2, 3), hbar=0.9, beta=beta, entropy_coeff=0.3, penalty=penalty, **CORRIDOR)
    loss.sum().backward()
    return entropy.grad


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_hinge_gradient(beta):
    """-lambda (1 - beta dP/dH); dP/dH = -alpha below .72, alpha above 1.08, 0 between."""
    slope = torch.tensor([[-0.1, 0.0, 0.1], [-0.1, 0.1, -0.1]], dtype=torch.float64)
    torch.testing.assert_close(regularizer_gradient("hinge", beta), -0.3 * (1 - beta * slope), atol=1e-15, rtol=0)


def test_indicator_has_no_gradient():
    """The released code's penalty moves the loss and leaves the gradient of a plain entropy bonus."""
    entropy = torch.tensor(ENTROPY, requires_grad=True)
    assert not epo_indicator(entropy, 0.9, **CORRIDOR).requires_grad
    assert torch.equal(regularizer_gradient("indicator", 2.0), regularizer_gradient("indicator", 0.0))
    assert torch.equal(regularizer_gradient("indicator", 2.0), torch.full((2, 3), -0.3, dtype=torch.float64))


def test_edges_of_the_corridor():
    edge = torch.tensor([0.8, 1.2], dtype=torch.float64, requires_grad=True)
    value = epo_hinge(edge, 1.0, **CORRIDOR)
    value.sum().backward()
    assert not value.any() and not edge.grad.any()
    assert epo_indicator(edge, 1.0, **CORRIDOR).tolist() == [
        0.1,
        0.1,
    ]  # strict inequalities in the released code


def test_history_mean_takes_no_gradient():
    hbar = torch.tensor(0.9, requires_grad=True)
    entropy = torch.tensor(ENTROPY, requires_grad=True)
    loss, _ = epo_regularizer(entropy, torch.ones(2, 3), hbar=hbar, beta=2.0, **CORRIDOR)
    loss.sum().backward()
    assert hbar.grad is None


def descend(name: str, steps: int = 600, raise_at: int | None = None) -> tuple[list[float], list[float]]:
    """Entropy and history mean of a softmax policy of 64 actions that descends on EPO's term alone, with a preset's settings."""
    s = EPO(**_epo_section(name))
    logits = 3.0 * torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    history, entropies, means = EntropyHistory(), [], []
    for k in range(steps):
        if k == raise_at:  # the policy is thrown far above the corridor
            logits = logits / 4.0
        logits = logits.detach().requires_grad_()
        entropy = log_probs_and_entropy(logits, torch.zeros(1, 1, dtype=torch.long))[1].double()
        hbar = history.mean()
        loss, _ = epo_regularizer(
            -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1),
            torch.ones(1, 1).bool(),
            hbar=hbar,
            beta=epo_beta(k, steps, s.beta_start, s.beta_end, s.decay),
            entropy_coeff=s.entropy_coeff,
            smooth_coeff=s.smooth_coeff,
            kappa_low=s.kappa_low,
            kappa_high=s.kappa_high,
            penalty=s.penalty,
        )
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        entropies.append(float(entropy.detach()))
        means.append(float("nan") if hbar is None else hbar)
        history.append(entropies[-1])
        logits = logits.detach() - 0.1 / s.entropy_coeff * gradient
    return entropies, means


def _epo_section(name: str) -> dict:
    found = {}
    for part in presets.chain(name):
        found |= yaml.safe_load(presets.text(part))["actor_rollout_ref"]["actor"]["policy_loss"]["epo"]
    return found


def test_a_corridor_that_holds_and_the_papers_that_does_not():
    """The term alone, no policy loss: at the paper's values entropy goes to its maximum, ln 64; epo_corridor keeps it inside."""
    paper, means = descend("epo", raise_at=20)
    assert paper[-1] > 0.98 * torch.tensor(64.0).log() and paper[-1] > paper[20]
    held, means = descend("epo_corridor")
    assert held[-1] < 0.6 * torch.tensor(64.0).log()
    settled = list(zip(held, means, strict=True))[100:]
    assert all(0.9 * mean < entropy < 1.16 * mean for entropy, mean in settled)  # a step of this size crosses the edge by 5 %


def test_the_corridor_brings_a_policy_back_that_left_it():
    held, means = descend("epo_corridor", raise_at=50)
    assert held[50] > 1.5 * means[50]  # outside
    assert held[-1] < 1.16 * means[-1] and held[-1] < held[50] - 0.5
