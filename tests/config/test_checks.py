# SPDX-License-Identifier: Apache-2.0
"""Combinations that would fail late or do nothing are refused before Ray starts."""

import copy

import pytest

from verl_entropy import checks, plan
from verl_entropy.config import ConfigError

BASE = {
    "algorithm": {"adv_estimator": "gigpo", "entropy": {"presets": {"gigpo": True, "aem": True}}},
    "trainer": {"use_v1": True},
    "actor_rollout_ref": {
        "actor": {
            "strategy": "fsdp2",
            "entropy_coeff": 0,
            "policy_loss": {"loss_mode": "vanilla", "regularizer": "epo", "epo": {}},
            "seal": {"alpha": 0.02},
            "fsdp_config": {"ulysses_sequence_parallel_size": 1},
        },
        "rollout": {"n": 8},
        "model": {"lora_rank": 0, "use_fused_kernels": False},
    },
}


def _set(raw, path, value):
    *parents, last = path.split(".")
    node = raw
    for part in parents:
        node = node.setdefault(part, {})
    node[last] = value


def test_a_sound_configuration_passes():
    checks.check(plan.read(BASE), BASE)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("trainer.use_v1", False, "trainer.use_v1=True"),
        ("actor_rollout_ref.actor.strategy", "megatron", "strategy=fsdp2"),
        ("algorithm.rollout_correction", {"bypass_mode": True}, "bypass_mode=False"),
        ("actor_rollout_ref.rollout.n", 1, "rollout.n=8"),
        ("actor_rollout_ref.actor.entropy_coeff", 0.001, "entropy_coeff=0"),
        ("actor_rollout_ref.model.use_fused_kernels", True, "use_fused_kernels=False"),
        ("actor_rollout_ref.model.lora_rank", 16, "lora_rank=0"),
        ("actor_rollout_ref.model.lora", {"rank": 16}, "lora_rank=0"),
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", 2, "Set it to 1"),
        ("distillation.enabled", True, "distillation"),
        ("algorithm.entropy.presets", {"gigpo": True, "loop": True}, "both set the estimator"),
    ],
)
def test_refused_with_the_fix(path, value, says):
    raw = copy.deepcopy(BASE)
    _set(raw, path, value)
    with pytest.raises(ConfigError, match=says):
        checks.check(plan.read(raw), raw)


def test_a_group_of_one_is_refused_for_verls_own_group_base():
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "grpo", "entropy": {}}
    raw["actor_rollout_ref"]["rollout"]["n"] = 1
    with pytest.raises(ConfigError, match="grpo"):
        checks.check(plan.read(raw), raw)


def test_a_foreign_engine_is_refused(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "other")
    with pytest.raises(ConfigError, match="VERL_ENGINE_VENDOR=other"):
        checks.check(plan.read(BASE), BASE)
