# SPDX-License-Identifier: Apache-2.0
"""Three methods of a package of its own: a transform, a regularizer and a policy loss. See verl_entropy/methods/README.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, padded
from verl_entropy.methods.context import AdvantageContext, ClipBounds, LossContext
from verl_entropy.methods.method import Loss, Metric, Regularizer, Transform, setting
from verl_entropy.methods.result import TransformResult

# ----------------------------------------------------------------------------- a transform


@dataclass(frozen=True)
class Surprise:
    """Settings of the transform; each is checked against its bounds before Ray starts."""

    weight: float = setting(0.5, "how much a token of probability 0 weighs more than one of probability 1", ge=0.0)


def surprise(advantages_RT: Tensor, log_prob_RT: Tensor, mask_RT: Tensor, *, weight: float) -> Tensor:
    """Tokens that the policy found unlikely weigh more; (R, T), 0 outside the mask.

        A' = A (1 + weight (1 - pi))

    Neutral: weight = 0.
    """
    probability_RT = torch.where(mask_RT, log_prob_RT, 0.0).exp()
    return torch.where(mask_RT, advantages_RT * (1.0 + weight * (1.0 - probability_RT)), 0.0)


def _surprise(ctx: AdvantageContext, advantages: Tensor | Packed, s: Surprise) -> TransformResult:
    mask_RT = ctx.turns.mask_RT
    return TransformResult(surprise(padded(advantages), ctx.log_probs(), mask_RT, weight=s.weight))


SURPRISE = Transform(
    name="surprise",
    summary="weights a token's advantage by how unlikely it was",
    when="an example of a transform",
    cost="negligible",
    source="ours",
    settings=Surprise,
    function="own_methods.surprise",
    order=70,
    neutral={"weight": 0.0},
    apply=_surprise,
)

# ----------------------------------------------------------------------------- a regularizer


@dataclass(frozen=True)
class Floor:
    """Settings of the regularizer."""

    coef: float = setting(0.01, "weight of the term", ge=0.0)
    floor: float = setting(0.3, "entropy in nats below which a token is pushed up", ge=0.0)


def entropy_floor(entropy_RT: Tensor, mask_RT: Tensor, *, coef: float, floor: float) -> Tensor:
    """Loss of each token, to minimise; (R, T), 0 outside the mask.

    loss = coef max(0, floor - H)                                    (H in nats, with gradient)
    """
    return coef * torch.where(mask_RT, (floor - entropy_RT).clamp_min(0.0), 0.0)


def _floor(ctx: LossContext, s: Floor) -> Tensor:
    entropy_RT = ctx.entropies()
    below_RT = ctx.mask_RT & (entropy_RT.detach() < s.floor)
    ctx.token_means["entropy_floor/below"] = below_RT.float()
    return ctx.aggregate(entropy_floor(entropy_RT, ctx.mask_RT, coef=s.coef, floor=s.floor), "token-mean")


FLOOR = Regularizer(
    name="entropy_floor",
    summary="pushes up the entropy of tokens below a floor, and of no other",
    when="an example of a regularizer",
    cost="entropy with gradient",
    source="ours",
    settings=Floor,
    function="own_methods.entropy_floor",
    needs=frozenset({"grad_entropy"}),
    metrics={"below": Metric("share of tokens below the floor", "share")},
    neutral={"coef": 0.0},
    apply=_floor,
)

# ----------------------------------------------------------------------------- a policy loss


@dataclass(frozen=True)
class Cispo:
    """No settings of its own: the bounds are verl's clip_ratio_low and clip_ratio_high."""


def cispo(
    log_prob_RT: Tensor, old_log_prob_RT: Tensor, advantages_RT: Tensor, mask_RT: Tensor, *, low: float, high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Policy gradient whose importance weight is clipped and carries no gradient; (R, T), 0 outside the mask.

        loss = -sg[clip(pi / pi_old, 1 - low, 1 + high)] A log pi

    Source: CISPO, arXiv 2506.13585, Eqs. 4-5.
    """
    log_prob_RT = torch.where(mask_RT, log_prob_RT, 0.0)
    ratio_RT = (log_prob_RT.detach() - torch.where(mask_RT, old_log_prob_RT, 0.0)).clamp(-20.0, 20.0).exp()
    weight_RT = ratio_RT.clamp(1.0 - low, 1.0 + high)
    loss_RT = -weight_RT * torch.where(mask_RT, advantages_RT, 0.0) * log_prob_RT
    # at probability 0 the log-probability is -inf, and 0 x -inf is NaN
    loss_RT = torch.where(mask_RT & log_prob_RT.isfinite(), loss_RT, 0.0)
    return loss_RT, {"clipfrac": (weight_RT != ratio_RT).float()}


def _cispo(
    ctx: LossContext,
    s: Cispo,
    clip: ClipBounds,
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    return cispo(log_prob_RT, old_log_prob_RT, advantages_RT, mask_RT, low=clip.low, high=clip.high)


CISPO = Loss(
    name="own_cispo",
    summary="clips the importance weight instead of the update",
    when="an example of a policy loss",
    cost="none",
    source="arXiv 2506.13585",
    settings=Cispo,
    function="own_methods.cispo",
    metrics={"clipfrac": Metric("share of tokens whose weight is clipped", "share")},
    apply=_cispo,
)
