# SPDX-License-Identifier: Apache-2.0
"""On tabular softmax policies the entropy does what the papers' theorems say, measured by real gradient steps."""

from __future__ import annotations

import pytest
import torch
from slow_metrics import aem_drift
from torch.testing import assert_close

from verl_entropy.batch.numerics import aggregate
from verl_entropy.batch.turns import build_turns
from verl_entropy.diagnostics import predictors
from verl_entropy.methods.common.controllers import TargetEntropyController
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.regularizers.entropy_bonus import entropy_bonus
from verl_entropy.methods.transforms.clip_v import vocab_centre
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

PROBABILITIES = [[0.5, 0.25, 0.125, 0.125], [0.125, 0.625, 0.125, 0.125], [0.25, 0.25, 0.375, 0.125]]
STEP = 1e-4
POLICIES = pytest.mark.parametrize("probabilities", PROBABILITIES)


def entropy_of(logits):
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


class Bandit:
    """One state, four actions; the batch holds each action as often as the policy expects in eight draws."""

    def __init__(self, probabilities, seed=0):
        self.p = torch.tensor(probabilities, dtype=torch.float64)
        self.logits = self.p.log()
        self.actions = torch.repeat_interleave(torch.arange(4), (8 * self.p).long())
        advantages = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.by_action = advantages - (self.p * advantages).sum()
        self.mask = torch.ones(8, 1, dtype=torch.bool)
        self.turns = build_turns(self.mask, ["g"] * 8, list(range(8)), [0] * 8, [False] * 8, torch.zeros(8))
        self.log_prob = self.logits[self.actions][:, None]
        self.entropy = entropy_of(self.logits).expand(8, 1)
        self.advantages = self.by_action[self.actions][:, None]
        self.score = self.log_prob + self.entropy

    def change(self, advantages, step=STEP):
        """Entropy change per unit of step after one SGD step on the clipped loss, from fp64 logits."""
        logits = self.logits.clone().requires_grad_()
        log_prob = logits.log_softmax(-1)[self.actions][:, None]
        loss, _ = ppo_clip(log_prob, self.log_prob, advantages.double(), self.mask)
        loss.mean().backward()
        return (entropy_of(logits.detach() - step * logits.grad) - entropy_of(self.logits)) / step


@POLICIES
@pytest.mark.parametrize("seed", range(3))
def test_repos_predictor_is_the_change_of_a_gradient_step(probabilities, seed):
    b = Bandit(probabilities, seed)
    predicted = predictors.repo_predictor(b.advantages, b.log_prob, b.entropy, b.mask)
    assert abs(float(predicted)) > 1e-3
    assert float(b.change(b.advantages)) == pytest.approx(float(predicted), abs=3e-5)


@POLICIES
@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_is_the_change_of_a_natural_gradient_step(probabilities, seed):
    b = Bandit(probabilities, seed)
    change = (entropy_of(b.logits + STEP * b.by_action) - entropy_of(b.logits)) / STEP
    predicted = predictors.covariance_predictor(b.advantages, b.log_prob, b.mask)
    assert float(change) == pytest.approx(float(predicted), abs=2e-4)
    assert float(change) * float(predicted) > 0


@POLICIES
@pytest.mark.parametrize("action", range(4))
@pytest.mark.parametrize("advantage", [1.0, -0.5])
def test_the_discriminator_is_the_change_of_one_tokens_step(probabilities, action, advantage):
    b = Bandit(probabilities)
    one_hot = torch.eye(4, dtype=torch.float64)[action]
    change = (entropy_of(b.logits + STEP * advantage * (one_hot - b.p)) - entropy_of(b.logits)) / STEP
    predicted = predictors.discriminator_predictor(
        torch.tensor([[advantage]]),
        b.logits[action].view(1, 1),
        b.entropy[:1],
        vocab_centre(b.logits).view(1, 1),
        torch.ones(1, 1, dtype=torch.bool),
    )
    assert float(change) == pytest.approx(float(predicted), abs=3e-5)


@pytest.mark.parametrize("action", range(3))
@pytest.mark.parametrize("advantage", [1.0, -2.0])
def test_aem_drift_law(action, advantage):
    """Along the natural direction A (e_a - pi) the entropy changes by A (S(a) - H)."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    entropy, direction = entropy_of(p.log()), STEP * advantage * (torch.eye(3, dtype=torch.float64)[action] - p)
    change = (entropy_of((p + direction).log()) - entropy_of((p - direction).log())) / (2 * STEP)
    mask = torch.ones(1, 1, dtype=torch.bool)
    turns = build_turns(mask, ["g"], ["a"], [0], [False], torch.zeros(1))
    drift = aem_drift(torch.full((1, 1), advantage), p.log()[action].view(1, 1), entropy.view(1, 1), turns)
    # A one-token response: its entropy is known, so the reading without a baseline is exact.
    assert float(change) == pytest.approx(float(drift["martingale"]), abs=1e-6)
    assert float(change) == pytest.approx(advantage * [-0.336506, 0.174320, 0.579785][action], abs=2e-6)


@POLICIES
@pytest.mark.parametrize("seed", range(3))
def test_repo_d_pushes_against_the_change_and_can_cancel_it(probabilities, seed):
    b = Bandit(probabilities, seed)
    plain = float(b.change(b.advantages))
    spread = float((b.log_prob.exp() * b.score.square()).mean())

    def change(zeta):
        return float(b.change(repo_d(b.advantages, b.turns, b.log_prob, b.entropy, zeta=zeta).advantages_RT))

    # dH(A - beta L) = dH(A) + beta E[pi L^2], and beta = -zeta dH(A).
    assert change(0.5) == pytest.approx(plain * (1 - 0.5 * spread), abs=5e-5)
    assert abs(change(0.5)) < abs(plain)
    assert change(1.0 / spread) == pytest.approx(0.0, abs=5e-5)


@POLICIES
def test_repo_r_slows_the_collapse_and_a_negative_zeta_hastens_it(probabilities):
    b = Bandit(probabilities)
    mode = int(b.p.argmax())
    by_action = torch.eye(4, dtype=torch.float64)[mode] - b.p[mode]
    advantages = by_action[b.actions][:, None]
    b.advantages = advantages
    fixed, slower, faster = (
        float(b.change(repo_r(advantages, b.turns, b.log_prob, b.entropy, zeta=z).advantages_RT)) for z in (0.0, 0.5, -0.5)
    )
    assert faster < fixed < slower < 0


@pytest.mark.parametrize("zeta", [0.3, -0.3])
@POLICIES
def test_repo_r_changes_the_entropy_as_computed(probabilities, zeta):
    b = Bandit(probabilities, 4)
    shaped = repo_r(b.advantages, b.turns, b.log_prob, b.entropy, zeta=zeta).advantages_RT.double()
    weight = b.log_prob.exp() * b.score
    expected = -((shaped * weight).mean() - shaped.mean() * weight.mean())
    assert float(b.change(shaped)) == pytest.approx(float(expected), abs=3e-5)


def test_bonus_gradient_and_direction():
    logits = torch.tensor([[1.0, 2, 0, 0]], dtype=torch.float64, requires_grad=True)
    entropy_bonus(entropy_of(logits)[None], torch.ones(1, 1, dtype=torch.bool), coef=1.0).sum().backward()
    assert_close(-logits.grad[0], torch.tensor([0.099933, -0.338649, 0.119358, 0.119358]).double(), atol=1e-6, rtol=0.0)
    assert float(entropy_of(logits - 0.01 * logits.grad)) > float(entropy_of(logits))


@pytest.mark.parametrize("controlled", [False, True])
def test_a_controlled_bonus_holds_the_entropy_that_would_collapse(controlled):
    logits = torch.tensor([0.3, 0.1, -0.2, 0.0], dtype=torch.float64)
    reward = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    controller = TargetEntropyController(value=1e-3, low=1e-5, high=10.0, factor=1.3)
    mask, start = torch.ones(1, 1, dtype=torch.bool), float(entropy_of(logits))
    trace = []
    for _ in range(400):
        z = logits.clone().requires_grad_()
        trace.append(float(entropy_of(logits)))
        coef = controller.update(trace[-1]) if controlled else 0.0
        bonus = aggregate(entropy_bonus(entropy_of(z).view(1, 1), mask, coef=coef), mask, "token-mean", num_tokens=1, num_rows=1)
        (bonus - (z.softmax(-1) * reward).sum()).backward()
        logits = logits - 0.2 * z.grad
    late = sum(trace[200:]) / 200
    assert abs(late - start) < 0.15 if controlled else late < 0.3 * start
