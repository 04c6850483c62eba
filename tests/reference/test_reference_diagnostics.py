# SPDX-License-Identifier: Apache-2.0
"""Diagnostics equal slow versions written from their definitions, on random ragged batches."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from math_batches import random_batch
from slow_metrics import aem_drift, mean_representation, trajectory_log_prob, windows_by_token, windows_by_turn
from torch.testing import assert_close

from verl_entropy.diagnostics import interference as lemma
from verl_entropy.diagnostics.representation import auc, representation_similarity

BATCHES = pytest.mark.parametrize(("seed", "one_row"), [(0, False), (1, False), (2, True)])


def episodes(b, x_RT):
    """Values of each trajectory with turns: a list of turns, each a list of its tokens."""
    out: dict[int, list[list[float]]] = {}
    for k in range(b.turns.num_turns):
        own = (b.turns.turn_RT == k) & b.mask_RT
        out.setdefault(int(b.turns.trajectory_K[k]), []).append(x_RT[own].tolist())
    return out


@BATCHES
@pytest.mark.parametrize("n", [1, 2, 10])
def test_windows(seed, one_row, n):
    b = random_batch(seed, one_row=one_row)
    flat = [[h for turn in turns for h in turn] for turns in episodes(b, b.entropy_RT).values()]
    by_turn = [[fmean(turn) for turn in turns] for turns in episodes(b, b.entropy_RT).values()]
    for function, units in ((windows_by_token, flat), (windows_by_turn, by_turn)):
        result = function(b.entropy_RT, b.turns, n)
        expected = (fmean(fmean(u[:n]) for u in units), fmean(fmean(u[-n:]) for u in units), fmean(len(u) < 2 * n for u in units))
        assert (result.early, result.late, result.overlap) == pytest.approx(expected, rel=1e-5)


@BATCHES
def test_aem_drift_and_likelihood(seed, one_row):
    b = random_batch(seed, one_row=one_row)
    turns = b.turns
    log_prob, entropy, advantage = [], [], []
    for k in range(turns.num_turns):
        own = turns.turn_RT == k
        log_prob.append(b.log_prob_RT[own].double())
        entropy.append(b.entropy_RT[own].double())
        advantage.append(float(b.advantages_RT[own].double().mean()))
    group = turns.group_K.tolist()

    def centred(values):
        mean = {own: fmean(v for v, g in zip(values, group, strict=True) if g == own) for own in group}
        return [v - mean[g] for v, g in zip(values, group, strict=True)]

    readings = {
        "surprisal": centred([-float(x.sum()) for x in log_prob]),
        "surprisal_per_token": centred([-float(x.mean()) for x in log_prob]),
        "entropy_proxy": centred([float(x.mean()) for x in entropy]),
        "martingale": [-float(x.mean()) - float(h.mean()) for x, h in zip(log_prob, entropy, strict=True)],
    }
    drift = aem_drift(b.advantages_RT, b.log_prob_RT, b.entropy_RT, turns)
    for name, difference in readings.items():
        assert float(drift[name]) == pytest.approx(fmean(a * d for a, d in zip(advantage, difference, strict=True)), abs=1e-5)

    total, mean = trajectory_log_prob(b.log_prob_RT, turns)
    for j, own in episodes(b, b.log_prob_RT).items():
        flat = [x for turn in own for x in turn]
        assert (float(total[j]), float(mean[j])) == pytest.approx((math.fsum(flat), fmean(flat)), rel=1e-5)


@BATCHES
def test_gram_equals_products_of_the_gradients(seed, one_row):
    b = random_batch(seed, one_row=one_row)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(*b.mask_RT.shape, 5, generator=generator)
    head = torch.randn(7, 5, generator=generator, requires_grad=True)
    logits = hidden @ head.T
    j_RT = b.turns.trajectory_K[b.turns.turn_RT.clamp_min(0)]
    chosen = logits.log_softmax(-1).gather(-1, b.tokens_RT[..., None]).squeeze(-1)
    num = b.turns.num_trajectories
    grads = []
    for j in range(num):
        own = b.mask_RT & (j_RT == j)
        grads.append(torch.autograd.grad(torch.where(own, chosen, 0.0).sum(), head, retain_graph=True)[0].flatten())
    expected = torch.stack(grads) @ torch.stack(grads).T
    m = b.mask_RT
    gram = lemma.interference_gram(logits[m].detach(), b.tokens_RT[m], hidden[m], j_RT[m], num)
    assert_close(gram, expected, atol=2e-4, rtol=2e-4)


@BATCHES
def test_representations(seed, one_row):
    b = random_batch(seed, one_row=one_row)
    hidden = torch.randn(*b.mask_RT.shape, 4, generator=torch.Generator().manual_seed(seed))
    means = mean_representation(torch.where(b.mask_RT[..., None], hidden, math.nan), b.turns)
    for j, own in episodes(b, torch.arange(b.mask_RT.numel()).view(b.mask_RT.shape)).items():
        flat = [int(i) for turn in own for i in turn]
        assert_close(means[j], hidden.flatten(0, 1)[flat].mean(0), atol=1e-5, rtol=1e-5)
    correct = torch.arange(len(means)) % 2 == 0
    cosine = torch.nn.functional.cosine_similarity(means[:, None], means[None], dim=-1).double()
    pairs = {"within_correct": (0, 0), "within_wrong": (1, 1), "between": (0, 1)}
    scalars = representation_similarity(means, correct)
    for name, (a, c) in pairs.items():
        values = [
            float(cosine[i, j]) for i in range(len(means)) for j in range(len(means)) if i % 2 == a and j % 2 == c and i != j
        ]
        assert scalars[name] == pytest.approx(fmean(values), abs=1e-6)


def test_auc_by_counting():
    generator = torch.Generator().manual_seed(0)
    score, positive = torch.randint(5, (40,), generator=generator), torch.rand(40, generator=generator) < 0.4
    pairs = [(float(a), float(b)) for a in score[positive] for b in score[~positive]]
    assert auc(score.float(), positive) == pytest.approx(fmean((a > b) + 0.5 * (a == b) for a, b in pairs))
