# SPDX-License-Identifier: Apache-2.0
"""One rank of a gloo group that builds the real FSDP engine through verl's registry and runs updates with verl's ppo_loss.

Run as a process (torch.distributed and verl's platform are global state): engine_rank.py MODEL OUT SCENARIO...
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import verl.utils.distributed as distributed

from verl_entropy.hosts.install import activate, compat

activate.install()  # as in the worker of a run that has chosen methods; the platform comes from the test

PROMPT = (5, 9, 7, 12, 6, 11, 8, 10, 5, 7)
RESPONSE = (4, 2, 6, 3, 5, 1, 7, 2, 1, 1)
CUDA = os.environ.get("VERL_PLATFORM") != "cpu"
PADDING = 2  # the last rows train nothing, as verl's padding rows
NEUTRAL = {"seal": {"alpha": 0.0}, "regularizer": "epo", "epo": {"entropy_coeff": 0.0}}
FULL = {"seal": {"alpha": 0.5, "dropout": 0.0}, "regularizer": "epo", "epo": {"entropy_coeff": 0.1, "kappa_high": 0.5}}


def actor_config(strategy: str, ours: dict | None, log_probs: str, loss_agg_mode: str = "token-mean", extra=(), **policy):
    """verl's actor configuration, with our settings put in by the driver's own code."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf, open_dict

    from verl_entropy.hosts.verl_engine import driver

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.actor.strategy={strategy}",
                "actor_rollout_ref.rollout.n=2",
                "actor_rollout_ref.actor.use_dynamic_bsz=True",
                "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
                "actor_rollout_ref.actor.optim.lr=0.01",
                f"actor_rollout_ref.actor.loss_agg_mode={loss_agg_mode}",
                *(f"++actor_rollout_ref.actor.fsdp_config.mixed_precision.{p}_dtype=fp32" for p in ("param", "reduce", "buffer")),
                *extra,
            ],
        )
    actor = config.actor_rollout_ref.actor
    with open_dict(config):
        if ours is not None:
            config.algorithm.entropy = {"log_probs": log_probs}
            if "seal" in ours:
                actor.seal = ours["seal"]
            actor.policy_loss.update({k: v for k, v in ours.items() if k != "seal"})
        actor.policy_loss.update(policy)
    driver.prepare(config)
    OmegaConf.resolve(config)
    from verl.utils.config import omega_conf_to_dataclass

    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def build(model: str, actor, forward_only: bool = False, checkpointing: bool = False, attention: str = "sdpa", save=(), clip=1.0):
    import dataclasses

    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    model_config = HFModelConfig(
        path=model,
        **({} if compat.before(0, 8) else {"model_type": "language_model"}),
        use_remove_padding=attention != "sdpa",
        enable_gradient_checkpointing=checkpointing,
        override_config={"attn_implementation": attention},
    )
    engine_config = actor.engine
    if forward_only:
        engine_config = dataclasses.replace(engine_config, forward_only=True)
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=actor.strategy,
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=FSDPOptimizerConfig(lr=1e-2, clip_grad=clip, total_training_steps=10),
        checkpoint_config=CheckpointConfig(save_contents=["model", "optimizer", "extra", *save]),
    )
    torch.manual_seed(0)
    engine.initialize()
    return engine


def batch(packed: bool, budget: int, order=None):
    """This rank's rows of a fixed batch, with the columns and the info that the driver sends."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    g = torch.Generator().manual_seed(1)
    rows = []
    for i, (p, r) in enumerate(zip(PROMPT, RESPONSE, strict=True)):
        trained = i < len(PROMPT) - PADDING
        rows.append(
            {
                "prompts": torch.randint(6, 64, (p,), generator=g),
                "responses": torch.randint(6, 64, (r,), generator=g),
                "response_mask": torch.full((r,), int(trained)),
                "old_log_probs": -torch.rand(r, generator=g) * 3,
                "advantages": torch.randn(r, generator=g) * trained,
                "verl_entropy_token_weight": (0.5 + torch.rand(r, generator=g)) * trained,
                "label": float(i % 2 == 0) * trained,
            }
        )
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    rows = [rows[i] for i in (order or range(len(rows)))][rank::world]

    def jagged(values):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    fields = {k: jagged([row[k] for row in rows]) for k in rows[0] if k != "label"}
    fields["loss_mask"] = fields["response_mask"]
    sequences = [torch.cat([row["prompts"], row["responses"]]) for row in rows]
    fields["input_ids"] = jagged(sequences)
    fields["position_ids"] = jagged([torch.arange(len(s)) for s in sequences])
    fields["verl_entropy_label"] = torch.tensor([row["label"] for row in rows])
    data = TensorDict(fields, batch_size=[len(rows)])
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=budget,
        temperature=0.8,
        calculate_entropy=True,
        global_batch_size=len(PROMPT),
        verl_entropy={"step": 2, "epo": {"hbar": 2.0, "beta": 1.5, "decay": 1.0}},
    )
    return data


def dropped(packed: bool, budget: int):
    """The batch with the masks of an actor from whose loss a transform took every row of label 0."""
    data = batch(packed, budget)
    kept_R = data["verl_entropy_label"] > 0
    rows = [row * kept for row, kept in zip(data["response_mask"].unbind(), kept_R, strict=True)]
    thinned = torch.nested.nested_tensor_from_jagged(torch.cat(rows), data["response_mask"].offsets())
    data["verl_entropy_response_mask"] = data["verl_entropy_loss_mask"] = thinned
    return data


def weights(engine) -> dict:
    return {name: tensor.detach().cpu().clone() for name, tensor in engine.get_per_tensor_param()[0]}


def head_weights(engine) -> dict:
    module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().cpu().clone()
        for name, p in module.named_parameters()
        if "seal_head" in name
    }


def metric_values(metrics: dict, group) -> dict:
    """Our metrics as the worker reports them (see TrainingWorker._postprocess_output)."""
    from verl.utils.metric.utils import Metric
    from verl.utils.torch_functional import allgather_dict_into_dict  # the function verl uses

    gathered = allgather_dict_into_dict({k: v for k, v in metrics.items() if "verl_entropy" in k}, group=group)
    return {k: float(Metric.aggregate_dp(v)) for k, v in gathered.items()}


def update(engine, actor, packed: bool, budget: int, order=None, seed: int = 5, data=None) -> dict:
    import verl.workers.engine_workers as workers

    torch.manual_seed(seed)
    loss = functools.partial(workers.ppo_loss, config=actor)
    with engine.train_mode():
        output = engine.train_batch(batch(packed, budget, order) if data is None else data, loss_function=loss)
    total = torch.tensor(sum(output["loss"]))
    torch.distributed.all_reduce(total)
    return {
        "loss": float(total) / torch.distributed.get_world_size(),
        "grad_norm": float(output["metrics"]["grad_norm"]),
        "micro_batches": len(output["loss"]),
        "metrics": metric_values(output["metrics"], engine.get_data_parallel_group()),
        "weights": weights(engine),
        "head": head_weights(engine),
    }


def inference(engine, packed: bool) -> dict:
    data = batch(packed, 1000)
    with engine.eval_mode():
        output = engine.infer_batch(data)["model_output"]
    keep = {}
    for name in ("log_probs", "entropy"):
        rows = zip(output[name].unbind(), data["responses"].offsets().diff().tolist(), strict=True)
        keep[name] = [row[len(row) - r - 1 : len(row) - 1].cpu().clone() for row, r in rows]
    keep["keys"] = sorted(output.keys())
    return keep


def scenario(name: str, model: str, folder: Path) -> dict:
    strategy, kind, *rest = name.split("-")
    options = dict(part.split("=") for part in rest)
    packed = options.get("packed") == "1"
    budget = int(options.get("budget", 1000))
    mode = options.get("agg", "token_mean").replace("_", "-")
    checkpoint = str(folder / f"checkpoint-{strategy}")
    if kind == "strip":
        return stripped(strategy, model, folder, checkpoint)
    if kind == "wrapped":
        return wrapped(strategy, model, folder)
    ours = {"stock": None, "neutral": NEUTRAL, "full": FULL, "resume": FULL, "save": FULL, "reference": FULL}[kind]
    extra = [f"actor_rollout_ref.actor.fsdp_config.use_torch_compile={options['compile'] == '1'}"] if "compile" in options else []
    if "dtype" in options:
        extra.append(f"++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype={options['dtype']}")
    if "pad" in options:
        fsdp = "actor_rollout_ref.actor.fsdp_config"
        extra += [f"++{fsdp}.pad_to_length=True", f"++{fsdp}.pad_to_length_bucket={options['pad']}"]
    actor = actor_config(strategy, ours, options.get("logp", "chunked"), mode, extra)
    attention = options.get("attn", "sdpa")
    # One rank only: on a CPU, torch fails to gather FSDP1's full state dict of two ranks (views of an empty storage).
    save = ("hf_model",) if kind == "save" and torch.distributed.get_world_size() == 1 else ()
    engine = build(model, actor, kind == "reference", options.get("checkpointing") == "1", attention, save)
    if "kept" in options:
        engine._keeps_logits = options["kept"] == "1"
    result = {"class": type(engine).__name__, "logit_rows": []}
    module = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
    module.get_output_embeddings().register_forward_hook(lambda _, __, y: result["logit_rows"].append(y.shape[:-1].numel()))
    if kind == "reference":
        return result | {"has_head": any("seal_head" in n for n, _ in module.named_parameters())} | inference(engine, packed)
    result["inference"] = inference(engine, packed)
    if kind == "resume":
        engine.load_checkpoint(checkpoint, del_local_after_load=False)
    else:
        order = json.loads(options["order"]) if "order" in options else None
        data = dropped(packed, budget) if options.get("dropped") == "1" else None
        result["first"] = update(engine, actor, packed, budget, order, data=data)
    if kind == "save":
        engine.save_checkpoint(checkpoint, global_step=1)
    if kind in ("save", "resume"):
        result["second"] = update(engine, actor, packed, budget)
    return result


def stripped(strategy: str, model: str, folder: Path, checkpoint: str) -> dict:
    """Load what strip-head makes of the saved checkpoint into the engine without settings of ours, and go on training."""
    from verl_entropy.tools.checkpoint import strip_head

    step = folder / f"global_step_1-{strategy}"
    if torch.distributed.get_rank() == 0:
        step.mkdir()
        (step / "actor").symlink_to(checkpoint, target_is_directory=True)
        strip_head(step, folder / f"stripped-{strategy}")
    torch.distributed.barrier()
    actor = actor_config(strategy, None, "verl")
    engine = build(model, actor)
    engine.load_checkpoint(str(folder / f"stripped-{strategy}" / "actor"), del_local_after_load=False)
    loaded = weights(engine)
    return {"loaded": loaded, "second": update(engine, actor, False, 1000)}


def wrapped(strategy: str, model: str, folder: Path) -> dict:
    """What strip-head says to a checkpoint whose head is in the flat parameter of the root, by the wrap policy of a user."""
    from verl_entropy.tools.checkpoint import CheckpointError, strip_head

    key = "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"
    actor = actor_config(strategy, FULL, "chunked", extra=[f"++{key}=[LlamaDecoderLayer]"])
    engine = build(model, actor)
    update(engine, actor, False, 1000)
    step = folder / "wrapped" / "global_step_1"
    engine.save_checkpoint(str(step / "actor"), global_step=1)
    try:
        strip_head(step, folder / "wrapped" / "target")
        says = ""
    except CheckpointError as error:
        says = str(error)
    return {"says": says, "files": sorted(path.name for path in (folder / "wrapped").iterdir())}


def start() -> None:
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.use_deterministic_algorithms(True)
    distributed.initialize_global_process_group_ray()


def main(scenario: Callable[[str, str, Path], dict], model: str, out: str, *names: str) -> None:
    """Run the scenarios one after the other, and save what they return as this rank's results."""
    import verl.workers.engine
    import verl.workers.engine_workers  # noqa: F401  (where ppo_loss is looked up)

    torch.set_num_threads(1)
    start()
    results = {name: scenario(name, model, Path(out).parent) for name in names}
    torch.save(results, f"{out}.{torch.distributed.get_rank()}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(scenario, *sys.argv[1:])
