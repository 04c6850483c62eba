# SPDX-License-Identifier: Apache-2.0
"""The part of verl-agent's configuration that this package reads, with its defaults, and presets merged as Hydra does."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from verl_entropy.config.presets import FOLDER

DEFAULTS = """
algorithm: {adv_estimator: grpo, gamma: 0.95, use_kl_in_reward: false, use_pf_ppo: false}
actor_rollout_ref:
  model: {path: none, use_fused_kernels: false, lora_rank: 0}
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 8
    use_dynamic_bsz: false
    clip_ratio_low: 0.2
    clip_ratio_high: 0.2
    clip_ratio_c: 3.0
    loss_agg_mode: token-mean
    entropy_coeff: 0.001
    use_invalid_action_penalty: true
    invalid_action_penalty_coef: 0.1
    ulysses_sequence_parallel_size: 1
    policy_loss: {loss_mode: vanilla}
  ref: {ulysses_sequence_parallel_size: 1}
  rollout: {n: 1, multi_turn: {enable: false}, log_prob_use_dynamic_bsz: false}
reward_model: {enable: false}
trainer: {resume_mode: auto}
env: {rollout: {n: 8}}
"""


def _preset(name: str) -> DictConfig:
    node = OmegaConf.load(FOLDER / f"{name}.yaml")
    bases = [_preset(base) for base in node.pop("defaults", []) if base != "_self_"]
    return OmegaConf.merge(*bases, node)


def agent_config(presets: list[str] = (), overrides: list[str] = ()) -> DictConfig:
    """verl-agent's defaults, ``+entropy=[presets]`` and dotted overrides; then in struct mode, as Hydra leaves it."""
    config = OmegaConf.create(DEFAULTS)
    config = OmegaConf.merge(config, *(_preset(name) for name in presets), OmegaConf.from_dotlist(list(overrides)))
    OmegaConf.set_struct(config, True)
    return config
