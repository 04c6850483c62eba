# SPDX-License-Identifier: Apache-2.0
"""Vectorised transforms and losses equal slow ones written token by token from the formulas, on random ragged batches."""

from __future__ import annotations

import math
from statistics import fmean, pstdev, stdev

import pytest
import torch
from math_batches import Batch, random_batch
from slow_metrics import clip_fractions
from torch.testing import assert_close

from verl_entropy.methods.common.gspo import gspo
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.losses.aepo import aepo as aepo_loss
from verl_entropy.methods.losses.steer import steer
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

SEEDS = [(0, False), (1, False), (2, True)]
BATCHES = pytest.mark.parametrize(("seed", "one_row"), SEEDS)


def tokens(b: Batch) -> list[dict]:
    """Every valid token with its numbers as Python floats."""
    out = []
    for r, t in b.mask_RT.nonzero().tolist():
        turn = int(b.turns.turn_RT[r, t])
        out.append(
            {
                "at": (r, t),
                "group": int(b.turns.group_K[turn]),
                "a": float(b.advantages_RT[r, t]),
                "lp": float(b.log_prob_RT[r, t]),
                "old": float(b.old_log_prob_RT[r, t]),
                "h": float(b.entropy_RT[r, t]),
                "n": float(b.centre_RT[r, t]),
            }
        )
    return out


def matrix(b: Batch, values: list[float]) -> torch.Tensor:
    out = torch.zeros(b.mask_RT.shape)
    for token, value in zip(tokens(b), values, strict=True):
        out[token["at"]] = value
    return out


def centred(rows: list[dict], center: str) -> list[float]:
    if center == "exact":
        return [x["lp"] + x["h"] for x in rows]
    if center == "batch_mean":
        return [x["lp"] - fmean(y["lp"] for y in rows) for x in rows]
    return [x["lp"] - fmean(y["lp"] for y in rows if y["group"] == x["group"]) for x in rows]


@BATCHES
@pytest.mark.parametrize("center", ["exact", "batch_mean", "group_mean"])
@pytest.mark.parametrize("zeta", [0.3, -0.3])
@pytest.mark.parametrize("keep_sign", [False, True])
def test_repo_r(seed, one_row, center, zeta, keep_sign):
    b = random_batch(seed, one_row=one_row)
    rows = tokens(b)
    expected = [x["a"] * (1 - zeta * m) if x["a"] > 0 else x["a"] for x, m in zip(rows, centred(rows, center), strict=True)]
    if keep_sign:
        expected = [max(e, 0.0) if x["a"] > 0 else e for e, x in zip(expected, rows, strict=True)]
    result = repo_r(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, zeta=zeta, center=center, keep_sign=keep_sign)
    assert_close(result.advantages_RT, matrix(b, expected), atol=3e-6, rtol=3e-6)


@BATCHES
@pytest.mark.parametrize("center", ["exact", "group_mean"])
@pytest.mark.parametrize("scope", ["batch", "group", "per_token"])
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_repo_d(seed, one_row, center, scope, clamp, skip):
    b = random_batch(seed, one_row=one_row)
    if skip:
        zero_RT = b.turns.to_tokens((b.turns.group_K == 1).float()).bool()
        b.advantages_RT[zero_RT] = 0.0
    rows = tokens(b)
    centre = centred(rows, center)
    for x, m in zip(rows, centre, strict=True):
        x["alp"] = x["a"] * m * math.exp(x["lp"])
    active = {x["group"] for x in rows if x["a"] != 0} if skip and scope != "per_token" else {x["group"] for x in rows}

    def beta(x):
        if x["group"] not in active:
            return 0.0
        members = [x] if scope == "per_token" else [y for y in rows if y["group"] in active]
        members = [y for y in members if y["group"] == x["group"]] if scope == "group" else members
        value = 1.5 * fmean(y["alp"] for y in members)
        return max(value, 0.0) if clamp else value

    expected = [x["a"] - beta(x) * m for x, m in zip(rows, centre, strict=True)]
    settings = {"zeta": 1.5, "center": center, "scope": scope, "clamp": clamp, "skip_zero_groups": skip}
    result = repo_d(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, **settings)
    assert_close(result.advantages_RT, matrix(b, expected), atol=3e-6, rtol=3e-6)


@BATCHES
def test_ea_and_aepo(seed, one_row):
    b = random_batch(seed, one_row=one_row)
    rows = tokens(b)
    shaped = [x["a"] + min(0.4 * x["h"], abs(x["a"]) / 2) for x in rows]
    assert_close(ea(b.advantages_RT, b.turns, b.entropy_RT).advantages_RT, matrix(b, shaped), atol=1e-6, rtol=1e-6)
    mean, std = fmean(x["h"] for x in rows), stdev(x["h"] for x in rows)
    for alpha, clamp in ((0.2, True), (1.5, True), (1.5, False)):
        factor = [1 + alpha * (x["h"] - mean) / std for x in rows]
        scaled = [x["a"] * (max(f, 0.0) if clamp else f) for x, f in zip(rows, factor, strict=True)]
        result = aepo(b.advantages_RT, b.turns, b.entropy_RT, alpha=alpha, clamp=clamp)
        assert_close(result.advantages_RT, matrix(b, scaled), atol=1e-5, rtol=1e-5)


def keep_reference(rows, distance, outside, max_frac, limited):
    """Kept flags: tokens that are ``outside`` go, but of the ``limited`` ones only the worst if there are too many."""
    drop = [i for i in range(len(rows)) if outside[i]]
    if max_frac is not None and len(drop) > max_frac * len(rows):
        limit = max(int(max_frac * len(rows)), 1)
        worst = sorted((i for i in drop if limited[i]), key=lambda i: -distance[i])[:limit]
        drop = worst + [i for i in drop if not limited[i]]
    return [i not in set(drop) for i in range(len(rows))]


@BATCHES
@pytest.mark.parametrize("mu", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("max_frac", [None, 0.0, 0.05])
def test_clip_b_and_clip_v(seed, one_row, mu, two_sided, max_frac):
    b = random_batch(seed, one_row=one_row)
    rows = tokens(b)
    score = [math.exp(x["lp"]) * (x["lp"] + x["h"]) for x in rows]
    centre, limit = fmean(score), mu * pstdev(score)
    far = [abs(s - centre) > limit for s in score]
    low = [s - centre < -limit and x["a"] < 0 for s, x in zip(score, rows, strict=True)]
    expected = keep_reference(rows, [abs(s - centre) for s in score], far if two_sided else low, max_frac, [True] * len(rows))
    settings = {"mu": mu, "two_sided": two_sided, "max_frac": max_frac}
    kept = clip_b(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, **settings).mask_RT
    assert torch.equal(kept, matrix(b, expected).bool())

    distance = [x["n"] - s for x, s in zip(rows, score, strict=True)]
    limit = mu * pstdev(distance)
    far = [abs(d) > limit for d in distance]
    high = [d > limit and x["a"] <= 0 for d, x in zip(distance, rows, strict=True)]
    limited = [two_sided or x["a"] < 0 for x in rows]
    expected = keep_reference(rows, [abs(d) for d in distance], far if two_sided else high, max_frac, limited)
    kept = clip_v(b.advantages_RT, b.turns, b.log_prob_RT, b.entropy_RT, b.centre_RT, **settings).mask_RT
    assert torch.equal(kept, matrix(b, expected).bool())


@BATCHES
@pytest.mark.parametrize("entropy", [0.2, 0.5, 0.9])
def test_entrocraft(seed, one_row, entropy):
    b = random_batch(seed, one_row=one_row)
    side = (entropy > 0.6) - (entropy < 0.4)
    expected = matrix(b, [side * x["a"] >= 0 for x in tokens(b)]).bool()
    assert torch.equal(entrocraft(b.advantages_RT, b.turns, entropy=entropy, low=0.4, high=0.6).mask_RT, expected)


@BATCHES
@pytest.mark.parametrize("statistics", ["trajectory", "row"])
@pytest.mark.parametrize("norm", ["mean", "mean_std"])
@pytest.mark.parametrize("singleton", ["zero", "raw"])
def test_group_norm(seed, one_row, statistics, norm, singleton):
    turns = random_batch(seed, one_row=one_row).turns
    score, group = turns.score_J.tolist(), turns.group_J.tolist()
    trajectories = range(len(score)) if statistics == "trajectory" else turns.trajectory_K.tolist()
    expected = []
    for j in turns.trajectory_K.tolist():
        members = [score[i] for i in trajectories if group[i] == group[j]]
        spread = stdev(members) + 1e-6 if norm == "mean_std" and len(members) > 1 else 1.0
        value = (score[j] - fmean(members)) / spread
        if len(members) == 1 and singleton == "raw":
            value = score[j] / (1 + 1e-6) if norm == "mean_std" else score[j]
        expected.append(value)
    actual, _ = group_norm(turns, statistics=statistics, norm=norm, singleton=singleton)
    assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=1e-6)


def python_ppo(x, low, high, c):
    ratio = math.exp(max(-20.0, min(20.0, x["lp"] - x["old"])))
    loss = max(-x["a"] * ratio, -x["a"] * min(max(ratio, 1 - low), 1 + high))
    return min(loss, -x["a"] * c) if c is not None and x["a"] < 0 else loss


@BATCHES
@pytest.mark.parametrize(("low", "high", "c"), [(0.2, 0.28, None), (0.1, 0.1, 1.2), (0.2, 0.2, 3.0)])
def test_clipped_losses(seed, one_row, low, high, c):
    b = random_batch(seed, one_row=one_row)
    args = (b.log_prob_RT, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT)
    settings = {"eps_low": low, "eps_high": high, "dual_clip": c}
    expected = matrix(b, [python_ppo(x, low, high, c) for x in tokens(b)])
    ratios = [(math.exp(x["lp"] - x["old"]), x["a"]) for x in tokens(b)]
    info = {
        "clipfrac_high": [ratio > 1 + high and a > 0 for ratio, a in ratios],
        "clipfrac_low": [ratio < 1 - low and a < 0 for ratio, a in ratios],
        "clipfrac_dual": [c is not None and ratio > c and a < 0 for ratio, a in ratios],
    }
    for loss in (ppo_clip, aepo_loss):
        actual, metrics = loss(*args, **settings)
        assert_close(actual, expected, atol=2e-6, rtol=2e-6)
        assert all(torch.equal(metrics[name], matrix(b, info[name])) for name in metrics if name != "ppo_kl")
    shares = clip_fractions(*args[:4], eps_low=low, eps_high=high)
    assert [float(x) for x in shares] == pytest.approx([fmean(info["clipfrac_high"]), fmean(info["clipfrac_low"])])


@BATCHES
@pytest.mark.parametrize("mode", ["exp", "linear"])
def test_steer(seed, one_row, mode):
    b = random_batch(seed, one_row=one_row)
    rows = tokens(b)
    omega = []
    for x in rows:
        p = math.exp(x["lp"])
        omega.append(abs(x["a"] / min(math.exp(x["old"]), 1.0) * p * (1 - p) * (x["lp"] + x["h"])))
    low, high = min(omega), max(omega)
    if mode == "exp":
        weight = [max(math.exp(math.log(0.8) / max(high, 0.02) * o), 0.8) for o in omega]
    else:
        weight = [1.2 - (o - low) * 0.4 / (high - low) for o in omega]
    expected = [w * python_ppo(x, 0.2, 0.28, 10.0) for w, x in zip(weight, rows, strict=True)]
    loss, info = steer(b.log_prob_RT, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, b.entropy_RT, mode=mode)
    assert_close(info["steer_weight"], matrix(b, weight), atol=1e-5, rtol=1e-5)
    assert_close(loss, matrix(b, expected), atol=1e-5, rtol=1e-5)


@BATCHES
def test_gspo(seed, one_row):
    b = random_batch(seed, one_row=one_row)
    rows = tokens(b)
    expected = []
    for x in rows:
        s = math.exp(fmean(y["lp"] - y["old"] for y in rows if y["at"][0] == x["at"][0]))
        expected.append(max(-x["a"] * s, -x["a"] * min(max(s, 1 - 0.01), 1 + 0.02)))
    loss, _ = gspo(b.log_prob_RT, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, eps_low=0.01, eps_high=0.02)
    assert_close(loss, matrix(b, expected), atol=2e-6, rtol=2e-6)
