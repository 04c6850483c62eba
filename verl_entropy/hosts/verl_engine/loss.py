# SPDX-License-Identifier: Apache-2.0
"""Loss side, in the training workers: ``verl.workers.engine_workers.ppo_loss`` with a context, a regulariser and the head.

verl's ``ppo_loss`` runs unchanged (surrogate, KL, its own entropy term); what we add is normalised by the counts of the global
mini-batch and multiplied by the data-parallel size, as verl's ``agg_loss`` does for FSDP, so that values and gradients do not
depend on how rows are split.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType

import torch
from verl.utils import tensordict_utils as tu

from verl_entropy.config.plan import Plan
from verl_entropy.hosts.common import loss_side
from verl_entropy.hosts.common.context import use_loss
from verl_entropy.hosts.common.loss_tools import clip_bounds, response_RT
from verl_entropy.hosts.common.trainer_keys import CLIPPED, NUM_ROWS, PREFIX, ROW, TOTALS, WHOLE_MASKS, WORKER_INFO
from verl_entropy.hosts.verl_engine import registration
from verl_entropy.methods.context import LossContext

_plans: dict[int, tuple[object, Plan]] = {}
_READ_BY_VERL = ("response_mask", "old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob")


def _plan(config) -> Plan | None:
    """The loss plan of an actor configuration of ours (parsed once), or None for a stock one."""
    from verl_entropy.hosts.verl_engine.configs import OurActor

    if not isinstance(config, OurActor):
        return None
    kept = _plans.get(id(config))
    if kept is None or kept[0] is not config:
        kept = _plans[id(config)] = (config, config.loss_plan())
        registration.register_outside(sys.modules["verl.trainer.ppo.core_algos"], kept[1])
    return kept[1]


def _padded(data, key: str, width: int) -> torch.Tensor:
    nested = data[key]
    return torch.nested.to_padded_tensor(nested, padding=0, output_size=(nested.size(0), width))


def _width(data) -> int:
    """Of the response layout: the micro-batch's longest response, or what a trainer of padded batches has."""
    width = tu.get_non_tensor_data(data=data, key="max_response_len", default=None)
    return int(data["responses"].offsets().diff().max()) if width is None else int(width)


def _for_verl(data):
    """The micro-batch as verl's loss of a trainer of padded batches has it; that of V1 as it is."""
    if "max_response_len" not in data.keys():
        return data
    width, padded = _width(data), data.copy()
    for name in _READ_BY_VERL:
        if name in data.keys() and data[name].is_nested:
            padded[name] = _padded(data, name, width)
    return padded


def _context(plan: Plan, model_output, data) -> LossContext:
    width = _width(data)
    mask_RT = _padded(data, "response_mask", width).bool()
    entropy = model_output.get("entropy")
    info = data[WORKER_INFO] if WORKER_INFO in data.keys() else {}
    totals = {name: (total, rows) for name, (total, rows) in data[TOTALS].items()}
    whole = {}
    if WHOLE_MASKS["loss_mask"] in data.keys():
        whole = {
            "whole_mask_RT": _padded(data, WHOLE_MASKS["response_mask"], width).bool(),
            "whole_loss_mask_RT": _padded(data, WHOLE_MASKS["loss_mask"], width).bool(),
            "whole_tokens": totals[WHOLE_MASKS["loss_mask"].removeprefix(PREFIX)][0],
        }
    return LossContext(
        plan=plan,
        micro_batch=data,
        model_output=model_output,
        entropy_RT=None if entropy is None else response_RT(entropy, data, width).float(),
        mask_RT=mask_RT,
        loss_mask_RT=_padded(data, "loss_mask", width).bool(),
        num_tokens=float(data["batch_num_tokens"]),
        num_rows=float(data[NUM_ROWS]),
        dp_size=int(data["dp_size"]),
        info=dict(info),
        read_output=lambda name: response_RT(model_output[PREFIX + name], data, width),
        totals=totals,
        **whole,
    )


def _move_clip(config, ctx: LossContext) -> None:
    """The driver's clip controller sets the upper clip bound of whatever loss runs."""
    bound = loss_side.upper_clip(ctx.info, ctx.plan)
    if bound is not None:
        # verl's configuration fields are frozen; this one is a coefficient of this iteration.
        object.__setattr__(config, "clip_ratio_high", bound)


def _clip_sides(config, ctx: LossContext) -> None:
    """Shares of clipped tokens above and below, apart, for any clipped loss (REPO, App. A.1)."""
    width = ctx.mask_RT.shape[1]
    log_prob = response_RT(ctx.model_output["log_probs"], ctx.micro_batch, width)
    old, advantages = _padded(ctx.micro_batch, "old_log_probs", width), _padded(ctx.micro_batch, "advantages", width)
    sides = loss_side.clip_sides(ctx.plan.loss_mode, log_prob, old, advantages, ctx.mask_RT, *clip_bounds(config))
    ctx.token_means.update(sides)


def _metrics(ctx: LossContext) -> dict:
    """Exact global means under any split: each micro-batch adds its share, ranks average what carries ``dp_size``."""
    from verl.utils.metric.utils import AggregationType, Metric

    metrics = {"verl_entropy/active": Metric(value=1.0, aggregation=AggregationType.MAX)}
    scale = ctx.dp_size / max(ctx.num_tokens, 1.0)
    sums = {name: torch.where(ctx.mask_RT, x_RT.detach().float(), 0.0).sum() for name, x_RT in ctx.token_means.items()}
    sums.update({name: x.detach().float() for name, x in ctx.token_sums.items()})
    shares = (torch.stack(list(sums.values())) * scale).tolist()  # one wait for the device, not one per metric
    for name, share in zip(sums, shares, strict=True):
        metrics[f"verl_entropy/{name}"] = Metric(value=share, aggregation=AggregationType.SUM)
    return metrics


def wrap(module: ModuleType) -> None:
    """Rebind ``ppo_loss`` in ``verl.workers.engine_workers`` (looked up there when a worker builds its loss).

    A training worker asks before it loads a model whether its trainer has our part too.
    """
    original = module.ppo_loss

    @functools.wraps(original)
    def ppo_loss(config, model_output, data, dp_group=None):
        plan = _plan(config)
        if plan is None:
            return original(config=config, model_output=model_output, data=data, dp_group=dp_group)
        ctx = _context(plan, model_output, data)
        if not ctx.num_tokens:  # a transform took all of the mini-batch, and verl would divide 0 by 0
            tu.assign_non_tensor(data, batch_num_tokens=1)
        _move_clip(config, ctx)
        with use_loss(ctx):
            total, metrics = original(config=config, model_output=model_output, data=_for_verl(data), dp_group=dp_group)
        _clip_sides(config, ctx)
        for term in loss_side.extra_terms(ctx):
            total = total + term
        metrics.update(_metrics(ctx))
        if ROW in data.keys():
            metrics[CLIPPED] = loss_side.clipped_tokens(data[ROW], ctx.token_means)
        return total, metrics

    ppo_loss.verl_entropy = True
    module.ppo_loss = ppo_loss
    worker_cls = module.ActorRolloutRefWorker
    original_model = worker_cls.init_model

    @functools.wraps(original_model)
    def init_model(self):
        from verl_entropy.hosts.verl_engine.configs import check_trainer

        check_trainer(self.config.actor)
        return original_model(self)

    worker_cls.init_model = init_model


def is_ours(function) -> bool:
    """Whether ``function`` is the loss that ``wrap`` put in place."""
    return getattr(function, "verl_entropy", False)
