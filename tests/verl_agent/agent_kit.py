# SPDX-License-Identifier: Apache-2.0
"""For the scripts that run with verl-agent: its configuration by Hydra, a tiny model, DataProtos, and what a CPU lacks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from verl_entropy.config import presets
from verl_entropy.hosts.install import activate
from verl_entropy.hosts.verl_agent import settings

activate.LAUNCHED = True  # as the launcher does before verl-agent composes its configuration

HOME = Path(os.environ["VERL_AGENT_HOME"])
VOCABULARY = 40

OVERRIDES = [
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=40",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "algorithm.adv_estimator=grpo",
    "algorithm.gamma=0.95",
    "algorithm.gigpo.mode=mean_std_norm",
    "env.rollout.n=4",
    "trainer.n_gpus_per_node=1",
]


def cpu_device() -> None:
    """verl-agent asks its device module for memory figures; torch.cpu has none. Nothing else of torch or verl-agent is changed."""
    numbers = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    for name in numbers:
        setattr(torch.cpu, name, lambda *_, **__: 0)
    torch.cpu.mem_get_info = lambda *_, **__: (0, 0)
    torch.cpu.empty_cache = lambda: None


def composed(*overrides: str, plain: bool = False):
    """verl-agent's configuration as its launcher composes it; ``plain`` without the sizes of the tests."""
    presets.ensure_search_path()
    with initialize_config_dir(str(HOME / "verl/trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=[*([] if plain else OVERRIDES), *overrides])


def prepared(*overrides: str, plain: bool = False):
    """A composed configuration and its plan."""
    config = composed(*overrides, plain=plain)
    return config, settings.prepare(config)


def tiny_model(seed: int = 0) -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            attn_implementation="sdpa",
        )
    )


def proto(scored):
    """A DataProto of verl-agent from a batch of ``agent_batch``."""
    from verl import DataProto

    return DataProto.from_dict(
        tensors=dict(scored.batch), non_tensors=dict(scored.non_tensor_batch), meta_info={"temperature": 1.0}
    )


def report(results: dict) -> None:
    """Hand the results to the test."""
    sys.stdout.flush()
    print("RESULT " + json.dumps(results), flush=True)
