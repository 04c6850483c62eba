# SPDX-License-Identifier: Apache-2.0
"""Adapters from the loss context to the pure functions: regularisers, the head's loss, registered policy losses."""

from __future__ import annotations

import torch

from verl_entropy.batch.numerics import aggregate
from verl_entropy.hosts.common.context import LossContext
from verl_entropy.hosts.common.loss_tools import clip_bounds, response_RT
from verl_entropy.hosts.common.trainer_keys import NUCLEUS_ENTROPY, NUM_PEAK_ROWS, SEAL_LOGITS, SEAL_ROWS, SEAL_TOKENS
from verl_entropy.methods.heads.seal_loss import advantage_label, seal_loss, seal_parts
from verl_entropy.methods.losses.aepo import aepo
from verl_entropy.methods.losses.steer import steer
from verl_entropy.methods.regularizers.entropy_bonus import entropy_bonus
from verl_entropy.methods.regularizers.epo import epo_regularizer
from verl_entropy.methods.regularizers.siren import siren_loss, siren_surrogate


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
        entropy_coeff=s.entropy_coeff * info["decay"],
        smooth_coeff=s.smooth_coeff,
        kappa_low=s.kappa_low,
        kappa_high=s.kappa_high,
        penalty=s.penalty,
    )
    ctx.token_means.update({f"epo/{k}": v for k, v in parts.items()})
    return _aggregate(ctx, loss_RT, s.aggregation)


def _bonus(ctx: LossContext, s) -> torch.Tensor:
    ctx.token_means["entropy_bonus/entropy"] = ctx.entropy_RT
    loss_RT = entropy_bonus(ctx.entropy_RT, ctx.mask_RT, coef=ctx.info["entropy_bonus"]["coef"])
    return _aggregate(ctx, loss_RT, s.aggregation)


def _siren(ctx: LossContext, s) -> torch.Tensor:
    """The surrogate with SIREN's gradient, shifted to SIREN's value, so that the reported loss is the method's."""
    info, peak_RT = ctx.info["siren"], _column(ctx, "verl_entropy_peak").bool() & ctx.mask_RT
    nucleus_RT = response_RT(ctx.model_output[NUCLEUS_ENTROPY], ctx.micro_batch, ctx.mask_RT.shape[1])
    loss_RT = siren_surrogate(nucleus_RT, peak_RT, hbar_global=info["hbar"], anchor=info["anchor"], beta=s.beta)
    rows = float(ctx.micro_batch[NUM_PEAK_ROWS])
    share = aggregate(loss_RT, peak_RT, "seq-mean-token-mean", num_tokens=ctx.num_tokens, num_rows=rows, dp_size=ctx.dp_size)
    value = siren_loss(info["hbar"], info["anchor"], s.beta)
    tokens = ctx.mask_RT.sum() / max(ctx.num_tokens, 1.0) * ctx.dp_size
    ctx.token_means["siren/loss"] = torch.full(ctx.mask_RT.shape, float(value), device=ctx.mask_RT.device)
    return share - share.detach() + value * tokens


REGULARIZERS = {"epo": _epo, "entropy_bonus": _bonus, "siren": _siren}


def _require_entropy(ctx: LossContext, name: str) -> None:
    if name == "siren":
        return
    if ctx.entropy_RT is None or (torch.is_grad_enabled() and not ctx.entropy_RT.requires_grad):
        raise RuntimeError(
            f"verl-entropy: regularizer={name} got entropy without gradient. Set actor_rollout_ref.actor.calculate_entropy=true."
        )


# ----------------------------------------------------------------------------- head


def _seal(ctx: LossContext, s) -> torch.Tensor:
    logits_N = ctx.model_output.get(SEAL_LOGITS)
    if logits_N is None:
        raise RuntimeError(
            "verl-entropy: this model output has no SEAL logits; the training engine is not ours. Check `verl-entropy doctor`."
        )
    # Trained tokens alone, from the engine's list of them: no padded matrix, no mask, no wait for the device.
    token_N, row_N = ctx.model_output[SEAL_TOKENS], ctx.model_output[SEAL_ROWS]
    if s.label == "advantage":
        label_N = advantage_label(ctx.micro_batch["advantages"].values().index_select(0, token_N))
    else:
        label_N = ctx.micro_batch["verl_entropy_label"].index_select(0, row_N)
    weight_N = ctx.micro_batch["verl_entropy_head_weight"].index_select(0, row_N) if s.skip_uniform_groups else None
    if s.label == "advantage":  # tokens that rollout correction rejected have an advantage of 0, which is no label
        kept_N = ctx.mask_RT[ctx.loss_mask_RT].to(logits_N.dtype)
        weight_N = kept_N if weight_N is None else weight_N * kept_N
    loss = seal_loss(logits_N, label_N, None, row_weight_R=weight_N).sum()
    ctx.token_sums["seal/loss"] = loss
    ctx.token_sums.update({f"seal/{k}": v.sum() for k, v in seal_parts(logits_N, label_N, None).items()})
    return loss * (s.alpha * ctx.dp_size / max(ctx.num_tokens, 1.0))


def extra_terms(ctx: LossContext) -> list[torch.Tensor]:
    """What is added to verl's loss: the regulariser and the head, each normalised over the global mini-batch."""
    terms = []
    if ctx.plan.regularizer is not None:
        _require_entropy(ctx, ctx.plan.regularizer.name)
        terms.append(REGULARIZERS[ctx.plan.regularizer.name](ctx, ctx.plan.regularizer.settings))
    if ctx.plan.seal is not None:
        terms.append(_seal(ctx, ctx.plan.seal.settings))
    return terms


# ----------------------------------------------------------------------------- policy losses


def _old_entropy(ctx: LossContext, log_prob: torch.Tensor) -> torch.Tensor:
    nested = ctx.micro_batch["entropy"]
    return torch.nested.to_padded_tensor(nested, padding=0.0, output_size=tuple(log_prob.shape)).float()


def _steer(ctx: LossContext, s, config, log_prob, old_log_prob, advantages, mask_RT):
    low, high = clip_bounds(config)
    return steer(
        log_prob,
        old_log_prob,
        advantages,
        mask_RT,
        _old_entropy(ctx, log_prob),
        mode=s.mode,
        w_min=s.w_min,
        w_max=s.w_max,
        eps_low=low,
        eps_high=high,
        dual_clip=config.clip_ratio_c,
        **ctx.info.get("steer", {}),
    )


def _aepo(ctx: LossContext, s, config, log_prob, old_log_prob, advantages, mask_RT):
    low, high = clip_bounds(config)
    return aepo(
        log_prob,
        old_log_prob,
        advantages,
        mask_RT,
        eps_low=low,
        eps_high=high,
        dual_clip=config.clip_ratio_c,
    )


LOSSES = {"steer": _steer, "aepo": _aepo}


def policy_loss(name: str):
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

        ctx = context.loss()
        loss_RT, info = LOSSES[name](ctx, ctx.plan.loss.settings, config, log_prob, old_log_prob, advantages, response_mask)
        if rollout_is_weights is not None:
            loss_RT = loss_RT * rollout_is_weights
        ctx.token_means.update({f"{name}/{key}": value for key, value in info.items()})
        total = agg_loss(loss_mat=loss_RT, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
        return total, {}

    loss.__name__ = loss.__qualname__ = f"verl_entropy_{name}"
    return loss
