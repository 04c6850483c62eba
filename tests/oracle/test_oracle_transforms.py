# SPDX-License-Identifier: Apache-2.0
"""Known numbers of the advantage transforms on the fixture of two rows."""

from __future__ import annotations

import math

import pytest
import torch
from math_batches import fixture_f
from torch.testing import assert_close

from verl_entropy.batch.turns import build_turns
from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b, discriminator
from verl_entropy.methods.transforms.clip_v import clip_v, vocab_centre
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft, entrocraft_switch, entropy_range
from verl_entropy.methods.transforms.entropic import entropic
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

TOLERANCE = {"atol": 1e-6, "rtol": 0.0}
PAD = 0.0


def close(actual, expected):
    assert_close(actual, torch.tensor(expected, dtype=actual.dtype), **TOLERANCE)


def apply(name, **settings):
    f = fixture_f()
    if name == "repo_r":
        return repo_r(f.advantages_RT, f.turns, f.log_prob_RT, f.entropy_RT, **settings)
    if name == "repo_d":
        return repo_d(f.advantages_RT, f.turns, f.log_prob_RT, f.entropy_RT, **settings)
    if name == "clip_b":
        return clip_b(f.advantages_RT, f.turns, f.log_prob_RT, f.entropy_RT, **settings)
    if name == "clip_v":
        return clip_v(f.advantages_RT, f.turns, f.log_prob_RT, f.entropy_RT, f.centre_RT, **settings)
    return {"ea": ea, "aepo": aepo}[name](f.advantages_RT, f.turns, f.entropy_RT, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("repo_r", {"zeta": 0.1}, [[0.949265, 1.031123, 0.961015], [-1, -1, PAD]]),
        ("repo_r", {"zeta": 0.1, "center": "batch_mean"}, [[0.961484, 1.084188, 0.931386], [-1, -1, PAD]]),
        # One prompt group: the group is the batch.
        ("repo_r", {"zeta": 0.1, "center": "group_mean"}, [[0.961484, 1.084188, 0.931386], [-1, -1, PAD]]),
        ("repo_d", {"zeta": 1.0}, [[0.972757, 1.016712, 0.979066], [-1.029796, -1, PAD]]),
        ("repo_d", {"zeta": 1.0, "scope": "group"}, [[0.972757, 1.016712, 0.979066], [-1.029796, -1, PAD]]),
        ("repo_d", {"zeta": 1.0, "scope": "per_token"}, [[0.834256, 0.981715, 0.867764], [-0.812086, -1, PAD]]),
        ("ea", {"alpha": 0.4, "kappa": 2.0}, [[1.379015, 1.5, 1.211624], [-0.580518, -0.5, PAD]]),
        ("ea", {"alpha": 0.1, "kappa": 2.0}, [[1.094754, 1.135599, 1.052906], [-0.895129, -0.861371, PAD]]),
        ("aepo", {"alpha": 0.2}, [[0.939349, 1.173101, 0.699863], [-0.997245, -1.190441, PAD]]),
    ],
)
def test_advantages(name, settings, expected):
    result = apply(name, **settings)
    close(result.advantages_RT, expected)
    assert result.mask_RT is None


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("clip_b", {"mu": 0.5}, [[1, 1, 1], [1, 0, 0]]),
        ("clip_b", {"mu": 2.5}, [[1, 1, 1], [1, 1, 0]]),
        ("clip_b", {"mu": 0.5, "two_sided": True}, [[0, 0, 0], [0, 0, 0]]),
        ("clip_b", {"mu": 2.5, "two_sided": True}, [[1, 1, 1], [1, 1, 0]]),
        ("clip_v", {"mu": 1.0}, [[1, 1, 1], [1, 1, 0]]),
    ],
)
def test_kept_tokens(name, settings, expected):
    result = apply(name, **settings)
    assert result.mask_RT.int().tolist() == expected
    close(result.advantages_RT, fixture_f().advantages_RT.tolist())


def test_repo_d_reports_the_mean_and_beta():
    metrics = apply("repo_d", zeta=1.0).metrics
    assert metrics["predicted_entropy_change"] == pytest.approx(-0.053696, abs=1e-6)
    assert metrics["beta"] == pytest.approx(0.053696, abs=1e-6)


def test_discriminator_and_its_centre():
    f = fixture_f()
    close(discriminator(f.log_prob_RT, f.entropy_RT), [[0.326688, -0.058751, 0.339192], [0.338649, 0, 0]])
    close(vocab_centre(f.logits_RTV), [[0.168817, 0.014389, 0.280421], [0.164523, 0, 0]])
    assert apply("clip_b").metrics["mean"] == pytest.approx(0.189156, abs=1e-6)
    assert apply("clip_b").metrics["std"] == pytest.approx(0.179450, abs=1e-6)
    assert apply("clip_v").metrics["std"] == pytest.approx(0.093669, abs=1e-6)


def test_discriminator_is_the_first_order_change_of_entropy():
    logits = fixture_f().logits_RTV[0, 0].double()

    def entropy(z):
        return torch.distributions.Categorical(logits=z).entropy()

    moved = logits + torch.tensor([0.01, 0, 0, 0])
    close(entropy(moved) - entropy(logits), -0.003274)
    close(-0.01 * apply_score(logits), -0.003267)


def apply_score(logits):
    log_p = logits.log_softmax(-1)
    return discriminator(log_p[0], -(log_p.exp() * log_p).sum())


def test_aepo_standardises_with_the_sample_std():
    close(apply("aepo", alpha=1.0, clamp=False).advantages_RT.abs(), [[0.696745, 1.865506, 0.500683], [0.986227, 1.952206, 0]])


@pytest.mark.parametrize(
    ("entropy", "kept"), [(0.3, [0, 1, 1]), (0.55, [1, 1, 1]), (0.9, [1, 0, 1]), (0.5, [1, 1, 1]), (0.6, [1, 1, 1])]
)
def test_entrocraft_keeps_by_sign(entropy, kept):
    mask = torch.ones(1, 3, dtype=torch.bool)
    turns = build_turns(mask, ["g"], ["a"], [0], [False], torch.tensor([1.0]))
    result = entrocraft(torch.tensor([[1.0, -1.0, 0.0]]), turns, entropy=entropy, low=0.5, high=0.6)
    assert result.mask_RT.int().tolist() == [kept]


@pytest.mark.parametrize(("entropy", "expected"), [(0.3, [0, -1]), (0.9, [1, 0]), (0.55, [0.7, -0.7])])
def test_entrocraft_switch_uses_raw_rewards_outside_the_range(entropy, expected):
    mask = torch.ones(2, 1, dtype=torch.bool)
    turns = build_turns(mask, ["g", "g"], ["a", "b"], [0, 0], [False] * 2, torch.tensor([1.0, -1.0]))
    result = entrocraft_switch(torch.tensor([[0.7], [-0.7]]), turns, entropy=entropy, low=0.5, high=0.6)
    close(result.advantages_RT, [[expected[0]], [expected[1]]])


def test_entrocraft_switch_refuses_other_rewards():
    f = fixture_f()
    with pytest.raises(ValueError, match=r"\+1 or -1, got 0\.0"):
        entrocraft_switch(f.advantages_RT, f.turns, entropy=0.3, low=0.5, high=0.6)


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({"schedule": "linear", "start": (0.6, 0.7), "end": (0.4, 0.5)}, 50, (0.5, 0.6)),
        ({"schedule": "cosine", "start": (0.6, 0.7), "end": (0.1, 0.2)}, 25, (0.526777, 0.626777)),
        ({"schedule": "fixed", "start": (0.6, 0.7)}, 50, (0.6, 0.7)),
        ({"schedule": "linear"}, 0, (0.6, 0.7)),
        ({"schedule": "cosine"}, 100, (0.1, 0.2)),
        ({"schedule": "linear"}, 130, (0.1, 0.2)),
    ],
)
def test_entrocraft_schedules(settings, step, expected):
    assert entropy_range(step, 100, **settings) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "settings", "expected"),
    [
        ([1, 0], {}, [0.707106, -0.707106]),
        ([1, 1, 0, 1], {}, [0.499999, 0.499999, -1.499997, 0.499999]),
        ([1, 0], {"norm": "mean"}, [0.5, -0.5]),
        ([7], {}, [0.0]),
        ([7], {"singleton": "raw"}, [7 / (1 + 1e-6)]),
        ([0.1] * 6, {}, [0.0] * 6),
    ],
)
def test_group_norm(scores, settings, expected):
    n = len(scores)
    mask = torch.ones(n, 1, dtype=torch.bool)
    turns = build_turns(mask, ["g"] * n, list(range(n)), [0] * n, [False] * n, torch.tensor(scores).float())
    close(group_norm(turns, **settings)[0], expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"statistics": "row", "norm": "mean"}, [4, 4, 4, -6, -6]),
        ({"statistics": "row"}, [0.730297] * 3 + [-1.095445] * 2),
        ({"statistics": "trajectory", "norm": "mean"}, [5, 5, 5, -5, -5]),
        ({"statistics": "trajectory"}, [0.707107] * 3 + [-0.707107] * 2),
    ],
)
def test_group_norm_over_rows_or_trajectories(settings, expected):
    mask = torch.ones(5, 1, dtype=torch.bool)
    turns = build_turns(mask, ["g"] * 5, list("aaabb"), [0, 1, 2, 0, 1], [False] * 5, torch.tensor([10.0, 10, 10, 0, 0]))
    close(group_norm(turns, **settings)[0], expected)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: apply("repo_r", center="mean"), "center"),
        (lambda: apply("repo_d", scope="row"), "scope"),
        (lambda: apply("ea", alpha=-1.0), "alpha"),
        (lambda: apply("ea", kappa=0.5), "kappa"),
        (lambda: apply("clip_b", mu=-1.0), "mu"),
        (lambda: apply("clip_v", mu=math.nan), "mu"),
        (lambda: apply("clip_v", max_frac=2.0), "max_frac"),
        (lambda: entropy_range(1, 10, schedule="log"), "schedule"),
        (lambda: entropy_range(1, 10, start=(1.0, 0.5)), "start"),
        (lambda: entropy_range(1, 0), "total_steps"),
        (lambda: repo_r(*vars_without_entropy()), "entropy"),
    ],
)
def test_wrong_settings_are_refused(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def vars_without_entropy():
    f = fixture_f()
    return f.advantages_RT, f.turns, f.log_prob_RT


def one_token(advantage, log_prob, entropy):
    turns = build_turns(torch.ones(1, 1).bool(), ["p"], ["p_0"], [0], [False], torch.zeros(1))
    return (torch.tensor([[advantage]]), turns, torch.tensor([[log_prob]]), torch.tensor([[entropy]]))


def test_a_negative_zeta_punishes_a_rare_correct_token_unless_the_sign_is_kept():
    token = one_token(1.0, -12.5, 0.5)  # L = -12
    close(repo_r(*token, zeta=-0.1).advantages_RT, [[-0.2]])
    close(repo_r(*token, zeta=-0.1, keep_sign=True).advantages_RT, [[0.0]])


def test_repo_d_of_a_token_flips_its_advantage_at_the_upper_bound_of_zeta():
    p = 0.2
    token = one_token(1.0, math.log(p), -math.log(p) - 1.0)  # L = -1
    close(repo_d(*token, zeta=10.0, scope="per_token").advantages_RT, [[-1.0]])
    close(repo_d(*token, zeta=1.0, scope="per_token").advantages_RT, [[0.8]])


def test_entropic_weighs_the_signs():
    """1 - .25 for positive and 1 + .25 for negative advantages; with min_prob=.5 at tokens of log-probability -.1 and not at -2."""
    mask_RT = torch.ones(2, 2, dtype=torch.bool)
    turns = build_turns(
        mask_RT,
        group_R=["a", "a"],
        trajectory_R=["0", "1"],
        position_R=[0, 0],
        padding_R=[False, False],
        score_R=torch.tensor([1.0, 0.0]),
    )
    advantages_RT = torch.tensor([[2.0, 2.0], [-1.0, -1.0]])
    log_prob_RT = torch.tensor([[-0.1, -2.0], [-0.1, -2.0]])
    every = entropic(advantages_RT, turns, log_prob_RT, alpha=0.25).advantages_RT
    likely = entropic(advantages_RT, turns, log_prob_RT, alpha=0.25, min_prob=0.5).advantages_RT
    close(every, [[1.5, 1.5], [-1.25, -1.25]])
    close(likely, [[1.5, 2.0], [-1.25, -1.0]])
