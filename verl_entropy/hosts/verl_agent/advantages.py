# SPDX-License-Identifier: Apache-2.0
"""Advantages in the driver: base estimator (verl-agent's own or ours), transforms, and columns for the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics import glossary
from verl_entropy.hosts.common import advantage_side
from verl_entropy.hosts.common.trainer_keys import PREFIX, WORKER_INFO
from verl_entropy.hosts.verl_agent import rows as rows_module
from verl_entropy.hosts.verl_agent.rows import Fields, Rows
from verl_entropy.log import say
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.result import RowScores

if TYPE_CHECKING:
    from verl_entropy.hosts.common.state import Run

OLD_ENTROPY = "verl_entropy_old"
"""Column with the entropy of the old-log-prob pass, fp32."""
KEEP = "verl_entropy_mask"
"""Column with the tokens that are trained, where a transform took some away."""


def row_estimate(choice: Any, data: Any, rows: Rows, fields: Fields) -> tuple[Tensor, dict[str, float]]:
    """Advantages (R, T) with statistics over rows, the values of verl-agent's code: each row has its own score."""
    if choice.method.over_rows is None:
        raise ConfigError(
            f"{choice.method.path}.statistics=row: {choice.name} has no form with a score of each row. Set statistics=trajectory."
        )

    def trajectories():
        return fields.without_tokens().turns(torch.ones(len(rows.first_U), 1), 0.0)

    def scored(values_K: Tensor | None):
        if values_K is None:
            return rows_module.row_turns(data, torch.zeros(len(rows.origin_R)))
        values_U = torch.zeros(len(rows.first_U), dtype=torch.float64).index_copy_(0, trajectories().row_K, values_K)
        return rows_module.row_turns(data, rows.all(values_U))

    advantages_R, metrics = choice.method.over_rows(RowScores(trajectories, scored), choice.settings)
    mask_RT = data.batch["response_mask"].bool()
    return torch.where(mask_RT, advantages_R[:, None], 0.0), metrics


def _context(run: Run, step: int, total: int, data: Any, rows: Rows, fields: Fields) -> AdvantageContext:
    threshold = run.plan.success_threshold
    entropy = data.batch.get(OLD_ENTROPY, None)
    if entropy is None and "entropy" in run.plan.needs:
        raise RuntimeError(
            "verl-entropy: the workers sent no entropies with the old log-probs; they do not run our worker class."
        )
    found = {}
    for name in advantage_side.logits_outputs(run.plan.choices):
        found[name] = rows.unique(data.batch[PREFIX + name]).float()
    return AdvantageContext(
        plan=run.plan,
        step=step,
        total_steps=total,
        turns=fields.turns(fields.mask_UT, threshold),
        mask_RT=fields.mask_UT,
        entropy_RT=None if entropy is None else rows.unique(entropy).float(),
        old_log_probs_RT=rows.unique(data.batch["old_log_probs"]).float(),
        fields=found,
    )


def compute(original: Callable, run: Run, step: int, total: int, penalty: float, data: Any, args: dict[str, Any]) -> Any:
    """verl-agent's ``compute_advantage`` with our base, transforms and columns; returns the batch and metrics of the step."""
    rows = rows_module.unique_rows(data.non_tensor_batch)
    fields = rows_module.read(data, rows, penalty)
    ctx = _context(run, step, total, data, rows, fields)
    ctx.metrics["verl_entropy/copied_rows"] = float(rows.copies)
    run.advance(ctx)
    chosen = run.plan.estimator
    if chosen is None:
        data = original(data, **args)
    elif getattr(chosen.settings, "statistics", None) == "row":
        advantages, metrics = row_estimate(chosen, data, rows, fields)
        ctx.metrics.update({f"verl_entropy/{chosen.name}/{key}": value for key, value in metrics.items()})
        data.batch["advantages"] = data.batch["returns"] = advantages
    else:
        data.batch["advantages"] = data.batch["returns"] = rows.all(advantage_side.estimate(ctx))
    _transform(ctx, data, rows)
    for name, column in advantage_side.worker_columns(ctx).items():
        data.batch[name] = rows.all(column)
    ctx.info.update(advantage_side.batch_info(ctx))
    data.meta_info[WORKER_INFO] = ctx.info
    return data, {**ctx.metrics, **_diagnostics(run, ctx)}


def _diagnostics(run: Run, ctx: AdvantageContext) -> dict[str, float]:
    """Metrics of the diagnostics that need neither texts nor another forward pass."""
    if run.diagnostics is None:
        return {}
    metrics = run.diagnostics.live.step(ctx)
    for message in run.diagnostics.live.messages:
        say(message.removeprefix("verl-entropy: "))
    return glossary.compact(metrics) if run.diagnostics.settings.profile == "compact" else metrics


def _transform(ctx: AdvantageContext, data: Any, rows: Rows) -> None:
    advantages_UT = rows.unique(data.batch["advantages"])
    ctx.advantages_RT = advantage_side.settle_equal_returns(
        ctx, advantages_UT, rows.unique(data.batch["token_level_rewards"]).sum(-1)
    )
    if not ctx.plan.transforms and not ctx.plan.drops_groups and ctx.advantages_RT is advantages_UT:
        return
    ctx.advantages_RT, keep_UT = advantage_side.apply_transforms(ctx, ctx.advantages_RT)
    if keep_UT is not None:
        ctx.mask_RT = ctx.mask_RT & keep_UT
        data.batch[KEEP] = rows.all(ctx.mask_RT)
    data.batch["advantages"] = rows.all(ctx.advantages_RT)


def keep_every_row(mask_RT: Tensor, first_RT: Tensor, advantages_RT: Tensor) -> tuple[Tensor, Tensor]:
    """For means over rows: a row that lost all its tokens keeps its first one, with advantage 0, so that 0 / 0 does not occur."""
    empty_R = ~mask_RT.any(-1)
    kept_RT = mask_RT | (first_RT & empty_R[:, None])
    return kept_RT, torch.where(empty_R[:, None], 0.0, advantages_RT)
