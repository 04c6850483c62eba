# SPDX-License-Identifier: Apache-2.0
"""Adapters from the loss context to the pure functions: regularisers, the head's loss, registered policy losses."""

from __future__ import annotations

import torch

from verl_entropy.glue.context import LossContext
from verl_entropy.numerics import aggregate
from verl_entropy.regularizers.epo import epo_regularizer
from verl_entropy.seal.loss import seal_loss, seal_parts


def _column(ctx: LossContext, name: str) -> torch.Tensor:
    """A column of the driver, padded to the response layout (R, T)."""
    nested = ctx.micro_batch[name]
    return torch.nested.to_padded_tensor(nested, padding=0.0, output_size=tuple(ctx.mask_RT.shape))


def _aggregate(ctx: LossContext, x_RT: torch.Tensor, mode: str) -> torch.Tensor:
    weight_RT = _column(ctx, "verl_entropy_token_weight") if mode == "nested-mean" else None
    return aggregate(
        x_RT,
        ctx.mask_RT,
        mode,
        num_tokens=ctx.num_tokens,
        num_rows=ctx.num_rows,
        dp_size=ctx.dp_size,
        weight=weight_RT,
    )


# ----------------------------------------------------------------------------- regularisers


def _hbar(ctx: LossContext, hbar):
    """Corridor centre as a number, or per token when the history is kept by turn index."""
    if not isinstance(hbar, list):
        return hbar
    # Turn indices that no earlier step reached have no corridor (NaN).
    table = torch.tensor([*hbar, float("nan")], dtype=torch.float32, device=ctx.mask_RT.device)
    return table[_column(ctx, "verl_entropy_turn").long().clamp(max=len(hbar))]


def _epo(ctx: LossContext, s) -> torch.Tensor:
    info = ctx.info["epo"]
    loss_RT, parts = epo_regularizer(
        ctx.entropy_RT,
        ctx.mask_RT,
        hbar=_hbar(ctx, info["hbar"]),
        beta=info["beta"],
        entropy_coeff=s.entropy_coeff,
        smooth_coeff=s.smooth_coeff,
        kappa_low=s.kappa_low,
        kappa_high=s.kappa_high,
        penalty=s.penalty,
    )
    ctx.token_means.update({f"epo/{k}": v for k, v in parts.items()})
    return _aggregate(ctx, loss_RT, s.aggregation)


REGULARIZERS = {"epo": _epo}


def _require_entropy(ctx: LossContext, name: str) -> None:
    if ctx.entropy_RT is None or (torch.is_grad_enabled() and not ctx.entropy_RT.requires_grad):
        raise RuntimeError(
            f"verl-entropy: regularizer={name} got entropy without gradient. Set actor_rollout_ref.actor.calculate_entropy=true."
        )


# ----------------------------------------------------------------------------- head


def _seal(ctx: LossContext, s) -> torch.Tensor:
    logits_N = ctx.model_output.get("seal_logits")
    if logits_N is None:
        raise RuntimeError(
            "verl-entropy: this model output has no SEAL logits; the training engine is not ours. Check `verl-entropy doctor`."
        )
    mask_RT = ctx.loss_mask_RT
    logits_RT = torch.zeros(mask_RT.shape, dtype=torch.float32, device=logits_N.device)
    logits_RT = logits_RT.masked_scatter(mask_RT, logits_N.float())
    label_R = ctx.micro_batch["verl_entropy_label"]
    weight_R = ctx.micro_batch["verl_entropy_head_weight"] if s.skip_uniform_groups else None
    loss_RT = seal_loss(logits_RT, label_R, mask_RT, row_weight_R=weight_R)
    ctx.token_means["seal/loss"] = loss_RT
    ctx.token_means.update({f"seal/{k}": v for k, v in seal_parts(logits_RT, label_R, mask_RT).items()})
    loss = aggregate(loss_RT, mask_RT, "token-mean", num_tokens=ctx.num_tokens, num_rows=ctx.num_rows, dp_size=ctx.dp_size)
    return s.alpha * loss


def extra_terms(ctx: LossContext) -> list[torch.Tensor]:
    """What is added to verl's loss: the regulariser and the head, each normalised over the global mini-batch."""
    terms = []
    if ctx.plan.regularizer is not None:
        _require_entropy(ctx, ctx.plan.regularizer.name)
        terms.append(REGULARIZERS[ctx.plan.regularizer.name](ctx, ctx.plan.regularizer.settings))
    if ctx.plan.seal is not None:
        terms.append(_seal(ctx, ctx.plan.seal.settings))
    return terms
