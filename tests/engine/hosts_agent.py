# SPDX-License-Identifier: Apache-2.0
"""The recorded batch through verl-agent: its compute_advantage and its actor with ours in them, in fp32, on the CPU.

hosts_agent.py MODEL OUT CHOICE...   with verl-agent first on the import path. FSDP is not here: verl-agent's asks for CUDA.
"""

from __future__ import annotations

import sys

import numpy as np
import recorded
import torch
from agent_kit import composed, cpu_device

cpu_device()

from agent_actor import fit_arguments  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.trainer.ppo import ray_trainer  # noqa: E402
from verl.workers.actor.dp_actor import DataParallelPPOActor  # noqa: E402

from verl_entropy.config.settings import ConfigError  # noqa: E402
from verl_entropy.hosts.common.state import Run  # noqa: E402
from verl_entropy.hosts.verl_agent import advantages, rows, settings  # noqa: E402
from verl_entropy.hosts.verl_agent.actor import EntropyActor  # noqa: E402
from verl_entropy.hosts.verl_agent.head import OutsideHead  # noqa: E402
from verl_entropy.hosts.verl_agent.ranks import average  # noqa: E402

COUNT = len(recorded.rows())


class Watched(EntropyActor):
    """Ours, which remembers the loss that it handed to ``update_policy``."""

    def _loss(self, original):
        inner = super()._loss(original)

        def loss(**given):
            result = inner(**given)
            self.seen = float(result[0].detach())
            return result

        return loss


def batch() -> DataProto:
    """The batch as verl-agent's trainer has it after the rollout and the rewards, before the old log-probs."""
    real, wide = recorded.rows(), recorded.PROMPT_WIDTH
    tokens = torch.zeros(COUNT, wide + recorded.WIDTH, dtype=torch.long)
    attention, rewards = torch.zeros_like(tokens), torch.zeros(COUNT, recorded.WIDTH)
    for i, row in enumerate(real):
        first, last = wide - len(row["prompt"]), wide + len(row["response"])
        tokens[i, first:last], attention[i, first:last] = torch.cat([row["prompt"], row["response"]]), 1
        rewards[i, last - wide - 1] = row["return"] - recorded.PENALTY * (not row["valid"])
    tensors = {
        "input_ids": tokens,
        "prompts": tokens[:, :wide],
        "responses": tokens[:, wide:],
        "attention_mask": attention,
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        "response_mask": attention[:, wide:],
        "token_level_rewards": rewards,
        "token_level_scores": rewards,
    }
    trajectories = [f"{row['group']}_{row['session']}" for row in real]
    plain = {
        "uid": [row["group"] for row in real],
        "traj_uid": trajectories,
        "rewards": [row["reward"] for row in real],
        "is_action_valid": [row["valid"] for row in real],
        "anchor_obs": [row["anchor"] for row in real],
        "episode_rewards": [row["return"] for row in real],
    }
    arrays = {name: np.array(values, dtype=object) for name, values in plain.items()}
    won = {trajectory: float(row["success"]) for trajectory, row in zip(trajectories, real, strict=True)}
    arrays.update(rows.tag(arrays["traj_uid"], won))
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays, meta_info={"temperature": recorded.TEMPERATURE})


def model_in_fp32(path: str) -> torch.nn.Module:
    """The model; its forward leaves verl-agent's autocast, which is bf16."""
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="sdpa", dtype=torch.float32)
    inner = model.forward

    def forward(*args, **kwargs):
        with torch.autocast("cpu", enabled=False):
            return inner(*args, **kwargs)

    model.forward = forward
    return model


def scenario(base, choice: str, path: str) -> dict:
    config = recorded.chosen(base, choice)
    recorded.use(choice)
    try:
        chosen = settings.prepare(config)
    except ConfigError as error:
        return {"refused": str(error)}
    actor_config = config.actor_rollout_ref.actor
    torch.manual_seed(0)
    model = model_in_fp32(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=actor_config.optim.lr)
    run, head = None, None
    if chosen is None:
        actor = DataParallelPPOActor(actor_config, model, optimizer)
    else:
        run = Run(chosen)
        if chosen.head is not None:
            arguments = (model.config.hidden_size, chosen.head, actor_config.optim, "cpu", average)
            head = OutsideHead(*arguments, max_norm=float(actor_config.grad_clip))
            for dropout in [m for m in head.module.modules() if isinstance(m, torch.nn.Dropout)]:
                dropout.p = 0.0
        actor = Watched(actor_config, model, optimizer, plan=chosen, head=head)
    data = batch()
    data.meta_info.update({"micro_batch_size": 4, "use_dynamic_bsz": False})
    log_probs, _ = actor.compute_log_prob(data, calculate_entropy=True)
    drift_RT = torch.zeros(COUNT, recorded.WIDTH)
    for i, row in enumerate(recorded.rows()):
        drift_RT[i, : len(row["drift"])] = row["drift"]
    data.batch["old_log_probs"] = log_probs + drift_RT
    if run is None:
        data = ray_trainer.compute_advantage(data, **fit_arguments(config))
    else:
        data.batch.update(actor.outputs)
        where = (ray_trainer.compute_advantage, run, recorded.STEP, recorded.STEPS, recorded.PENALTY)
        data, _ = advantages.compute(*where, data, fit_arguments(config))
    found = data.batch["advantages"].clone()
    metrics = {k: float(np.mean(v)) for k, v in actor.update_policy(data).items()}
    gradients = {name: optimizer.state[p]["exp_avg"] * 10 for name, p in model.named_parameters()}
    if head is not None:
        moments = head.optimizer.state
        gradients.update({f"seal_head.{name}": moments[p]["exp_avg"] * 10 for name, p in head.module.named_parameters()})
    return {
        "loss": metrics["actor/pg_loss"] if run is None else actor.seen,
        "grad_norm": metrics["actor/grad_norm"],
        "metrics": {k: v for k, v in metrics.items() if k.startswith("verl_entropy/")},
        "advantages": found,
        "gradients": gradients,
        "state": {} if run is None else run.state_dict(),
    }


def main(path: str, out: str, *choices: str) -> None:
    torch.set_num_threads(1)
    base = composed(
        f"actor_rollout_ref.actor.ppo_mini_batch_size={COUNT}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={COUNT}",
        "actor_rollout_ref.actor.grad_clip=1e6",
        f"env.rollout.n={recorded.SESSIONS}",
    )
    OmegaConf.resolve(base)
    torch.save({choice: scenario(base, choice, path) for choice in choices}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
