# SPDX-License-Identifier: Apache-2.0
"""One recorded batch through verl's V1 trainer and through RayPPOTrainer: advantages, then one update of the real FSDP engine.

hosts_rank.py MODEL OUT HOST:PRESETS...   where HOST is v1 or ray; under verl before 0.9 there is only ray.

ray:neutral is a plan of ours that changes nothing, ray:stock is verl alone: no class, loss or column of ours. Their rows are
episodes of one row.
"""

from __future__ import annotations

import sys
import weakref

import engine_rank
import numpy as np
import preset_rank
import torch

from verl_entropy.hosts.install import compat

WIDTH = 14
"""Of the padded responses: more than the longest one, as data.max_response_length is."""


class Trainer:
    """What the seams of RayPPOTrainer read of it."""

    def __init__(self, config, engine, run):
        self.config, self.actor_rollout_wg = config, Group(engine)
        self.global_steps, self.total_training_steps, self.tokenizer, self.use_reference_policy = 2, 10, None, False
        self.use_legacy_worker_impl = "disable"  # of verl 0.7
        self._verl_entropy_run, self._verl_entropy_metrics, self._verl_entropy_outputs = run, {}, {}
        if compat.verl_version() == compat.NEO:
            from verl.trainer.ppo.data_plane import build_data_plane

            self.data_plane = build_data_plane(config)


class Group:
    """The actor's worker group, which is this process."""

    def __init__(self, engine):
        self.engine = engine

    def compute_log_prob(self, data):
        from verl.utils import tensordict_utils as tu

        tu.assign_non_tensor(data, use_remove_padding=PACKED, use_dynamic_bsz=True, max_token_len_per_gpu=1000)
        with self.engine.eval_mode():
            output = self.engine.infer_batch(data)["model_output"]
        return tu.get_tensordict({k: v.cpu() for k, v in output.items()}, {"metrics": {"mfu": 0.0}})


PACKED = compat.before(0, 8)
"""verl 0.7's engine takes packed rows only."""
EXTRA = ("trainer.use_legacy_worker_impl=disable", "actor_rollout_ref.model.use_remove_padding=True") if PACKED else ()
NEUTRAL, STOCK = "neutral", "stock"


def padded(data, flat: bool) -> object:
    """The batch of ``engine_rank`` as verl's agent-loop manager gives it to RayPPOTrainer."""
    from verl.protocol import DataProto

    prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
    rows, wide = len(prompts), max(len(p) for p in prompts)
    columns = {name: torch.zeros(rows, width, dtype=torch.long) for name, width in (("prompts", wide), ("responses", WIDTH))}
    columns["response_mask"] = torch.zeros(rows, WIDTH, dtype=torch.long)
    attention = torch.zeros(rows, wide + WIDTH, dtype=torch.long)
    for i, (p, r, m) in enumerate(zip(prompts, responses, data["response_mask"].unbind(), strict=True)):
        columns["prompts"][i, wide - len(p) :] = p
        columns["responses"][i, : len(r)] = r
        columns["response_mask"][i, : len(r)] = m
        attention[i, wide - len(p) : wide + len(r)] = 1
    columns["input_ids"] = torch.cat([columns["prompts"], columns["responses"]], dim=1)
    columns["attention_mask"] = attention
    columns["position_ids"] = (attention.cumsum(1) - 1).clamp_min(0)
    extra, keys = preset_rank.extra_fields(), preset_rank.keys()
    real = preset_rank.GROUPS * preset_rank.SESSIONS * preset_rank.TURNS
    sessions = [keys.index(key.rsplit("_", 1)[0] + "_0") for key in keys[:real]]
    objects = {
        "uid": [key.split("_")[0] if i < real else f"pad_{i}" for i, key in enumerate(keys)],
        "verl_entropy_session": [*sessions, *[-1] * engine_rank.PADDING],
        "verl_entropy_position": [int(key.rsplit("_", 1)[1]) if i < real else i for i, key in enumerate(keys)],
        **{name: [row.get(name) for row in extra] for name in ("turns", "success")},
    }
    if flat:
        objects["verl_entropy_session"], objects["verl_entropy_position"] = list(range(rows)), [0] * rows
    arrays = {}
    for name, values in objects.items():
        arrays[name] = np.empty(rows, dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(tensors=columns, non_tensors=arrays, meta_info={"temperature": 0.8})


def scored(batch) -> None:
    scores = torch.zeros(batch.batch["response_mask"].shape)
    for row, key in enumerate(preset_rank.keys()[: preset_rank.GROUPS * preset_rank.SESSIONS * preset_rank.TURNS]):
        scores[row, batch.batch["response_mask"][row].sum() - 1] = 1.0 if key.split("_")[1] == "0" else -1.0
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = scores


def ray_host(config, engine, data, run, presets: str):
    """What RayPPOTrainer.fit does between the rollout and the update; the batch as the workers get it, and the advantages."""
    from verl.trainer.ppo import ray_trainer
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    from verl_entropy.hosts.verl_ray import layout
    from verl_entropy.hosts.verl_ray import trainer as seams

    stock = presets == STOCK
    batch, trainer = padded(data, flat=presets in (NEUTRAL, STOCK)), Trainer(config, engine, run)
    if not stock:
        trainer.actor_rollout_wg.compute_log_prob = seams._sends(
            trainer, "compute_log_prob", trainer.actor_rollout_wg.compute_log_prob
        )
    compute = ray_trainer.RayPPOTrainer._compute_old_log_prob
    old = (compute.__wrapped__ if stock else compute)(trainer, batch)[0]
    old.batch.pop("entropys")
    batch = batch.union(old)
    scored(batch)
    seams._latest = weakref.ref(trainer)
    arguments = {"adv_estimator": config.algorithm.adv_estimator, "config": config.algorithm}
    arguments["norm_adv_by_std_in_grpo"] = config.algorithm.norm_adv_by_std_in_grpo
    advantage = ray_trainer.compute_advantage
    batch = (advantage.__wrapped__ if stock else advantage)(batch, **arguments)
    sent = left_right_2_no_padding(batch.to_tensordict())
    tu.assign_non_tensor(
        sent,
        use_remove_padding=PACKED,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=1000,
        calculate_entropy=bool(config.actor_rollout_ref.actor.get("calculate_entropy", False)),
        global_batch_size=len(batch),
    )
    return (sent if stock else layout.for_workers(sent)), batch.batch["advantages"], trainer._verl_entropy_metrics


def v1_host(config, engine, data, run):
    from verl.utils import tensordict_utils as tu

    call = preset_rank.advantages(config, engine, data, run)
    tu.assign_non_tensor(data, verl_entropy=call.info, calculate_entropy=bool(config.actor_rollout_ref.actor.calculate_entropy))
    width = data["advantages"].size(0), WIDTH
    return data, torch.nested.to_padded_tensor(data["advantages"], padding=0.0, output_size=width), call.metrics


def plain_config(ours: bool):
    """verl's GRPO; with ``ours`` in a run of this package that asks for nothing but verl's own values."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from verl_entropy.hosts.verl_engine import driver

    overrides = [
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.strategy=fsdp2",
        f"actor_rollout_ref.rollout.n={preset_rank.SESSIONS}",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        *(f"++actor_rollout_ref.actor.fsdp_config.mixed_precision.{p}_dtype=fp32" for p in ("param", "reduce", "buffer")),
        *EXTRA,
        *(("+algorithm.entropy.log_probs=verl", "+algorithm.entropy.equal_returns=verl") if ours else ()),
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    assert (driver.prepare(config) is not None) == ours
    OmegaConf.resolve(config)
    return config


def scenario(name: str, model: str) -> dict:
    from verl.utils.config import omega_conf_to_dataclass

    from verl_entropy.hosts.common import state
    from verl_entropy.hosts.verl_engine import driver

    host, _, presets = name.partition(":")
    config = plain_config(presets == NEUTRAL) if presets in (NEUTRAL, STOCK) else preset_rank.compose_config(presets, *EXTRA)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    engine = engine_rank.build(model, actor)
    for dropout in [m for m in engine.module.modules() if isinstance(m, torch.nn.Dropout)]:
        dropout.p = 0.0
    run = state.Run(driver.read_plan(config))
    data = engine_rank.batch(PACKED, 1000)
    if host == "v1":
        data, advantages, metrics = v1_host(config, engine, data, run)
    else:
        data, advantages, metrics = ray_host(config, engine, data, run, presets)
    before = engine_rank.weights(engine)
    result = engine_rank.update(engine, actor, PACKED, 0, data=data)
    result["gradients"] = gradients(engine)
    return result | {"advantages": advantages, "driver": metrics, "state": run.state_dict(), "before": before}


def gradients(engine) -> dict:
    """First moments of the optimizer after its one step: (1 - beta1) x the gradient, clipped."""
    found = {}
    for name, p in engine.module.named_parameters():
        moment = engine.optimizer.state[p]["exp_avg"] if p in engine.optimizer.state else None
        if moment is not None:
            found[name] = (moment.full_tensor() if hasattr(moment, "full_tensor") else moment).detach().cpu().clone()
    return found


if __name__ == "__main__":
    engine_rank.main(lambda name, model, _: scenario(name, model), *sys.argv[1:])
