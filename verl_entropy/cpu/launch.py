# SPDX-License-Identifier: Apache-2.0
"""What ``python -m verl.trainer.main_ppo`` needs to run on a CPU: environment variables and Hydra overrides.

    env = {**os.environ, **cpu_env()}
    subprocess.run([sys.executable, "-m", "verl.trainer.main_ppo", *cpu_overrides(), ...], env=env)

Later overrides on the command line win, so every one of these can be changed.
"""

from __future__ import annotations

STRATEGIES = ("fsdp", "fsdp2")


def cpu_env() -> dict[str, str]:
    """Environment of the driver; Ray hands it to every worker."""
    return {
        "VERL_PLATFORM": "cpu",
        # Several processes compute at once; with more threads than free cores each is many times slower.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Ray starts workers at nice 15, which starves them beside any other process of the machine.
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def cpu_overrides(
    world_size: int = 1,
    *,
    strategy: str = "fsdp2",
    tokens_per_micro_batch: int = 8192,
    reward_workers: int = 1,
    critic: bool = False,
) -> list[str]:
    """Hydra overrides for ``world_size`` actor processes, each with a rollout server.

    ``tokens_per_micro_batch`` bounds memory: a micro-batch holds its activations and its logits (tokens x
    vocabulary). ``reward_workers=0`` saves a process when every agent loop sets ``reward_score`` itself.
    ``critic`` adds the settings of a value model.
    """
    if world_size < 1:
        raise ValueError(f"world_size={world_size} must be an integer >= 1; fix: cpu_overrides(world_size=1)")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r} must be one of {', '.join(STRATEGIES)}; fix: cpu_overrides(strategy='fsdp2')")
    return [
        *_machine(world_size, reward_workers),
        *_model("actor_rollout_ref.model"),
        *_engine("actor_rollout_ref.actor", "fsdp_config", strategy),
        *_engine("actor_rollout_ref.ref", "fsdp_config", strategy),
        *_token_budgets(tokens_per_micro_batch),
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        *(_critic(strategy, tokens_per_micro_batch) if critic else ()),
    ]


def _machine(world_size: int, reward_workers: int) -> list[str]:
    return [
        "trainer.device=cpu",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={world_size}",
        "trainer.use_v1=True",
        "trainer.logger=[console]",
        # Logical resources, not cores: a placement-group bundle takes 1 GPU and 3 CPUs per rank
        # (max_colocate_count), and 3 more are for the task runner, the agent-loop and the reward worker.
        f"ray_kwargs.ray_init.num_cpus={3 * world_size + 3}",
        f"++ray_kwargs.ray_init.num_gpus={world_size}",
        "++ray_kwargs.ray_init.include_dashboard=False",
        "data.dataloader_num_workers=0",
        f"reward.num_workers={reward_workers}",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]


def _model(key: str) -> list[str]:
    return [
        # Packing needs flash attention; without it a packed row pays for the attention between all its
        # sequences.
        f"{key}.use_remove_padding=False",
        f"{key}.enable_gradient_checkpointing=False",
        f"++{key}.override_config.attn_implementation=sdpa",
    ]


def _engine(role: str, engine: str, strategy: str) -> list[str]:
    precision = [f"++{role}.{engine}.mixed_precision.{part}_dtype=fp32" for part in ("param", "reduce", "buffer")]
    compile_keys = [f"{role}.use_torch_compile=False"] if engine == "fsdp_config" else []
    return [
        f"{role}.strategy={strategy}",
        *compile_keys,
        f"{role}.{engine}.use_torch_compile=False",
        *precision,
    ]


def _token_budgets(tokens: int) -> list[str]:
    return [
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}",
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={tokens}",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True",
        f"actor_rollout_ref.ref.log_prob_max_token_len_per_gpu={tokens}",
    ]


def _critic(strategy: str, tokens: int) -> list[str]:
    return [
        *_model("critic.model"),
        *_engine("critic", "fsdp", strategy),
        "critic.use_dynamic_bsz=True",
        f"critic.ppo_max_token_len_per_gpu={tokens}",
    ]
