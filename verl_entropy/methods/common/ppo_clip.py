# SPDX-License-Identifier: Apache-2.0
"""PPO's clipped loss per token with separate bounds: the loss of GRPO, LOOP, DAPO, REPO and ADAPO."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.methods.method import Metric

MAX_LOG_RATIO = 20.0
"""Bound of the log ratio before exp, as in verl: e^20 is far outside any clip range and far from overflow."""

Info = dict[str, Tensor]


def masked_log_ratio(log_prob_RT: Tensor, old_log_prob_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """log(pi / pi_old), 0 outside the mask; garbage there reaches neither the value nor the gradient."""
    zero = torch.zeros((), dtype=log_prob_RT.dtype, device=log_prob_RT.device)
    return torch.where(mask_RT, log_prob_RT, zero) - torch.where(mask_RT, old_log_prob_RT, zero)


def masked(x_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """``x_RT`` where the mask is True, else 0."""
    return torch.where(mask_RT, x_RT, torch.zeros((), dtype=x_RT.dtype, device=x_RT.device))


def check_clip(eps_low: float, eps_high: float, dual_clip: float | None) -> None:
    """Raise ValueError for clip bounds that make no sense."""
    if not 0.0 <= eps_low <= 1.0:
        raise ValueError(f"eps_low={eps_low}: must be in [0, 1], the ratio is clipped at 1 - eps_low. Use 0.2.")
    if eps_high < 0.0:
        raise ValueError(f"eps_high={eps_high}: must be >= 0. Use 0.2, or 0.28 for DAPO.")
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual_clip={dual_clip}: must be > 1. Use 3.0 (verl), or null for none.")


def clip_info(ratio: Tensor, advantages: Tensor, loss: Tensor, eps_low: float, eps_high: float, dual_clip: float | None) -> Info:
    """Which tokens are clipped, as 0/1 tensors: above, below (REPO, appendix A.1), and by the dual clip (of ``loss``)."""
    info = {
        "clipfrac_high": ((ratio > 1.0 + eps_high) & (advantages > 0)).float(),
        "clipfrac_low": ((ratio < 1.0 - eps_low) & (advantages < 0)).float(),
    }
    if dual_clip is not None:
        info["clipfrac_dual"] = ((loss > -advantages * dual_clip) & (advantages < 0)).float()
    return info


def clip_metrics(source: str) -> dict[str, Metric]:
    """The metrics of ``clip_info`` and of ``ppo_kl`` beside it."""
    return {
        "clipfrac_high": Metric("share of tokens clipped above by the loss", "share", source),
        "clipfrac_low": Metric("share of tokens clipped below", "share", source),
        "clipfrac_dual": Metric("share of tokens at the dual clip", "share", source),
        "ppo_kl": Metric("mean log pi_old - log pi", "nats", source),
    }


def apply_dual_clip(loss: Tensor, advantages: Tensor, dual_clip: float | None) -> Tensor:
    """min(loss, -c A) for negative advantages: bounds the loss of tokens that became much likelier (arXiv 1912.09729)."""
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def ppo_clip(
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
    """Clipped surrogate, to minimise.

        w    = pi / pi_old
        loss = max(-A w, -A clip(w, 1 - eps_low, 1 + eps_high));   for A < 0: min(loss, -A c) with c = ``dual_clip``

    Shapes: all tensors [R, T], the loss too; it is 0 outside the mask. ``entropy_RT`` is not used. ``info``
    holds per-token tensors whose mean over the valid tokens of the mini-batch is the metric: clipfrac_high,
    clipfrac_low, clipfrac_dual, ppo_kl.

    Source: PPO, arXiv 1707.06347; asymmetric bounds from DAPO, arXiv 2503.14476. Equal, bit for bit, to
    verl's ``vanilla`` before aggregation. Settings: LOOP .2/.2 (its appendix B.1 says .1), DAPO and REPO
    .2/.28, ADAPO .2 with ``eps_high`` moved in [.2, .3] by ``TargetEntropyController``. REPO's papers have no
    dual clip; verl has c = 3.
    """
    check_clip(eps_low, eps_high, dual_clip)
    advantages = masked(advantages_RT, mask_RT)
    log_ratio = masked_log_ratio(log_prob_RT, old_log_prob_RT, mask_RT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = -advantages * ratio.clamp(1.0 - eps_low, 1.0 + eps_high)
    loss = torch.maximum(-advantages * ratio, clipped)
    with torch.no_grad():
        info = clip_info(ratio, advantages, loss, eps_low, eps_high, dual_clip) | {"ppo_kl": -log_ratio.detach()}
    return apply_dual_clip(loss, advantages, dual_clip), info
