# SPDX-License-Identifier: Apache-2.0
"""Where we restate something of verl it is verl's, bit for bit; and what we leave to verl has the papers' numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from math_batches import fixture_f, random_batch
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig, PolicyLossConfig

from verl_entropy.batch.turns import build_turns
from verl_entropy.hosts.common import loss_side
from verl_entropy.methods.common.gspo import gspo
from verl_entropy.methods.common.ppo_clip import ppo_clip
from verl_entropy.methods.estimators.group_norm import group_norm


def actor(**settings):
    policy_loss = PolicyLossConfig(**settings.pop("policy_loss", {}))
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss, **settings)


def theirs(name, b, log_prob, mode="token-mean", **settings):
    loss = core_algos.get_policy_loss_fn(name)
    return loss(b.old_log_prob_RT, log_prob, b.advantages_RT.clone(), b.mask_RT.float(), mode, actor(**settings))[0]


def ours(loss, b, log_prob, mode="token-mean", **settings):
    loss_RT, _ = loss(log_prob, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, **settings)
    return core_algos.agg_loss(loss_RT, b.mask_RT.float(), mode)


def assert_same(a, b, log_prob):
    assert torch.equal(a, b)
    assert torch.equal(*(torch.autograd.grad(x, log_prob)[0] for x in (a, b)))


@pytest.mark.parametrize(("low", "high", "c"), [(0.2, 0.2, 3.0), (0.2, 0.28, 10.0), (0.05, 0.1, 1.1)])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_ppo_clip_is_verls_vanilla(low, high, c, mode):
    b = random_batch(21)
    log_prob = b.log_prob_RT.requires_grad_()
    expected = theirs("vanilla", b, log_prob, mode, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=c)
    assert_same(ours(ppo_clip, b, log_prob, mode, eps_low=low, eps_high=high, dual_clip=c), expected, log_prob)


@pytest.mark.parametrize("c", [1.1, 3.0])
def test_a_loss_of_ours_logs_what_verls_vanilla_logs(c):
    b = random_batch(21)
    bounds = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": c}
    vanilla = core_algos.get_policy_loss_fn("vanilla")
    _, expected = vanilla(b.old_log_prob_RT, b.log_prob_RT, b.advantages_RT, b.mask_RT.float(), "token-mean", actor(**bounds))
    _, parts = ppo_clip(b.log_prob_RT, b.old_log_prob_RT, b.advantages_RT, b.mask_RT, eps_low=0.05, eps_high=0.1, dual_clip=c)
    found = loss_side.verls_metrics(parts, b.mask_RT)
    assert {k: float(v) for k, v in found.items()} == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert expected["actor/pg_clipfrac"] > 0 and (c > 2 or expected["actor/pg_clipfrac_lower"] > 0)
    assert loss_side.verls_metrics({"weight": parts["ppo_kl"]}, b.mask_RT) == {}  # a loss from outside may report other parts
    assert not any(v.item() for v in loss_side.verls_metrics(parts, torch.zeros_like(b.mask_RT)).values())


@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.1, 0.2)])
def test_gspo_is_verls(low, high):
    b = random_batch(22, one_row=True)
    log_prob = b.log_prob_RT.requires_grad_()
    expected = theirs("gspo", b, log_prob, "seq-mean-token-mean", clip_ratio_low=low, clip_ratio_high=high)
    assert_same(ours(gspo, b, log_prob, "seq-mean-token-mean", eps_low=low, eps_high=high), expected, log_prob)


@pytest.mark.parametrize("norm", ["mean_std", "mean"])
def test_group_norm_is_verls_grpo(norm):
    generator = torch.Generator().manual_seed(0)
    score = torch.rand(24, generator=generator)
    uid = np.array([str(i) for i in torch.randint(6, (24,), generator=generator).tolist()], dtype=object)
    mask = torch.ones(24, 1)
    expected, _ = core_algos.compute_grpo_outcome_advantage(
        score[:, None].clone(), mask, uid, norm_adv_by_std_in_grpo=norm == "mean_std"
    )
    turns = build_turns(mask, uid.tolist(), list(range(24)), [0] * 24, [False] * 24, score)
    actual, _ = group_norm(turns, norm=norm, singleton="raw")
    # fp64 statistics here, fp32 there.
    torch.testing.assert_close(actual, expected[:, 0], atol=2e-6, rtol=2e-6)


def test_verls_clip_cov_and_kl_cov_have_the_known_numbers():
    f = fixture_f()
    args = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    clip_cov = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.0, "clip_cov_ub": 10.0}
    kl_cov = {"kl_cov_ratio": 0.4, "ppo_kl_coef": 1.0}
    assert float(theirs("clip_cov", f, f.log_prob_RT, policy_loss=clip_cov, **args)) == pytest.approx(-0.270246, abs=1e-6)
    assert float(theirs("kl_cov", f, f.log_prob_RT, policy_loss=kl_cov, **args)) == pytest.approx(-0.257451, abs=1e-6)


def test_verls_kl_cov_is_plain_policy_gradient_on_the_first_mini_batch():
    """The penalty |log ratio| has no gradient at ratio 1, so KL-Cov does nothing before the policy has moved."""
    b = random_batch(23)
    log_prob = b.old_log_prob_RT.clone().requires_grad_()
    loss = theirs("kl_cov", b, log_prob, policy_loss={"kl_cov_ratio": 0.5, "ppo_kl_coef": 1.0})
    (grad,) = torch.autograd.grad(loss, log_prob)
    torch.testing.assert_close(grad, -b.advantages_RT * b.mask_RT / b.mask_RT.sum())
