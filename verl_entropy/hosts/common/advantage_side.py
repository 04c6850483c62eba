# SPDX-License-Identifier: Apache-2.0
"""Advantage side of a step: base estimator, transforms, and what the loss side reads of the batch. Knows no method by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch

from verl_entropy.batch.turns import padded
from verl_entropy.config.plan import Choice
from verl_entropy.log import say
from verl_entropy.methods.common.equal_returns import ROUNDED, unequal_tokens, zero_equal_returns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import LogitsOutput

NOTICED = 1e-3
"""An advantage by rounding that is worth a warning."""


def estimate(ctx: AdvantageContext) -> torch.Tensor:
    """Advantages (R, T) of the plan's estimator, which is ours."""
    choice = ctx.plan.estimator
    advantages_K, metrics = choice.method.apply(ctx, choice.settings)
    ctx.metrics.update({f"verl_entropy/{choice.name}/{key}": value for key, value in metrics.items()})
    return ctx.turns.to_tokens(advantages_K)


def settle_equal_returns(
    ctx: AdvantageContext, advantages_RT: torch.Tensor, return_R: torch.Tensor | None = None
) -> torch.Tensor:
    """The base's advantages without GRPO's rounding error on groups of equal returns; with it, and a word about it, if that was chosen.

    ``return_R``: the rows' returns, where the base compares rows of one turn; None: it compares trajectories.
    """
    if ctx.plan.base not in ROUNDED:
        return advantages_RT
    turns = ctx.turns
    compared = (turns.score_J, turns.group_J) if return_R is None else (return_R[turns.row_K], turns.group_K)
    fixed_RT, rounding = zero_equal_returns(advantages_RT, turns, *compared)
    ctx.metrics["verl_entropy/equal_returns/rounding"] = rounding
    if ctx.plan.zeroes_equal_returns:
        return fixed_RT
    if rounding > NOTICED:
        _warn_of_rounding()
    return advantages_RT


@functools.cache
def _warn_of_rounding() -> None:
    say(
        "WARNING: verl's GRPO gives groups whose trajectories all have the same return an advantage by rounding "
        "(verl_entropy/equal_returns/rounding). Set +algorithm.entropy.equal_returns=zero."
    )


def apply_transforms(ctx: AdvantageContext, advantages_RT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the plan's transforms in order; the second result is a mask of tokens to keep, if any transform masks.

    A dropped token keeps the advantage that it had then: a head that learns advantages reads it.
    """
    keep_RT, advantages, turns, dropped_RT = None, advantages_RT, ctx.turns, None
    if ctx.plan.drops_groups:
        by_success = ctx.plan.entropy.equal_returns == "drop_by_success"
        keep_RT, ctx.metrics["verl_entropy/equal_returns/dropped_groups"] = unequal_tokens(turns, by_success)
        dropped_RT = advantages_RT
        ctx.turns = dataclasses.replace(turns, mask_RT=turns.mask_RT & keep_RT)
    chain = [(choice, choice.method.apply) for choice in ctx.plan.transforms]
    if ctx.plan.rollout is not None and ctx.plan.rollout.method.share is not None:
        chain.append((ctx.plan.rollout, ctx.plan.rollout.method.share))
    for choice, apply in chain:
        result = apply(ctx, advantages, choice.settings)
        advantages = result.advantages
        ctx.metrics.update({f"verl_entropy/{choice.name}/{key}": value for key, value in result.metrics.items()})
        if result.mask_RT is not None and result.mask_RT is not ctx.turns.mask_RT:
            advantages = padded(advantages)
            now_RT = ctx.turns.mask_RT & ~result.mask_RT
            dropped_RT = torch.where(now_RT, advantages, torch.zeros_like(advantages) if dropped_RT is None else dropped_RT)
            keep_RT = result.mask_RT if keep_RT is None else keep_RT & result.mask_RT
            # Later statistics are over what is left; the turns themselves stay.
            ctx.turns = dataclasses.replace(ctx.turns, mask_RT=ctx.turns.mask_RT & keep_RT)
    advantages_RT = padded(advantages)
    if not bool(torch.isfinite(advantages_RT[ctx.mask_RT]).all()):
        raise RuntimeError(
            f"verl-entropy: non-finite advantages after {ctx.plan.base} -> {[t.name for t in ctx.plan.transforms]} at step "
            f"{ctx.step}; check rewards and log-probs of this batch (verl's metric rollout_probs_diff, NaN in rm_scores)."
        )
    if keep_RT is not None and not bool((keep_RT & ctx.mask_RT).any()):
        # An empty batch has no mean: keep the tokens, without an advantage.
        ctx.turns = turns
        ctx.metrics["verl_entropy/empty_after_mask"] = 1.0
        return torch.zeros_like(advantages_RT), None
    if keep_RT is not None:
        advantages_RT = torch.where(turns.mask_RT & ~keep_RT, dropped_RT, advantages_RT)
    return advantages_RT, keep_RT


def worker_columns(ctx: AdvantageContext) -> dict[str, torch.Tensor]:
    """Columns that the chosen methods' loss side reads in the training workers; names start with ``verl_entropy_``."""
    columns: dict[str, torch.Tensor] = {}
    for choice in ctx.plan.choices:
        if choice.method.columns is None:
            continue
        for name, column in choice.method.columns(ctx, choice.settings).items():
            if f"verl_entropy_{name}" in columns:
                raise RuntimeError(f"verl-entropy: two methods give a column {name}, the second is {choice.name}. Rename one.")
            columns[f"verl_entropy_{name}"] = column
    return columns


def batch_info(ctx: AdvantageContext) -> dict[str, Any]:
    """Statistics over the whole batch that a loss needs and that a micro-batch cannot know, joined to what the states said."""
    said: dict[str, Any] = {}
    for choice in ctx.plan.choices:
        if choice.method.batch is not None:
            said[choice.name] = {**ctx.info.get(choice.name, {}), **choice.method.batch(ctx, choice.settings)}
    return said


def logits_outputs(choices: Iterable[Choice]) -> dict[str, LogitsOutput]:
    """What the chosen methods compute from the logits, by name."""
    return {name: output for c in choices if c.method.logits is not None for name, output in c.method.logits(c.settings).items()}
