# SPDX-License-Identifier: Apache-2.0
"""A method that asks its context for a tensor which this run does not have stops with the setting to change."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from verl_entropy.methods import contract, registry
from verl_entropy.methods.context import LossContext

ENTROPY_TRANSFORMS = [
    n for n in registry.names("transform") if n in {"aem", "aepo", "clip_b", "clip_v", "ea", "repo_d", "repo_r"}
]


def loss_context(entropy_RT):
    mask_RT = torch.ones(2, 3, dtype=torch.bool)
    return LossContext(
        plan=None,
        micro_batch={},
        model_output={},
        entropy_RT=entropy_RT,
        mask_RT=mask_RT,
        loss_mask_RT=mask_RT,
        num_tokens=6,
        num_rows=2,
        dp_size=1,
        info={"entropy_bonus": {"coef": 0.1}},
    )


def test_the_tensors_come_back_as_they_are():
    ctx = contract.draw().context()
    assert ctx.entropies() is ctx.entropy_RT
    assert ctx.log_probs() is ctx.old_log_probs_RT
    entropy_RT = torch.rand(2, 3)
    assert loss_context(entropy_RT).entropies() is entropy_RT


def test_bypass_mode_is_named_where_the_old_pass_is_missing():
    ctx = dataclasses.replace(contract.draw().context(), entropy_RT=None, old_log_probs_RT=None)
    with pytest.raises(RuntimeError, match=r"no entropy of the old-log-prob pass.*rollout_correction\.bypass_mode=False"):
        ctx.entropies()
    with pytest.raises(
        RuntimeError, match=r"no log-probabilities of the old-log-prob pass.*rollout_correction\.bypass_mode=False"
    ):
        ctx.log_probs()


def test_calculate_entropy_is_named_where_the_update_has_no_entropy():
    with pytest.raises(RuntimeError, match=r"no entropy with gradient.*actor\.calculate_entropy=true"):
        loss_context(None).entropies()


@pytest.mark.parametrize("name", ENTROPY_TRANSFORMS)
def test_a_transform_without_the_entropy_names_the_setting(name):
    method, batch = registry.get("transform", name), contract.draw()
    ctx = dataclasses.replace(batch.context(), entropy_RT=None)
    ctx.info = {name: {"zeta": 0.1}}
    ctx.fields["vocab_centre"] = torch.zeros_like(batch.entropy())
    with pytest.raises(RuntimeError, match=r"bypass_mode=False"):
        method.apply(ctx, batch.advantages_RT, method.settings())


def test_a_regularizer_without_the_entropy_names_the_setting():
    method = registry.get("regularizer", "entropy_bonus")
    with pytest.raises(RuntimeError, match=r"calculate_entropy=true"):
        method.apply(loss_context(None), method.settings())
