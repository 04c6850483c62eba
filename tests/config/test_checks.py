# SPDX-License-Identifier: Apache-2.0
"""Combinations that would fail late or do nothing are refused before Ray starts."""

import copy

import pytest

from verl_entropy.config import checks, plan, startup
from verl_entropy.config.settings import ConfigError

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
        ("trainer", {"use_legacy_worker_impl": "auto"}, "trainer.use_legacy_worker_impl=disable"),
        ("trainer", {"data_plane": "neoproto"}, "trainer.data_plane=classic"),
        ("trainer", {"use_neoproto": True}, "trainer.data_plane=classic"),
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
        ("actor_rollout_ref.actor.policy_loss.epo", {"kappa_low": 3.0}, "kappa_low=3.0: above kappa_high=2.0"),
    ],
)
def test_refused_with_the_fix(path, value, says):
    raw = copy.deepcopy(BASE)
    _set(raw, path, value)
    with pytest.raises(ConfigError, match=says):
        checks.check(plan.read(raw), raw)


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan", "of_mine"])
@pytest.mark.parametrize(
    ("entropy", "policy_loss", "says"),
    [
        ({"presets": {"gigpo": True, "aem": True, "repo_d": True}}, {}, None),
        ({"presets": {"gigpo": True}, "transforms": ["aem"], "aem": {"sign_mask": "positive"}}, {}, None),
        ({"presets": {"gigpo": True}, "equal_returns": "drop"}, {"loss_mode": "steer", "clip_controller": "adapo"}, None),
        ({"equal_returns": "drop_by_success"}, {}, None),
        ({"presets": {"gigpo": True}}, {"regularizer": "epo"}, "epo needs entropy with its gradient"),
        ({"presets": {"gigpo": True}}, {"regularizer": "siren"}, "siren needs a log-prob pass of verl-entropy's"),
        ({"presets": {"gigpo": True}, "log_probs": "chunked"}, {}, "algorithm.entropy.log_probs=chunked needs a log-prob pass"),
    ],
)
def test_another_engine_trains_what_needs_no_adapter(engine, entropy, policy_loss, says):
    """Columns, counts and the entropy of the old-log-prob pass are there with every engine; a refusal names method, need and engine."""
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "gigpo", "entropy": entropy}
    raw["actor_rollout_ref"]["actor"] = {"strategy": engine, "entropy_coeff": 0.0, "policy_loss": policy_loss}
    if says is None:
        checks.check(plan.read(raw), raw)
        return
    with pytest.raises(ConfigError, match=f"actor_rollout_ref.actor.strategy={engine}: {says}.*with fsdp and fsdp2 only"):
        checks.check(plan.read(raw), raw)


def test_counts_over_ranks_that_hold_the_same_rows_are_refused():
    raw = copy.deepcopy(BASE)
    raw["actor_rollout_ref"]["actor"] = {"strategy": "megatron", "megatron": {"dynamic_context_parallel": True}}
    checks.check(plan.read(raw), raw)
    raw["actor_rollout_ref"]["actor"]["policy_loss"] = {"loss_mode": "steer"}
    with pytest.raises(ConfigError, match="dynamic_context_parallel=True"):
        checks.check(plan.read(raw), raw)


def test_a_group_of_one_is_refused_for_verls_own_group_base():
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "grpo", "entropy": {}}
    raw["actor_rollout_ref"]["rollout"]["n"] = 1
    with pytest.raises(ConfigError, match="grpo"):
        checks.check(plan.read(raw), raw)


def test_a_foreign_engine_is_refused(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "other")
    with pytest.raises(ConfigError, match="VERL_ENGINE_VENDOR=other: epo needs entropy with its gradient"):
        checks.check(plan.read(BASE), BASE)
    raw = copy.deepcopy(BASE)
    raw["actor_rollout_ref"]["actor"] = {"strategy": "fsdp2", "policy_loss": {"loss_mode": "steer"}}
    checks.check(plan.read(raw), raw)


def test_a_foreign_engine_is_refused_where_a_transform_reads_the_logits(monkeypatch):
    """The actor's own mask is put in place before any engine's update."""
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "other")
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "grpo", "entropy": {"log_probs": "verl", "transforms": ["clip_b"]}}
    raw["actor_rollout_ref"]["actor"] |= {"policy_loss": {"loss_mode": "vanilla"}, "seal": None}
    checks.check(plan.read(raw), raw)
    raw["algorithm"]["entropy"] = {"transforms": ["clip_v"]}
    with pytest.raises(ConfigError, match="VERL_ENGINE_VENDOR=other: clip_v needs a log-prob pass"):
        checks.check(plan.read(raw), raw)


@pytest.mark.parametrize(
    ("entropy", "actor", "says"),
    [
        ({"transforms": ["ea"], "ea": {"kappa": 0.5}}, {}, "kappa"),
        ({"transforms": ["entrocraft"], "entrocraft": {"start_low": 0.8}}, {}, "start_low=0.8: above start_high=0.7"),
        ({"transforms": ["repo_d"], "repo_d": {"zeta": 0.0}}, {}, "must start there"),
        ({"transforms": ["repo_r"], "repo_r": {"zeta": 0.5}}, {}, "zeta_max=0.1"),
        ({}, {"regularizer": "entropy_bonus", "entropy_bonus": {"coef": 0.0, "adaptive": True}}, "adaptive=false"),
        ({}, {"clip_controller": "adapo", "adapo": {"eps_high": 0.5}}, "eps_max=0.3"),
        ({}, {"clip_controller": "adapo", "adapo": {}, "loss_mode": "sapo"}, "has no upper clip bound"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_at_start(entropy, actor, says):
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "grpo", "entropy": entropy}
    raw["actor_rollout_ref"]["actor"] |= {"policy_loss": {"loss_mode": "vanilla"} | actor, "seal": None}
    with pytest.raises(ConfigError, match=says):
        checks.check(plan.read(raw), raw)


BRANCHING_SAMPLER = {"n": 8, "name": "vllm", "calculate_log_probs": True, "agent": {"default_agent_loop": "span_env"}}


def _branching(settings=None, **changes):
    raw = copy.deepcopy(BASE)
    raw["algorithm"] = {"adv_estimator": "ppo", "entropy": {"rollout": "branching", "branching": settings or {}}}
    raw["actor_rollout_ref"]["rollout"] = BRANCHING_SAMPLER | changes
    return raw


@pytest.mark.parametrize(
    ("settings", "changes", "says"),
    [
        ({}, {"n": 1}, "rollout.n=1: branching compares rollouts of one prompt"),
        ({}, {"calculate_log_probs": False}, "branching needs. Set actor_rollout_ref.rollout.calculate_log_probs=True"),
        ({"measure": "top10"}, {}, "rollout.name=vllm: .* Set algorithm.entropy.branching.measure=sampled"),
        (
            {},
            {"agent": {"default_agent_loop": "tool_agent"}},
            "default_agent_loop=tool_agent: .* Set default_agent_loop=tool_agent_branching",
        ),
        ({"roots": 0}, {}, "branching.roots=0: must be >= 1"),
    ],
)
def test_a_sampler_that_cannot_branch_is_refused(settings, changes, says):
    checks.check(plan.read(_branching()), _branching())
    raw = _branching(settings, **changes)
    with pytest.raises(ConfigError, match=says):
        checks.check(plan.read(raw), raw)


def test_top_log_probs_of_a_sampler_that_gives_them_pass():
    raw = _branching({"measure": "top10"}, name="hf")
    checks.check(plan.read(raw), raw)


def test_a_rollout_is_chosen_by_its_name_alone():
    raw = _branching()
    raw["algorithm"]["entropy"].pop("rollout")
    raw["algorithm"]["entropy"]["branching"] = {"roots": 3}
    assert plan.read(raw).rollout is None and plan.read(raw).unused == ("algorithm.entropy.branching",)
    raw["algorithm"]["entropy"]["rollout"] = "branchings"
    with pytest.raises(ConfigError, match=r"rollout 'branchings' is unknown. Known: branching"):
        plan.read(raw)


@pytest.mark.parametrize("bonus", [{"coef": 0.0}, {"coef": 1e-3, "adaptive": True}])
def test_a_coefficient_that_nobody_moves_needs_no_bounds(bonus):
    raw = copy.deepcopy(BASE)
    raw["actor_rollout_ref"]["actor"]["policy_loss"] = {
        "loss_mode": "vanilla",
        "regularizer": "entropy_bonus",
        "entropy_bonus": bonus,
    }
    checks.check(plan.read(raw), raw)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "still raises entropy, with 0.8 to 0.9"),
        ({"weight": "constant", "beta_start": 4.0}, "with 0.6 of its pull"),
        ({"penalty": "indicator"}, "has no gradient"),
        ({"smooth_coeff": 2.0}, None),
        ({"weight": "off"}, None),
        ({"entropy_coeff": 0.0}, None),
    ],
)
def test_a_corridor_that_cannot_hold_is_said_at_start(settings, says):
    raw = copy.deepcopy(BASE)
    raw["actor_rollout_ref"]["actor"]["policy_loss"]["epo"] = settings
    found = [text for text in startup.odd(plan.read(raw), raw) if ".epo." in text]
    assert (says is None and not found) or (len(found) == 1 and says in found[0])


@pytest.mark.parametrize("method", ["entrocraft", "entrocraft_switch"])
@pytest.mark.parametrize(("low", "said"), [(0.6, True), (0.1, False)])
def test_a_range_far_above_small_models_is_said_at_start(method, low, said):
    raw = copy.deepcopy(BASE)
    settings = {"start_low": low, "start_high": low + 0.1}
    raw["algorithm"] = {"adv_estimator": "grpo", "entropy": {"transforms": [method], method: settings}}
    raw["actor_rollout_ref"]["actor"] |= {"policy_loss": {"loss_mode": "vanilla"}, "seal": None}
    found = [
        text for text in startup.odd(plan.read(raw), raw) if f"{method}.start_low=0.6: a policy that starts far below" in text
    ]
    assert len(found) == said


@pytest.mark.parametrize(
    ("path", "says"),
    [("distillation.enabled", "distillation"), ("actor_rollout_ref.model.use_fused_kernels", "log_probs=chunked")],
)
def test_what_would_fail_at_the_first_update_is_refused_for_the_advantage_side_alone(path, says):
    raw = copy.deepcopy(BASE)
    raw["algorithm"]["entropy"]["log_probs"] = "chunked"
    raw["actor_rollout_ref"]["actor"] |= {"policy_loss": {"loss_mode": "vanilla"}, "seal": None}
    checks.check(plan.read(raw), raw)
    _set(raw, path, True)
    with pytest.raises(ConfigError, match=says):
        checks.check(plan.read(raw), raw)
