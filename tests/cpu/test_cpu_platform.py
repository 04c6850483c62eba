# SPDX-License-Identifier: Apache-2.0
"""What verl asks of a platform, of its registries and of the command line, answered for the CPU."""

from __future__ import annotations

import pytest
import torch
from hydra import compose, initialize_config_module
from verl.plugin.platform import PlatformRegistry, platform_manager

from verl_entropy.cpu import platform, wiring
from verl_entropy.cpu.launch import cpu_overrides
from verl_entropy.upstream import polling


@pytest.fixture
def cpu(monkeypatch):
    """verl's singleton set to the CPU platform."""
    platform.register()
    chosen = PlatformRegistry.get("cpu")()
    monkeypatch.setattr(platform_manager, "_current_platform", chosen)
    return chosen


def test_only_the_environment_variable_chooses_the_cpu(monkeypatch):
    platform.register()
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    assert platform_manager._detect_platform_name() != "cpu"
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    assert platform_manager._create_platform(platform_manager._detect_platform_name()).device_name == "cpu"


def test_a_device_id_works_wherever_verl_puts_it(cpu):
    from verl.utils.device import get_device_id, get_device_name

    device_id = get_device_id()
    assert torch.zeros(1).to(device_id).device.type == "cpu"
    assert torch.nn.Linear(1, 1, device="meta").to_empty(device=device_id).weight.device.type == "cpu"
    assert torch.device(f"{get_device_name()}:{device_id}").type == "cpu"
    assert torch.device(device_id).type == "cpu"
    assert (f"{device_id}", int(device_id), [5][device_id]) == ("0", 0, 5)


def test_memory_is_that_of_the_process(cpu):
    from verl.utils.flops_counter import get_device_flops
    from verl.utils.profiler.performance import _get_current_mem_info

    device = cpu.device_module
    before = device.memory_allocated()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert device.memory_allocated() - before > 0.8 * block.nbytes
    assert device.max_memory_allocated() > 0.8 * before + block.nbytes
    assert device.max_memory_reserved() >= before > 0 and device.memory_reserved() > 0
    free, total = device.mem_get_info()
    assert 0 < free < total == device.get_device_properties(0).total_memory
    allocated, _, used, whole = (float(value) for value in _get_current_mem_info("MB"))
    assert 64 < allocated <= used < whole
    assert 0 < get_device_flops("T") < float("inf")


def test_verl_s_memory_helpers_run(cpu):
    from verl.utils import memory_utils

    memory_utils.aggressive_empty_cache()
    memory_utils.reset_memory_stats()
    memory_utils.log_memory_usage()
    assert memory_utils.get_memory_info() == {}  # there is no memory of an accelerator


def test_random_state_is_torch_s(cpu):
    cpu.manual_seed_all(3)
    state = cpu.device_module.get_rng_state()
    first = torch.rand(4)
    cpu.device_module.set_rng_state(state)
    assert torch.equal(torch.rand(4), first)
    cpu.manual_seed(3)
    assert torch.equal(torch.rand(4), first)


def test_the_rollout_is_in_both_registries(monkeypatch):
    from verl.workers.rollout import base, replica

    monkeypatch.setattr(base, "_ROLLOUT_REGISTRY", dict(base._ROLLOUT_REGISTRY))
    monkeypatch.setattr(replica.RolloutReplicaRegistry, "_registry", dict(replica.RolloutReplicaRegistry._registry))
    wiring.register_rollout(base)
    wiring.register_replica(replica)
    assert issubclass(base.get_rollout_class("hf"), base.BaseRollout)
    assert issubclass(replica.get_rollout_replica_class("hf"), replica.RolloutReplica)
    assert not base.get_rollout_class("hf").__abstractmethods__
    assert not replica.get_rollout_replica_class("hf").__abstractmethods__


def config(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_overrides_give_a_configuration_that_verl_accepts(cpu, model_path, strategy):
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    composed = config(
        *cpu_overrides(2, strategy=strategy, tokens_per_micro_batch=4000, reward_workers=0, critic=True),
        f"actor_rollout_ref.model.path={model_path}",
        f"critic.model.path={model_path}",
        "actor_rollout_ref.rollout.n=2",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    )
    validate_config(composed, use_reference_policy=True, use_critic=True)
    for role in (composed.actor_rollout_ref.actor, composed.critic):
        engine = omega_conf_to_dataclass(role).engine
        assert (engine.strategy, engine.use_torch_compile, engine.ulysses_sequence_parallel_size) == (
            strategy,
            False,
            1,
        )
        assert engine.mixed_precision == {
            "param_dtype": "fp32",
            "reduce_dtype": "fp32",
            "buffer_dtype": "fp32",
        }
    model = omega_conf_to_dataclass(composed.actor_rollout_ref.model)
    assert model.hf_config._attn_implementation == "sdpa" and not model.use_remove_padding
    reference = composed.actor_rollout_ref.ref
    assert (reference.strategy, reference.log_prob_max_token_len_per_gpu) == (strategy, 4000)
    ray = composed.ray_kwargs.ray_init
    assert (ray.num_gpus, composed.trainer.n_gpus_per_node, composed.reward.num_workers) == (2, 2, 0)
    assert ray.num_cpus >= 3 * 2 + 1  # a bundle of 3 per rank and the task runner


def test_a_later_override_wins(model_path):
    composed = config(
        *cpu_overrides(),
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=77",
        "trainer.logger=[console,wandb]",
    )
    assert composed.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 77
    assert list(composed.trainer.logger) == ["console", "wandb"]


@pytest.mark.parametrize(("arguments", "match"), [({"world_size": 0}, "world_size=0"), ({"strategy": "megatron"}, "fsdp, fsdp2")])
def test_bad_arguments_are_refused_by_name(arguments, match):
    with pytest.raises(ValueError, match=match):
        cpu_overrides(**arguments)


@pytest.fixture
def build_replay_buffer(monkeypatch):
    """``PPOTrainer._build_replay_buffer`` of the patched trainer; the patch is undone afterwards."""
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    monkeypatch.setattr(trainer_base.PPOTrainer, "_build_replay_buffer", trainer_base.PPOTrainer._build_replay_buffer)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setattr(polling, "_patched", set())
    polling.patch(trainer_base)
    polling.patch(trainer_base)  # once is enough

    def build(*overrides):
        trainer = PPOTrainerSync.__new__(PPOTrainerSync)
        trainer.config = config(*cpu_overrides(), *overrides)
        trainer.trainer_mode = "sync"
        return trainer._build_replay_buffer()

    return build


def test_the_replay_buffer_polls_often_and_keeps_its_filtering(build_replay_buffer):
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    plain = build_replay_buffer()
    assert type(plain) is ReplayBuffer and plain.poll_interval == polling.POLL_INTERVAL
    assert plain.filter_groups_metric is None
    filtered = build_replay_buffer(
        "++algorithm.filter_groups.enable=True",
        "++algorithm.filter_groups.metric=acc",
        "++algorithm.filter_groups.max_inflight_gen_batches=3",
        "++trainer.v1.sampler.sampler_kwargs.poll_interval=0.5",
        "data.train_batch_size=6",
    )
    assert (filtered.filter_groups_metric, filtered.max_inflight_gen_batches, filtered.train_batch_size) == (
        "acc",
        3,
        6,
    )
    assert filtered.refill_fn is not None and filtered.poll_interval == 0.5


def test_a_worker_whose_environments_cannot_be_used_ends_the_run_at_the_next_poll(build_replay_buffer, monkeypatch):
    from verl.trainer.ppo.v1 import replay_buffer

    from verl_entropy.agent.pool import BROKEN

    buffer, listed = build_replay_buffer(), {"train": {"a": {"is_prompt": True, "global_steps": 1, "status": "failure"}}}
    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda: listed)
    buffer._sync_metadata_from_transfer_queue()  # a failed prompt alone is verl's to handle
    listed[BROKEN] = {"worker_7": {}}
    buffer._sync_metadata_from_transfer_queue()  # the queue has the key, and its tag not yet
    listed[BROKEN] = {"worker_7": {"message": "4 failures in a row, data.env.max_env_failures=4"}}
    with pytest.raises(RuntimeError, match=r"cannot go on: 4 failures in a row"):
        buffer._sync_metadata_from_transfer_queue()


@pytest.mark.parametrize("value", [0, -1, True, "soon"])
def test_a_bad_poll_interval_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"sampler_kwargs\.poll_interval="):
        polling.poll_interval({"poll_interval": value})


def test_away_from_the_cpu_verls_interval_stays(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    assert polling.poll_interval(None) is None and polling.poll_interval({}) is None
    assert polling.poll_interval({"poll_interval": 0.2}) == 0.2
