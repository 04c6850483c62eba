# SPDX-License-Identifier: Apache-2.0
"""AEPO: entropy-balanced clipping, which keeps a bounded gradient for likely good tokens beyond the clip range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.methods.common.ppo_clip import (
    MAX_LOG_RATIO,
    Info,
    apply_dual_clip,
    check_clip,
    clip_info,
    clip_metrics,
    masked,
    masked_log_ratio,
)
from verl_entropy.methods.context import ClipBounds, LossContext
from verl_entropy.methods.method import Loss


@dataclass(frozen=True)
class AepoLoss:
    """Entropy-balanced clipping of AEPO (arXiv 2510.14545); the bounds are verl's clip_ratio_low, _high and _c."""


def aepo(
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
    entropy_RT: Tensor | None = None,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> tuple[Tensor, Info]:
    """PPO's clipped loss whose gradient does not vanish above the upper bound.

        w = pi / pi_old;   loss = max(-A w, -A clip(w, 1 - eps_low, (1 + eps_high) w / sg[w]))

    The value is PPO's. The gradient is -A F d log pi with

        F = 1 + eps_high   if w > 1 + eps_high and A > 0
            0              if w < 1 - eps_low  and A < 0
            w              otherwise

    and 0 where the dual clip binds (A < 0, w > c).

    Shapes: all tensors [R, T], the loss too; it is 0 outside the mask. ``entropy_RT`` is not used: the
    entropy-aware advantage is the transform of the same name.

    Source: arXiv 2510.14545, read through a note that quotes the equations and a public copy of the authors'
    code (.2/.2, c = 3). The bound is written here as (1 + eps_high) exp(l - sg[l]) with l = log w, so that
    its value is 1 + eps_high exactly.
    """
    check_clip(eps_low, eps_high, dual_clip)
    advantages = masked(advantages_RT, mask_RT)
    log_ratio = masked_log_ratio(log_prob_RT, old_log_prob_RT, mask_RT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    upper = (1.0 + eps_high) * (log_ratio - log_ratio.detach()).exp()
    above, below = ratio > 1.0 + eps_high, ratio < 1.0 - eps_low
    bounded = torch.where(above, upper, ratio.clamp_min(1.0 - eps_low))
    binds = (above & (advantages > 0)) | (below & (advantages < 0))
    loss = -advantages * torch.where(binds, bounded, ratio)
    with torch.no_grad():
        info = clip_info(ratio, advantages, loss, eps_low, eps_high, dual_clip) | {"ppo_kl": -log_ratio.detach()}
    return apply_dual_clip(loss, advantages, dual_clip), info


def _apply(
    ctx: LossContext,
    s: AepoLoss,
    clip: ClipBounds,
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
) -> tuple[Tensor, Info]:
    return aepo(log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT, eps_low=clip.low, eps_high=clip.high, dual_clip=clip.dual)


AEPO = Loss(
    name="aepo",
    summary="PPO's value, but the gradient of good tokens above the clip bound is kept, bounded",
    when="clip-higher loses the gradient of exploring tokens",
    cost="none measurable",
    source="arXiv 2510.14545",
    settings=AepoLoss,
    function="verl_entropy.methods.losses.aepo.aepo",
    metrics=clip_metrics("AEPO"),
    apply=_apply,
)
