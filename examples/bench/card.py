# SPDX-License-Identifier: Apache-2.0
"""What the worlds for a pretrained model on a card share: the warm start of SmolLM2-135M-Instruct or its like, FSDP2 and vLLM."""

from __future__ import annotations

import os
from pathlib import Path

from bench.plan import MODEL
from bench.small import Small
from verl_entropy.quickstart import warm_start

WARM_RATE = 1e-4
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def prepare(world: Small, folder: Path, seed: int) -> None:
    """Data, and the warm-started model of a seed, made once on the card."""
    assets = world.write_tasks(folder, seed)
    if (assets / "warm").is_dir():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(os.environ[MODEL])
    network = AutoModelForCausalLM.from_pretrained(os.environ[MODEL], dtype=torch.float32).to(device)
    network.gradient_checkpointing_enable()  # a batch of long prompts takes 70 GB of activations, and other runs share the card
    rows = world.expert_rows(tokenizer, seed)
    warm_start.train(network, rows, seed, steps=world.warm_steps, rate=WARM_RATE)
    warm_start.save(network.to("cpu", torch.bfloat16), tokenizer, assets / "warm")


def words(world: Small, folder: Path, seed: int, run: Path, steps: int, presets: tuple[str, ...]) -> list[str]:
    """Overrides for verl's trainer: the world's, with FSDP2 and vLLM on a card that other runs share.

    vLLM stays awake: when it sleeps it checks that the card's used memory fell, which another run on the card may undo.
    """
    vllm = f"{_ROLLOUT}.engine_kwargs.vllm"
    return [
        *world.task_words(folder, seed, run, steps, presets),
        "trainer.use_v1=True",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "data.dataloader_num_workers=0",
        "reward.num_workers=0",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "ray_kwargs.ray_init.num_cpus=16",
        "++ray_kwargs.ray_init.include_dashboard=False",
        "+trainer.v1.sampler.sampler_kwargs.poll_interval=0.1",
        "actor_rollout_ref.model.use_remove_padding=True",
        "+actor_rollout_ref.model.override_config.attn_implementation=varlen",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{_ACTOR}.strategy=fsdp2",
        f"{_ACTOR}.use_dynamic_bsz=True",
        f"{_ACTOR}.ppo_max_token_len_per_gpu=16384",
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz=True",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu=32768",
        f"{_ROLLOUT}.name=vllm",
        f"{_ROLLOUT}.tensor_model_parallel_size=1",
        f"{_ROLLOUT}.max_model_len={world.max_prompt + world.max_response}",
        f"{_ROLLOUT}.max_num_seqs=64",
        f"{_ROLLOUT}.gpu_memory_utilization=0.1",
        f"{_ROLLOUT}.free_cache_engine=False",
        f"{_ROLLOUT}.enforce_eager=False",
        f"{_ROLLOUT}.cudagraph_capture_sizes=[1,2,4,8,16,32,64,96,128,192,256,384,512]",
        f"{_ROLLOUT}.agent.num_workers=4",
        f"+{vllm}.compilation_config={{mode:0,cudagraph_mode:FULL_AND_PIECEWISE}}",
        f"+{vllm}.kv_cache_memory_bytes=3000000000",
        f"+{vllm}.stream_interval=64",
    ]
