# SPDX-License-Identifier: Apache-2.0
"""The recorded batch through verl's V1 trainer and through RayPPOTrainer: advantages, then one update of the real FSDP engine.

hosts_rank.py MODEL OUT HOST:CHOICE...   where HOST is v1, ray (before verl 0.9 there is only ray) or mcore, and CHOICE is one of
``recorded``. mcore is V1 with the configuration of Megatron's actor: the update is verl's own ``ppo_loss`` with that configuration, in two
micro-batches, and the engine is verl's FSDP engine without anything of ours, for Megatron is not installed.

Under neutral settings and with ``stock``, RayPPOTrainer's rows are episodes of one row, as verl itself has them.
"""

from __future__ import annotations

import copy
import functools
import sys
import weakref

import engine_rank
import numpy as np
import preset_rank
import recorded
import torch

from verl_entropy.hosts.install import compat


class Trainer:
    """What the seams of RayPPOTrainer read of it."""

    def __init__(self, config, engine, run):
        self.config, self.actor_rollout_wg = config, Group(engine)
        self.global_steps, self.total_training_steps = recorded.STEP, recorded.STEPS
        self.tokenizer, self.use_reference_policy = None, False
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


def padded(data, flat: bool) -> object:
    """The batch of ``preset_rank`` as verl's agent-loop manager gives it to RayPPOTrainer."""
    from verl.protocol import DataProto

    prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
    rows, wide = len(prompts), recorded.PROMPT_WIDTH
    shapes = {"prompts": wide, "responses": recorded.WIDTH, "response_mask": recorded.WIDTH}
    columns = {name: torch.zeros(rows, width, dtype=torch.long) for name, width in shapes.items()}
    attention = torch.zeros(rows, wide + recorded.WIDTH, dtype=torch.long)
    for i, (p, r, m) in enumerate(zip(prompts, responses, data["response_mask"].unbind(), strict=True)):
        columns["prompts"][i, wide - len(p) :] = p
        columns["responses"][i, : len(r)] = r
        columns["response_mask"][i, : len(r)] = m
        attention[i, wide - len(p) : wide + len(r)] = 1
    columns["input_ids"] = torch.cat([columns["prompts"], columns["responses"]], dim=1)
    columns["attention_mask"] = attention
    columns["position_ids"] = (attention.cumsum(1) - 1).clamp_min(0)
    extra, real = preset_rank.extra_fields(), recorded.rows()
    first = {(row["group"], row["session"]): i for i, row in reversed(list(enumerate(real)))}
    objects = {
        "uid": [row["group"] for row in real] + [f"pad_{i}" for i in range(recorded.PADDING)],
        "verl_entropy_session": [first[row["group"], row["session"]] for row in real] + [-1] * recorded.PADDING,
        "verl_entropy_position": [row["turn"] for row in real] + list(range(recorded.PADDING)),
        **{name: [row.get(name) for row in extra] for name in ("turns", "success")},
    }
    if flat:
        objects["verl_entropy_session"], objects["verl_entropy_position"] = list(range(rows)), [0] * rows
    arrays = {}
    for name, values in objects.items():
        arrays[name] = np.empty(rows, dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(tensors=columns, non_tensors=arrays, meta_info={"temperature": recorded.TEMPERATURE})


def ray_host(config, engine, data, run, choice: str):
    """What RayPPOTrainer.fit does between the rollout and the update; the batch as the workers get it, and the advantages."""
    from verl.trainer.ppo import ray_trainer
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    from verl_entropy.hosts.verl_ray import layout
    from verl_entropy.hosts.verl_ray import trainer as seams

    stock = run is None
    batch, trainer = padded(data, flat=stock or choice.startswith("neutral/")), Trainer(config, engine, run)
    if not stock:
        trainer.actor_rollout_wg.compute_log_prob = seams._sends(
            trainer, "compute_log_prob", trainer.actor_rollout_wg.compute_log_prob
        )
    compute = ray_trainer.RayPPOTrainer._compute_old_log_prob
    old = (compute.__wrapped__ if stock else compute)(trainer, batch)[0]
    old.batch.pop("entropys")
    old.batch["old_log_probs"] += preset_rank.drift_RT(recorded.WIDTH)
    batch = batch.union(old)
    batch.batch["token_level_scores"] = preset_rank.scores_RT(batch.batch["response_mask"])
    batch.batch["token_level_rewards"] = batch.batch["token_level_scores"]
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
    return (sent if stock else layout.for_workers(sent)), batch.batch["advantages"]


def v1_host(config, engine, data, run):
    from verl.utils import tensordict_utils as tu

    call = preset_rank.advantages(config, engine, data, run)
    told = {} if run is None else {"verl_entropy": call.info}
    tu.assign_non_tensor(data, calculate_entropy=bool(config.actor_rollout_ref.actor.calculate_entropy), **told)
    width = data["advantages"].size(0), recorded.WIDTH
    return data, torch.nested.to_padded_tensor(data["advantages"], padding=0.0, output_size=width)


@functools.cache
def composed(*overrides: str, engine: str = "dp"):
    """verl's configuration by Hydra, resolved: that takes longer than all that is compared."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    fsdp = [
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        *(f"++actor_rollout_ref.actor.fsdp_config.mixed_precision.{p}_dtype=fp32" for p in ("param", "reduce", "buffer")),
    ]
    common = [
        *([] if engine == "dp" else [f"model_engine={engine}"]),
        f"actor_rollout_ref.rollout.n={recorded.SESSIONS}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        *(fsdp if engine == "dp" else ()),
        *EXTRA,
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*common, *overrides])
    if config.algorithm.adv_estimator == "gae":  # there is no critic here
        config.algorithm.adv_estimator = "grpo"
    OmegaConf.resolve(config)
    return config


def configured(host: str, choice: str):
    """verl's configuration with the choice, prepared as the driver does."""
    from verl_entropy.hosts.verl_engine import driver

    base = composed(engine="megatron") if host == "mcore" else composed()
    presets = not choice.startswith(recorded.STOCK) and "." not in choice
    config = copy.deepcopy(composed(f"+entropy=[{choice}]")) if presets else recorded.chosen(base, choice)
    if not compat.before(0, 9):
        config.trainer.use_v1 = host != "ray"
    driver.prepare(config)
    return config


def scenario(name: str, model: str) -> dict:
    from verl.utils.config import omega_conf_to_dataclass

    from verl_entropy.config.settings import ConfigError
    from verl_entropy.hosts.common import state
    from verl_entropy.hosts.verl_engine import driver

    host, _, choice = name.partition(":")
    recorded.use(choice)
    try:
        config = configured(host, choice)
    except ConfigError as error:
        return {"refused": str(error)}
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    plain = actor if host != "mcore" else omega_conf_to_dataclass(composed().actor_rollout_ref.actor)
    engine = engine_rank.build(model, plain, clip=1e6)
    for dropout in [m for m in engine.module.modules() if isinstance(m, torch.nn.Dropout)]:
        dropout.p = 0.0
    run = None if choice.startswith(recorded.STOCK) else state.Run(driver.read_plan(config))
    data = preset_rank.batch(PACKED, 1000 if host != "mcore" else 110)
    if host != "ray":
        data, advantages = v1_host(config, engine, data, run)
    else:
        data, advantages = ray_host(config, engine, data, run, choice)
    result = engine_rank.update(engine, actor, PACKED, 0, data=data)
    return {
        "loss": result["loss"],
        "grad_norm": result["grad_norm"],
        "micro_batches": result["micro_batches"],
        "metrics": result["metrics"],
        "advantages": advantages[: len(recorded.rows())],
        "gradients": gradients(engine),
        "state": {} if run is None else run.state_dict(),
    }


def gradients(engine) -> dict:
    """From the first moments of the optimizer after its one step, which are (1 - beta1) x the gradient."""
    found = {}
    for name, p in engine.module.named_parameters():
        moment = engine.optimizer.state[p]["exp_avg"] if p in engine.optimizer.state else None
        if moment is not None:
            found[name] = (moment.full_tensor() if hasattr(moment, "full_tensor") else moment).detach().cpu() * 10
    return found


if __name__ == "__main__":
    engine_rank.main(lambda name, model, _: scenario(name, model), *sys.argv[1:])
