# SPDX-License-Identifier: Apache-2.0
"""Loss side of a step: what the chosen methods add to verl's loss, and their policy losses. Knows no method by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verl_entropy.hosts.common.trainer_keys import HEAD_LOGITS, HEAD_ROWS, HEAD_TOKENS, ROW_SIZE
from verl_entropy.methods.common.gspo import sequence_ratio
from verl_entropy.methods.common.ppo_clip import masked_log_ratio
from verl_entropy.methods.context import ClipBounds, LossContext


def extra_terms(ctx: LossContext) -> list[torch.Tensor]:
    """What is added to verl's loss: the regularizer and the head, each normalised over the global mini-batch."""
    terms = []
    regularizer, head = ctx.plan.regularizer, ctx.plan.head
    if regularizer is not None:
        if "grad_entropy" in regularizer.method.needs:
            _require_entropy(ctx, regularizer.name)
        terms.append(regularizer.method.apply(ctx, regularizer.settings))
    if head is not None:
        logits_N = ctx.model_output.get(HEAD_LOGITS)
        if logits_N is None:
            raise RuntimeError(
                f"verl-entropy: this model output has no outputs of the head {head.name}; the training engine is not ours. Check "
                "`verl-entropy doctor`."
            )
        terms.append(head.method.apply(ctx, head.settings, logits_N, ctx.model_output[HEAD_TOKENS], ctx.model_output[HEAD_ROWS]))
    return terms


def _require_entropy(ctx: LossContext, name: str) -> None:
    if ctx.entropy_RT is None or (torch.is_grad_enabled() and not ctx.entropy_RT.requires_grad):
        raise RuntimeError(
            f"verl-entropy: regularizer={name} got entropy without gradient. Set actor_rollout_ref.actor.calculate_entropy=true."
        )


def token_loss(
    ctx: LossContext, clip: ClipBounds, log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT
) -> tuple[torch.Tensor, dict]:
    """Loss of each token, (R, T), of the plan's policy loss, which is ours; its parts become metrics."""
    choice = ctx.plan.loss
    loss_RT, parts = choice.method.apply(ctx, choice.settings, clip, log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT)
    ctx.token_means.update({f"{choice.name}/{key}": value for key, value in parts.items()})
    return loss_RT, parts


def verls_metrics(parts: dict[str, torch.Tensor], mask_RT: torch.Tensor) -> dict[str, torch.Tensor]:
    """What verl's own losses log, under their names, as means over the micro-batch's tokens; verl averages these over micro-batches."""
    found = {"actor/ppo_kl": parts.get("ppo_kl"), "actor/pg_clipfrac_lower": parts.get("clipfrac_dual")}
    if {"clipfrac_high", "clipfrac_low"} <= parts.keys():
        found["actor/pg_clipfrac"] = parts["clipfrac_high"] + parts["clipfrac_low"]
    inside_RT = mask_RT.bool()
    tokens = inside_RT.sum().clamp_min(1)
    return {
        name: torch.where(inside_RT, x_RT.detach().float(), 0.0).sum() / tokens
        for name, x_RT in found.items()
        if x_RT is not None
    }


def policy_loss(name: str) -> Callable[..., Any]:
    """The function that verl calls for ``loss_mode=name``; aggregation and importance weights are verl's."""

    def loss(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode="token-mean",
        config=None,
        rollout_is_weights=None,
        **_,
    ):
        from verl.trainer.ppo.core_algos import agg_loss

        from verl_entropy.hosts.common import context
        from verl_entropy.hosts.common.loss_tools import clip_bounds

        ctx = context.loss()
        clip = ClipBounds(*clip_bounds(config), config.clip_ratio_c)
        loss_RT, parts = token_loss(ctx, clip, log_prob, old_log_prob, advantages, response_mask)
        if rollout_is_weights is not None:
            loss_RT = loss_RT * rollout_is_weights
        total = agg_loss(loss_mat=loss_RT, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
        return total, verls_metrics(parts, response_mask)

    loss.__name__ = loss.__qualname__ = f"verl_entropy_{name}"
    return loss


def clip_sides(
    loss_mode: str,
    log_prob_RT: torch.Tensor,
    old_log_prob_RT: torch.Tensor,
    advantages_RT: torch.Tensor,
    mask_RT: torch.Tensor,
    low: float,
    high: float,
) -> dict[str, torch.Tensor]:
    """Tokens clipped above and below, apart, for any clipped loss (REPO, App. A.1); (R, T), 0 or 1."""
    ratio_of = sequence_ratio if loss_mode == "gspo" else token_ratio
    ratio_RT = ratio_of(log_prob_RT.detach(), old_log_prob_RT, mask_RT)
    return {
        "clipfrac_high": ((ratio_RT > 1 + high) & (advantages_RT > 0)).float(),
        "clipfrac_low": ((ratio_RT < 1 - low) & (advantages_RT < 0)).float(),
    }


def clipped_tokens(row_R: torch.Tensor, sides: dict[str, torch.Tensor]) -> list[int]:
    """Codes (``trainer_keys.CLIPPED``) of the tokens that ``clip_sides`` gave for the rows of these numbers; [0] without any."""
    side_RT = (sides["clipfrac_high"] - sides["clipfrac_low"]).long()
    r, t = side_RT.nonzero(as_tuple=True)
    return (side_RT[r, t] * (row_R.to(r.device)[r].long() * ROW_SIZE + t)).tolist() or [0]


def token_ratio(log_prob_RT: torch.Tensor, old_log_prob_RT: torch.Tensor, mask_RT: torch.Tensor) -> torch.Tensor:
    """pi / pi_old of each token, 1 outside the mask."""
    return masked_log_ratio(log_prob_RT, old_log_prob_RT, mask_RT).exp()


def upper_clip(ctx_info: dict[str, Any], plan: Any) -> float | None:
    """Where the chosen clip controller has moved the upper clip bound of whatever loss runs; None without one."""
    return None if plan.clip is None else plan.clip.method.apply(ctx_info[plan.clip.name])
