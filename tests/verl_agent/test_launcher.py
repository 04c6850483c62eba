# SPDX-License-Identifier: Apache-2.0
"""Arguments, checks and banner of ``python -m verl_entropy.verl_agent``: no verl-agent is needed for them."""

from __future__ import annotations

import pytest
from agent_config import agent_config

from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.verl_agent import __main__ as launcher
from verl_entropy.hosts.verl_agent import settings


def test_own_arguments_are_taken_out_and_hydra_gets_the_rest():
    argv = ["algorithm.gamma=1", "--check", "+entropy=[aem,epo]", "--allow-changed=fit,update_policy", "--cfg", "job"]
    assert launcher.split_arguments(argv) == (
        True,
        ["fit", "update_policy"],
        ["algorithm.gamma=1", "+entropy=[aem,epo]", "--cfg", "job"],
    )
    with pytest.raises(ConfigError, match="names are missing"):
        launcher.split_arguments(["--allow-changed"])


def test_configuration_folder_is_named_unless_the_user_names_one(tmp_path):
    assert launcher.with_config_path(["a=1"], tmp_path) == [f"--config-path={tmp_path}", "a=1"]
    assert launcher.with_config_path(["--config-path=/x", "a=1"], tmp_path) == ["--config-path=/x", "a=1"]


def test_nothing_chosen_leaves_the_configuration_alone_and_shows_the_hidden_bonus():
    config = agent_config(overrides=["algorithm.adv_estimator=gigpo"])
    before = config.copy()
    assert settings.prepare(config) is None
    assert config == before
    lines = settings.banner(None, config, [], [])
    assert "effective entropy_coeff 0.001 (a default of verl-agent" in lines[0]
    assert "runs as it is" in lines[1]


@pytest.mark.parametrize(
    ("presets", "overrides", "sees", "base", "over"),
    [
        (["aem"], [], ("grpo", "vanilla"), "grpo: verl-agent's own", "rows, one per turn"),
        (["aem"], ["algorithm.adv_estimator=gigpo"], ("gigpo", "vanilla"), "gigpo: verl-agent's own", "rows, one per turn"),
        (["gigpo"], [], ("grpo", "vanilla"), "gigpo: verl-entropy's", "trajectories"),
        (
            ["gigpo"],
            ["algorithm.entropy.gigpo.statistics=row"],
            ("grpo", "vanilla"),
            "gigpo: verl-entropy's",
            "rows, one per turn",
        ),
        (["steer"], ["algorithm.adv_estimator=gae"], ("gae", "vanilla"), "gae: verl-agent's own", None),
        (["gspo_repo_r"], [], ("grpo", "gspo"), "loop: verl-entropy's", "trajectories"),
        (["seal", "epo", "loop"], [], ("grpo", "vanilla"), "loop: verl-entropy's", "trajectories"),
    ],
)
def test_verl_agent_sees_names_of_its_own_and_workers_find_the_plan(presets, overrides, sees, base, over):
    config = agent_config(presets, overrides)
    chosen = settings.prepare(config)
    actor = config.actor_rollout_ref.actor
    assert (config.algorithm.adv_estimator, actor.policy_loss.loss_mode) == sees
    assert settings.plan_of(actor) == chosen
    lines = settings.banner(chosen, config, [], ["order self-check of entropy: ok"])
    assert f"base {base}" in lines[1] and (f"group statistics over {over}" if over else "no group statistics") in lines[1]
    assert lines[-1] == "order self-check of entropy: ok"
    assert any(line.startswith(f"advantages: {chosen.base}") for line in lines)


def test_banner_tells_a_set_coefficient_and_an_owner():
    config = agent_config(["aem"], ["actor_rollout_ref.actor.entropy_coeff=0.01"])
    chosen = settings.prepare(config)
    assert "default" not in settings.banner(chosen, config, ["actor_rollout_ref.actor.entropy_coeff=0.01"], [])[0]
    config = agent_config(["epo"])
    assert "effective entropy_coeff 0, entropy term owned by epo" in settings.banner(settings.prepare(config), config, [], [])[0]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("actor_rollout_ref.actor.strategy=megatron", "Megatron"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "part of every sequence"),
        ("actor_rollout_ref.ref.ulysses_sequence_parallel_size=2", "part of every sequence"),
        ("actor_rollout_ref.model.use_fused_kernels=true", "dense_common"),
        ("actor_rollout_ref.rollout.multi_turn.enable=true", "env.max_steps"),
        ("env.rollout.n=1", "env.rollout.n=8"),
        ("algorithm.use_pf_ppo=true", "doubled"),
        ("reward_model.enable=true", "reward model"),
        ("algorithm.entropy.rollout=branching", "aepo_update is the part without its rollout"),
        ("algorithm.adv_estimator=gipgo", "Known: aem"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=cispo", "Known: adapo"),
        ("actor_rollout_ref.actor.entropy_coeff=0.001", "two would add up"),
        ("algorithm.entropy.aem.temperatur=2", "Did you mean"),
        ("actor_rollout_ref.model.lora_rank=8", "LoRA"),
    ],
)
def test_what_cannot_work_is_refused_with_the_key_and_the_reason(override, reason):
    config = agent_config(["aem", "epo", "seal"], [override])
    with pytest.raises(ConfigError) as refused:
        settings.prepare(config)
    assert reason in str(refused.value)
    assert override.split("=")[0].split(".")[-1] in str(refused.value)


def test_a_slip_in_a_key_or_a_preset_is_refused():
    from types import SimpleNamespace

    config = agent_config(["aem"], ["+entropi=[aem]"])
    start = launcher.run_with(SimpleNamespace(run_ppo=None), True, [])
    with pytest.raises(SystemExit, match="Write entropy"):
        start(config)
    from verl_entropy.config import compose

    with pytest.raises(ConfigError, match="Did you mean aem"):
        compose.check_group("+entropy=[aeem]")
