# SPDX-License-Identifier: Apache-2.0
"""Presets through the real engine without Ray: inference, verl's base estimator, our transforms and state, one update.

preset_rank.py MODEL OUT PRESETS...   where PRESETS is "aem" or "gigpo,aem,seal"; appended ":24" is the token budget.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import engine_rank
import numpy as np
import torch

GROUPS, SESSIONS, TURNS = 2, 2, 2


def compose_config(presets: str, *extra: str):
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from verl_entropy.hosts.verl_engine import driver

    overrides = [
        f"+entropy=[{presets}]",
        "actor_rollout_ref.actor.strategy=fsdp2",
        f"actor_rollout_ref.rollout.n={SESSIONS}",
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


def extra_fields() -> list[dict]:
    rows = []
    for g in range(GROUPS):
        for s in range(SESSIONS):
            for k in range(TURNS):
                turn = {"reward": 0.0, "penalty": 0.1 * k, "valid": k == 0, "anchor": f"room {(g + s * k) % 2}"}
                turn |= {"entropy": 0.1 * (k + 1), "origin": f"{s}.0", "copied": False}  # as under a rollout method
                rows.append({"turns": [turn], "success": s == 0})
    return rows + [dict(rows[0])] * engine_rank.PADDING


def keys() -> list[str]:
    real = [f"u{g}_{s}_{k}" for g in range(GROUPS) for s in range(SESSIONS) for k in range(TURNS)]
    return real + [f"padx_{i}_0" for i in range(engine_rank.PADDING)]


def advantages(config, engine, data, run):
    """What PPOTrainer._compute_advantage does, with rows from memory instead of the queue."""
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1 import trainer_base
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    from verl_entropy.hosts.verl_v1 import trainer
    from verl_entropy.upstream import queue

    with engine.eval_mode():
        output = {k: v.cpu() for k, v in engine.infer_batch(data.clone())["model_output"].items()}
    mask = data["response_mask"]
    old, entropy = (response_from_nested(output[k], mask) for k in ("log_probs", "entropy"))
    data["old_log_probs"] = old + 0.0
    data["entropy"] = entropy
    rows = {"entropy": entropy, "extra_fields": extra_fields(), "response_mask": mask}
    rows.update({k: output[k] for k in output.keys() if k.startswith("verl_entropy_")})
    padded = TensorDict({"response_mask": mask, "old_log_probs": old}, batch_size=data.batch_size).to_padded_tensor()
    scores = torch.zeros(padded["response_mask"].shape)
    for row, key in enumerate(keys()[: GROUPS * SESSIONS * TURNS]):
        scores[row, padded["response_mask"][row].sum() - 1] = 1.0 if key.split("_")[1] == "0" else -1.0
    proto = DataProto(batch=padded)
    proto.batch["token_level_scores"] = proto.batch["token_level_rewards"] = scores
    proto.non_tensor_batch["uid"] = np.array([k.split("_")[0] for k in keys()], dtype=object)
    call = trainer.Call(
        trainer=SimpleNamespace(global_steps=2, total_training_steps=10, tokenizer=None),
        batch=SimpleNamespace(partition_id="train"),
        metrics={},
        run=run,
        ride=queue.Ride(keys(), [], rows=rows),
        info={},
    )
    original = trainer_base.compute_advantage_for_multi_trajectories.__wrapped__
    kwargs = {"adv_estimator": config.algorithm.adv_estimator, "config": config.algorithm}
    kwargs["norm_adv_by_std_in_grpo"] = config.algorithm.norm_adv_by_std_in_grpo
    proto = trainer._after_base(original, call, proto, keys(), (), kwargs)
    for name in ("advantages", "returns"):
        data[name] = response_to_nested(proto.batch[name], mask)
    data.update(call.ride.write)
    return call


def run_preset(spec: str, model: str) -> dict:
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass

    from verl_entropy.hosts.common import state
    from verl_entropy.hosts.verl_engine import driver

    presets, _, budget = spec.partition(":")
    config = compose_config(presets)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = engine_rank.build(model, actor)
    for head in [m for m in engine.module.modules() if isinstance(m, torch.nn.Dropout)]:
        head.p = 0.0  # the draws depend on the split
    run = state.Run(driver.read_plan(config))
    data = engine_rank.batch(False, int(budget or 1000))
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
