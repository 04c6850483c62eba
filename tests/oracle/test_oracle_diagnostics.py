# SPDX-License-Identifier: Apache-2.0
"""Known numbers of the diagnostics."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from math_batches import fixture_f
from slow_metrics import (
    aem_drift,
    clip_fractions,
    likelihood_by_class,
    likelihood_covariance,
    mean_representation,
    trajectory_log_prob,
    windows_by_token,
    windows_by_turn,
)
from torch.testing import assert_close

from verl_entropy.batch.turns import build_turns
from verl_entropy.diagnostics import interference as lemma
from verl_entropy.diagnostics import predictors, text
from verl_entropy.diagnostics.representation import auc, linear_probe_auc, representation_similarity
from verl_entropy.diagnostics.windows import CumulativeEntropy

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}
HIDDEN = torch.tensor([[[1.0, 0], [0, 1], [1, 1]], [[1, 0], [0, 2], [9, 9]]])


def close(actual, expected):
    assert_close(actual, torch.tensor(expected, dtype=actual.dtype), **TOLERANCE)


def test_predictors_of_the_entropy_change():
    f = fixture_f()
    close(predictors.repo_predictor(f.advantages_RT, f.log_prob_RT, f.entropy_RT, f.mask_RT), -0.053696)
    close(predictors.covariance_predictor(f.advantages_RT, f.log_prob_RT, f.mask_RT), -0.091766)
    args = (f.advantages_RT, f.log_prob_RT, f.entropy_RT, f.centre_RT, f.mask_RT)
    close(predictors.discriminator_predictor(*args), 0.006125)


def test_exact_expectation_over_actions():
    f = fixture_f()
    log_p = f.logits_RTV[0, 0].log_softmax(-1)
    reward = torch.tensor([1.0, 0, 0, 0])
    advantages = reward - log_p.exp()[0]
    per_action = advantages * (log_p + f.entropy_RT[0, 0]) * log_p.exp()
    close((log_p.exp() * per_action).sum(), 0.101655)


def test_aem_drift():
    f = fixture_f()
    drift = aem_drift(f.advantages_RT, f.log_prob_RT, f.entropy_RT, f.turns)
    expected = {"surprisal": 0.183257, "surprisal_per_token": -0.095590, "entropy_proxy": -0.136651, "martingale": 0.041061}
    assert {k: float(v) for k, v in drift.items()} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("eps_high", [0.2, 0.28])
def test_clip_fractions(eps_high):
    f = fixture_f()
    high, low = clip_fractions(f.log_prob_RT, f.old_log_prob_RT, f.advantages_RT, f.mask_RT, eps_low=0.2, eps_high=eps_high)
    close(high, 0.2)
    close(low, 0.2)


def test_covariance_of_log_prob_and_its_change():
    log_prob, delta = torch.tensor([[-0.1, -1.0, -3.0]]), torch.tensor([[-0.2, 0.0, 0.3]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    close(likelihood_covariance(log_prob, delta, mask), -0.247778)


def test_early_and_late_tokens():
    f = fixture_f()
    windows = windows_by_token(f.entropy_RT, f.turns, 1)
    assert (windows.early, windows.late, windows.overlap) == pytest.approx((0.998121, 0.957678, 0.0), abs=1e-6)
    assert windows_by_token(f.entropy_RT, f.turns, 10).overlap == 1.0


def episode():
    """One trajectory over three rows in a shuffled order, with entropies 1..5 in its true order."""
    mask = torch.tensor([[1, 0], [1, 1], [1, 1]], dtype=torch.bool)
    turns = build_turns(mask, ["g"] * 3, ["a"] * 3, [2, 0, 1], [False] * 3, torch.zeros(3))
    return torch.tensor([[5.0, math.nan], [1.0, 2.0], [3.0, 4.0]]), turns


@pytest.mark.parametrize(
    ("windows", "n", "early", "late", "overlap"),
    [
        (windows_by_token, 2, 1.5, 4.5, 0.0),
        (windows_by_token, 3, 2.0, 4.0, 1.0),
        (windows_by_turn, 1, 1.5, 5.0, 0.0),
        (windows_by_turn, 2, 2.5, 4.25, 1.0),
    ],
)
def test_windows_follow_the_episode_not_the_rows(windows, n, early, late, overlap):
    result = windows(*episode(), n)
    assert (result.early, result.late, result.overlap) == pytest.approx((early, late, overlap))


def test_cumulative_entropy():
    sums = CumulativeEntropy()
    assert [sums.update(h) for h in (0.5, 0.4, math.nan, 0.3)] == pytest.approx([0.5, 0.9, 0.9, 1.2])
    resumed = CumulativeEntropy()
    resumed.load_state_dict(sums.state_dict())
    assert resumed.total == sums.total


@pytest.mark.parametrize(
    ("response", "occurrences", "redundant"),
    [
        ("A. B. A. C. A.", 0.6, 0.4),
        ("", 0.0, 0.0),
        ("Take 3.5 apples.\nTake 3.5 apples!\n\nGo", 2 / 3, 1 / 3),
        (" a \nA", 1.0, 0.5),
    ],
)
def test_sentence_duplication(response, occurrences, redundant):
    assert text.sentence_duplication(response) == pytest.approx(occurrences)
    assert text.sentence_duplication(response, reading="redundant") == pytest.approx(redundant)


def test_sentence_duplication_is_a_macro_mean():
    assert text.mean_sentence_duplication(["a. a.", "a. b. c."]) == pytest.approx(0.5)
    assert text.mean_sentence_duplication([]) == 0.0


def test_likelihood_of_trajectories():
    f = fixture_f()
    total, mean = trajectory_log_prob(f.log_prob_RT, f.turns)
    close(total, [-2.246620, -1.880106])
    close(mean, [-0.748873, -0.940053])
    turns = replace(f.turns, valid_K=torch.tensor([False, True]))
    expected = {
        "correct_log_prob_sum": -2.246620,
        "correct_log_prob_mean": -0.748873,
        "wrong_log_prob_sum": -1.880106,
        "wrong_log_prob_mean": -0.940053,
        "valid_log_prob_sum": -1.880106,
        "valid_log_prob_mean": -0.940053,
    }
    assert likelihood_by_class(f.log_prob_RT, turns) == pytest.approx(expected, abs=1e-6)
    assert likelihood_by_class(f.log_prob_RT, replace(turns, valid_K=None, success_J=torch.zeros(2).bool())).keys() == {
        "wrong_log_prob_sum",
        "wrong_log_prob_mean",
    }


def test_gradient_interference():
    f = fixture_f()
    valid = f.mask_RT
    gram = lemma.interference_gram(
        f.logits_RTV[valid], f.tokens_RT[valid], HIDDEN[valid], f.turns.trajectory_K[f.turns.turn_RT[valid]], 2
    )
    close(gram, [[1.139565, -0.665492], [-0.665492, 3.215920]])
    effect = lemma.interference(gram, torch.tensor([1.0, -1.0]))
    close(effect["coefficient_J"], [0.237037, 1.275214])
    close(effect["drift"], -1.038177)
    close(effect["drift_positive"] + effect["drift_negative"], -1.038177)


def test_representations():
    f = fixture_f()
    means = mean_representation(HIDDEN, f.turns)
    close(means, [[0.666667, 0.666667], [0.5, 1.0]])
    scalars = representation_similarity(means, torch.tensor([True, False]))
    assert scalars["between"] == pytest.approx(0.948683, abs=1e-6)
    assert scalars["distance"] == pytest.approx(0.372678, abs=1e-6)
    assert math.isnan(scalars["within_correct"]) and math.isnan(scalars["probe_auc"])
    one_class = representation_similarity(means, torch.tensor([True, True]))
    assert math.isnan(one_class["between"]) and one_class["within_correct"] == pytest.approx(0.948683, abs=1e-6)


def test_auc_counts_ties_one_half():
    positive = torch.tensor([True, True, False, False])
    assert auc(torch.tensor([3.0, 1.0, 1.0, 0.0]), positive) == pytest.approx(0.875)
    assert auc(torch.tensor([0.0, 0.0, 0.0, 0.0]), positive) == 0.5
    assert math.isnan(auc(torch.tensor([0.0]), torch.tensor([True])))


def test_linear_probe_finds_a_separation_and_nothing_in_noise():
    generator = torch.Generator().manual_seed(0)
    correct = torch.arange(120) % 2 == 0
    noise = torch.randn(120, 16, generator=generator)
    assert linear_probe_auc(noise + 3.0 * correct[:, None], correct) > 0.95
    aucs = [linear_probe_auc(torch.randn(120, 16, generator=generator), correct) for _ in range(10)]
    assert 0.42 < sum(aucs) / len(aucs) < 0.58
    assert linear_probe_auc(torch.ones(120, 16), correct) == 0.5
