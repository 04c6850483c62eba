# SPDX-License-Identifier: Apache-2.0
"""STEER: token losses reweighted by the size of their predicted entropy change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_entropy.batch.numerics import rounding
from verl_entropy.methods.common.ppo_clip import Info, clip_metrics, masked, ppo_clip
from verl_entropy.methods.context import AdvantageContext, ClipBounds, LossContext
from verl_entropy.methods.method import Loss, Metric, setting


@dataclass(frozen=True)
class Steer:
    """Clipped loss times a weight that falls with the token's predicted entropy change (arXiv 2510.10150)."""

    mode: str = setting("exp", "shape of the weight", choices=("exp", "linear"))
    w_min: float = setting(0.8, "smallest weight (release .8; a later version of the paper .7)", gt=0.0, le=1.0)
    w_max: float = setting(1.2, "largest weight of mode=linear", ge=1.0)
    range: str = setting(
        "batch",
        "extrema of the predicted change: of the batch, at the old policy; or of each micro-batch (authors' code)",
        choices=("batch", "micro_batch"),
    )


MODES = ("exp", "linear")
MIN_PROB = 1e-8
"""Bound of pi and pi_old away from 0 (and of pi away from 1), the released code's."""
MIN_SCALE = 0.02
"""Least value of max |Omega| in the exp weight, the released code's: small changes are not blown up to w_min."""


@torch.no_grad()
def steer_omega(
    log_prob_RT: Tensor, old_log_prob_RT: Tensor, advantages_RT: Tensor, mask_RT: Tensor, entropy_RT: Tensor
) -> Tensor:
    """|Omega| of each token, [R, T] and 0 outside the mask: the size of the first-order entropy change of its update.

    |Omega| = |A / pi_old * pi (1 - pi) (log pi + H)|, H in nats. Without gradient; a non-finite value becomes 0.
    """
    prob = masked(log_prob_RT.float(), mask_RT).exp().clamp(MIN_PROB, 1.0 - MIN_PROB)
    old_prob = masked(old_log_prob_RT.float(), mask_RT).exp().clamp(MIN_PROB, 1.0)
    slope = prob * (1.0 - prob) * (prob.log() + masked(entropy_RT.float(), mask_RT))
    omega = (masked(advantages_RT.float(), mask_RT) / old_prob * slope).abs()
    return torch.where(mask_RT & omega.isfinite(), omega, torch.zeros_like(omega))


def steer_range(omega_RT: Tensor, mask_RT: Tensor) -> tuple[Tensor, Tensor]:
    """(min, max) of |Omega| over the valid tokens as 0-d tensors; (0, 0) on an empty mask."""
    valid = omega_RT[mask_RT]
    if not len(valid):
        zero = torch.zeros((), device=omega_RT.device)
        return zero, zero
    low, high = torch.aminmax(valid)
    return low, high


@torch.no_grad()
def steer_weights(
    omega_RT: Tensor,
    mask_RT: Tensor,
    *,
    mode: str = "exp",
    w_min: float = 0.8,
    w_max: float = 1.2,
    omega_min: float | Tensor | None = None,
    omega_max: float | Tensor | None = None,
) -> Tensor:
    """Weight of each token, [R, T] and 0 outside the mask: near 1 (``w_max``) for a small |Omega|, ``w_min`` for the largest.

        exp      w = exp(-k |Omega|),  k = -ln(w_min) / max(max |Omega|, .02),  in [w_min, 1]
        linear   w = w_max - (|Omega| - min) (w_max - w_min) / (max - min);  (w_min + w_max) / 2 if all are equal up to fp32 rounding

    ``omega_min`` and ``omega_max`` are those of the global mini-batch; where None, of the tokens given.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: allowed are {', '.join(MODES)}.")
    if not 0.0 < w_min <= 1.0:
        raise ValueError(f"w_min={w_min}: must be in (0, 1]. Use 0.8, or 1 for no reweighting.")
    low, high = steer_range(omega_RT, mask_RT)
    low = low if omega_min is None else torch.as_tensor(omega_min, dtype=low.dtype, device=low.device)
    high = high if omega_max is None else torch.as_tensor(omega_max, dtype=high.dtype, device=high.device)
    if mode == "exp":
        k = -math.log(w_min) / high.clamp_min(MIN_SCALE)
        return masked((-k * omega_RT).exp().clamp(w_min, 1.0), mask_RT)
    if w_max < w_min:
        raise ValueError(f"w_max={w_max}: must be >= w_min={w_min}. Use 1.2.")
    share = torch.where(
        high - low > rounding(high.abs()), (omega_RT - low) / (high - low).clamp_min(torch.finfo(low.dtype).tiny), 0.5
    )
    return masked((w_max - share * (w_max - w_min)).clamp(w_min, w_max), mask_RT)


def steer(
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
    entropy_RT: Tensor | None,
    *,
    mode: str = "exp",
    w_min: float = 0.8,
    w_max: float = 1.2,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float | None = 10.0,
    omega_min: float | Tensor | None = None,
    omega_max: float | Tensor | None = None,
) -> tuple[Tensor, Info]:
    """Clipped loss times a weight that is small where the update would move the entropy most.

        loss = w ppo_clip,   w = steer_weights(|Omega|),   |Omega| = |A / pi_old * pi (1 - pi) (log pi + H)|

    Shapes: all tensors [R, T], the loss too; it is 0 outside the mask. The weights carry no gradient; the
    aggregation's denominators are unchanged. ``entropy_RT`` (nats) may be that of the old pass or of this
    one.

    Source: arXiv 2510.10150, the formula of Omega from the authors' code (zz-haooo/STEER at b31df71,
    ``compute_token_weights``); the paper's own was not seen. There the extrema are those of the micro-batch,
    so the loss depends on the split; pass ``omega_min`` and ``omega_max`` of the global mini-batch for a loss
    that does not. The code skips the branch without a word when it has no entropy; here that is an error.
    Defaults are the release's (exp, .8, clip .2/.28, c = 10); a later version of the paper is said to use
    w_min = .7.

    Neutral: w_min = 1 (exp), or w_min = w_max = 1 (linear), is ``ppo_clip``.
    """
    if entropy_RT is None:
        raise ValueError("steer needs the token entropy, which is missing. Turn its computation on (calculate_entropy=True).")
    loss, info = ppo_clip(
        log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip
    )
    omega = steer_omega(log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT, entropy_RT)
    weight = steer_weights(omega, mask_RT, mode=mode, w_min=w_min, w_max=w_max, omega_min=omega_min, omega_max=omega_max)
    return loss * weight, info | {"steer_weight": weight, "steer_omega": omega}


def _apply(
    ctx: LossContext,
    s: Steer,
    clip: ClipBounds,
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
) -> tuple[Tensor, Info]:
    return steer(
        log_prob_RT,
        old_log_prob_RT,
        advantages_RT,
        mask_RT,
        ctx.old_entropy(),
        mode=s.mode,
        w_min=s.w_min,
        w_max=s.w_max,
        eps_low=clip.low,
        eps_high=clip.high,
        dual_clip=clip.dual,
        **ctx.info.get("steer", {}),
    )


def _batch(ctx: AdvantageContext, s: Steer) -> dict[str, Any]:
    """Extrema of the predicted change at the old policy, over the whole batch, which a micro-batch cannot know."""
    if s.range != "batch":
        return {}
    old_RT = torch.where(ctx.mask_RT, ctx.log_probs(), 0.0)
    assert ctx.advantages_RT is not None  # a loss is asked after base and transforms
    omega_RT = steer_omega(old_RT, old_RT, ctx.advantages_RT, ctx.mask_RT, ctx.entropies())
    low, high = steer_range(omega_RT, ctx.mask_RT)
    return {"omega_min": float(low), "omega_max": float(high)}


STEER = Loss(
    name="steer",
    summary="clipped loss, weighted down where the update would move entropy most",
    when="entropy collapses through few tokens",
    cost="none measurable",
    source="arXiv 2510.10150; zz-haooo/STEER @b31df71",
    settings=Steer,
    function="verl_entropy.methods.losses.steer.steer",
    needs=frozenset({"entropy"}),
    metrics={
        "steer_weight": Metric("mean weight of a token", "number", "arXiv 2510.10150"),
        "steer_omega": Metric("mean size of the predicted change of entropy", "nats per unit of step", "arXiv 2510.10150"),
        **clip_metrics("arXiv 2510.10150"),
    },
    batch=_batch,
    apply=_apply,
)
