# SPDX-License-Identifier: Apache-2.0
"""Presets through the real engine without Ray: inference, verl's base estimator, our transforms and state, one update.

preset_rank.py MODEL OUT PRESETS...   where PRESETS is "aem" or "gigpo,aem,seal"; appended ":24" is the token budget.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import engine_rank
import numpy as np
import recorded
import torch


def compose_config(presets: str, *extra: str):
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from verl_entropy.hosts.verl_engine import driver

    overrides = [
        f"+entropy=[{presets}]",
        "actor_rollout_ref.actor.strategy=fsdp2",
        f"actor_rollout_ref.rollout.n={recorded.SESSIONS}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        *(f"++actor_rollout_ref.actor.fsdp_config.mixed_precision.{p}_dtype=fp32" for p in ("param", "reduce", "buffer")),
        *extra,
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
        if config.algorithm.adv_estimator == "gae":  # no preset of the list brings an estimator, and there is no critic here
            config.algorithm.adv_estimator = "grpo"
    driver.prepare(config)
    OmegaConf.resolve(config)
    return config


def keys() -> list[str]:
    return [recorded.key(row) for row in recorded.rows()] + [f"padx_{i}_0" for i in range(recorded.PADDING)]


def extra_fields() -> list[dict]:
    found = [recorded.extra(row) for row in recorded.rows()]
    return found + [dict(found[0])] * recorded.PADDING


def batch(packed: bool, budget: int):
    """The recorded batch as the engine gets it, before advantages."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def jagged(values):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    rows = recorded.rows() + recorded.rows()[: recorded.PADDING]
    sequences = [torch.cat([row["prompt"], row["response"]]) for row in rows]
    real = len(rows) - recorded.PADDING
    mask = jagged([torch.full_like(row["response"], int(i < real)) for i, row in enumerate(rows)])
    fields = {
        "prompts": jagged([row["prompt"] for row in rows]),
        "responses": jagged([row["response"] for row in rows]),
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": jagged(sequences),
        "position_ids": jagged([torch.arange(len(s)) for s in sequences]),
    }
    data = TensorDict(fields, batch_size=[len(rows)])
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=budget,
        temperature=recorded.TEMPERATURE,
        global_batch_size=len(rows),
    )
    return data


def drift_RT(width: int) -> torch.Tensor:
    """How far the recorded log-probs are from the actor's, padded."""
    found = torch.zeros(len(recorded.rows()) + recorded.PADDING, width)
    for i, row in enumerate(recorded.rows()):
        found[i, : len(row["drift"])] = row["drift"]
    return found


def scores_RT(mask_RT: torch.Tensor) -> torch.Tensor:
    """The episode's score at the last token of each of its rows."""
    found = torch.zeros(mask_RT.shape)
    for i, row in enumerate(recorded.rows()):
        found[i, len(row["response"]) - 1] = row["score"]
    return found


def advantages(config, engine, data, run):
    """What PPOTrainer._compute_advantage does, with rows from memory instead of the queue; without ``run`` verl's alone."""
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    from verl_entropy.hosts.verl_v1 import trainer
    from verl_entropy.upstream import queue

    with engine.eval_mode():
        asked = data.clone()
        tu.assign_non_tensor(asked, calculate_entropy=True)
        output = {k: v.cpu() for k, v in engine.infer_batch(asked)["model_output"].items()}
    mask = data["response_mask"]
    old, entropy = (response_from_nested(output[k], mask) for k in ("log_probs", "entropy"))
    padded = TensorDict({"response_mask": mask, "old_log_probs": old}, batch_size=data.batch_size).to_padded_tensor()
    padded["old_log_probs"] += drift_RT(padded["old_log_probs"].shape[1])
    data["old_log_probs"], data["entropy"] = response_to_nested(padded["old_log_probs"], mask), entropy
    proto = DataProto(batch=padded)
    proto.batch["token_level_scores"] = proto.batch["token_level_rewards"] = scores_RT(padded["response_mask"])
    proto.non_tensor_batch["uid"] = np.array([k.split("_")[0] for k in keys()], dtype=object)
    original = trainer_base.compute_advantage_for_multi_trajectories.__wrapped__
    kwargs = {"adv_estimator": config.algorithm.adv_estimator, "config": config.algorithm}
    kwargs["norm_adv_by_std_in_grpo"] = config.algorithm.norm_adv_by_std_in_grpo
    call = trainer.Call(
        trainer=SimpleNamespace(global_steps=recorded.STEP, total_training_steps=recorded.STEPS, tokenizer=None),
        batch=SimpleNamespace(partition_id="train"),
        metrics={},
        run=run,
        ride=queue.Ride(keys(), []),
        info={},
    )
    if run is None:
        proto = original(proto, keys(), **kwargs)
    else:
        rows = {"entropy": entropy, "extra_fields": extra_fields(), "response_mask": mask}
        rows.update({k: output[k] for k in output.keys() if k.startswith("verl_entropy_")})
        call.ride.rows = rows
        proto = trainer._after_base(original, call, proto, keys(), (), kwargs)
    for name in ("advantages", "returns"):
        data[name] = response_to_nested(proto.batch[name], mask)
    data.update(call.ride.write or {})
    return call


def run_preset(spec: str, model: str) -> dict:
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass

    from verl_entropy.hosts.common import state
    from verl_entropy.hosts.verl_engine import driver

    presets, _, budget = spec.partition(":")
    recorded.use(presets)
    config = compose_config(presets)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = engine_rank.build(model, actor)
    for head in [m for m in engine.module.modules() if isinstance(m, torch.nn.Dropout)]:
        head.p = 0.0  # the draws depend on the split
    run = state.Run(driver.read_plan(config))
    data = batch(False, int(budget or 1000))
    call = advantages(config, engine, data, run)
    tu.assign_non_tensor(data, verl_entropy=call.info, calculate_entropy=bool(actor.calculate_entropy))
    before = engine_rank.weights(engine)
    result = engine_rank.update(engine, actor, False, 0, data=data)
    result["changed"] = any(not torch.equal(before[k], result["weights"][k]) for k in before)
    result["driver"] = call.metrics
    result["state"] = run.state_dict()
    return result


if __name__ == "__main__":
    engine_rank.main(lambda spec, model, _: run_preset(spec, model), *sys.argv[1:])
