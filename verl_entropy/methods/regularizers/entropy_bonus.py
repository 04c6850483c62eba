# SPDX-License-Identifier: Apache-2.0
"""Entropy bonus: the plain regulariser, with a fixed or a controlled coefficient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import nested_token_weight
from verl_entropy.methods.common.controllers import controlled
from verl_entropy.methods.common.hold import Hold
from verl_entropy.methods.context import AdvantageContext, LossContext
from verl_entropy.methods.method import Metric, Regularizer, setting


@dataclass(frozen=True)
class EntropyBonus:
    """Entropy bonus -coef H; adaptive: REPO's baseline "H bonus"."""

    coef: float = setting(1e-3, "weight of the entropy", ge=0.0)
    adaptive: bool = setting(False, "move the weight towards the target entropy, with REPO-D's controller (REPO, footnote 3)")
    coef_min: float = setting(1e-3, "lower bound when adaptive", gt=0.0)
    coef_max: float = setting(10.0, "upper bound when adaptive, and, below 1, where a target is held", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    aggregation: str = setting(
        "token-mean", "how tokens are averaged", choices=("token-mean", "seq-mean-token-mean", "nested-mean")
    )


def entropy_bonus(entropy_RT: Tensor, mask_RT: Tensor, *, coef: float) -> Tensor:
    """Loss of each token, -coef H, to minimise; [R, T], 0 outside the mask.

    ``entropy_RT`` is the full-vocabulary entropy in nats, with gradient. Aggregate like the policy loss. A
    ``coef`` driven by ``TargetEntropyController`` is the "H bonus" baseline of the REPO paper (DAPO + beta
    H); a negative one pushes entropy down. Neutral: coef = 0 (value and gradient 0).
    """
    return -coef * torch.where(mask_RT, entropy_RT, torch.zeros((), dtype=entropy_RT.dtype, device=entropy_RT.device))


def _columns(ctx: AdvantageContext, s: EntropyBonus) -> Mapping[str, Tensor]:
    return {"token_weight": nested_token_weight(ctx.turns)} if s.aggregation == "nested-mean" else {}


def _apply(ctx: LossContext, s: EntropyBonus) -> Tensor:
    entropy_RT = ctx.entropies()
    ctx.token_means["entropy_bonus/entropy"] = entropy_RT
    loss_RT = entropy_bonus(entropy_RT, ctx.mask_RT, coef=ctx.info["entropy_bonus"]["coef"])
    return ctx.aggregate(loss_RT, s.aggregation)


_BOUNDED = ("coef", "coef_min", "coef_max")
# Held, it stays within 1: one nat then weighs as much as one standard deviation of a normalised advantage. On a policy whose success was
# lost anyway (the bench's bandit) .01 to 1 moved next to nothing, the controller went on to 2, and entropy jumped from .4 to 1.8 nats.
_HOLD = Hold(unit=0.01, signed=True, most=1.0)

ENTROPY_BONUS = Regularizer(
    name="entropy_bonus",
    summary="plain entropy bonus, or with the adaptive coefficient of REPO's baseline",
    when="baseline",
    cost="entropy with gradient",
    source="REPO paper, sec. 5 (H bonus)",
    settings=EntropyBonus,
    function="verl_entropy.methods.regularizers.entropy_bonus.entropy_bonus",
    needs=frozenset({"entropy", "grad_entropy"}),
    bounded=_BOUNDED,
    hold=_HOLD,
    metrics={
        "coef": Metric("weight of the entropy", "number", "REPO paper, baselines"),
        "entropy": Metric("mean entropy during the update", "nats", "ours"),
    },
    neutral={"coef": 0.0, "adaptive": False},
    state=controlled("entropy_bonus", _BOUNDED, hold=_HOLD),
    columns=_columns,
    coefficient=("coef", "moves between coef_min and coef_max where adaptive"),
    apply=_apply,
)
