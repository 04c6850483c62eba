# SPDX-License-Identifier: Apache-2.0
"""EA: entropy-based advantage shaping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class EA:
    """Entropy-based advantage shaping: A + min(alpha H, |A| / kappa) (arXiv 2506.14758)."""

    alpha: float = setting(0.4, "weight of the entropy (.4 GRPO, .1 PPO)", ge=0.0)
    kappa: float = setting(2.0, "bound of the bonus, in parts of the advantage", ge=1.0)


def ea(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    entropy_RT: Tensor,
    *,
    alpha: float = 0.4,
    kappa: float = 2.0,
) -> TransformResult:
    """Advantage plus a bonus that grows with the token's entropy and is bounded by the advantage.

        A' = A + psi,   psi = min(alpha H, |A| / kappa)                  (H in nats, detached)

    psi >= 0: it raises positive advantages and softens negative ones; A = 0 stays 0, and for kappa > 1 no
    sign flips.

    Shapes: ``advantages_RT``, ``entropy_RT`` and the result [R, T]; the result is 0 outside the mask.

    Source: arXiv 2506.14758, read through notes of it. Defaults: alpha .4 for GRPO (.1 for PPO), kappa 2.
    SIREN's code has it as a baseline with kappa = 1, which can reduce an advantage to 0, and adds psi in
    place inside the update loop, so that it accumulates over ppo_epochs; here it is added once, out of place.

    Neutral: alpha = 0 returns A.
    """
    if alpha < 0.0:
        raise ValueError(f"alpha={alpha}: must be >= 0. Use 0.4 for GRPO, 0.1 for PPO, 0 for no shaping.")
    if kappa < 1.0:
        raise ValueError(f"kappa={kappa}: must be >= 1, or the bonus can exceed the advantage. Use 2.")

    advantages_N = turns.pack(advantages_RT)
    # Rounding can leave the entropy of a certain token at -1e-7.
    bonus_N = turns.pack(entropy_RT).clamp_min(0.0).mul_(alpha)
    bonus_N = torch.minimum(bonus_N, advantages_N.abs().div_(kappa), out=bonus_N)
    return TransformResult(Packed(bonus_N.add_(advantages_N), turns), metrics={"alpha": alpha})


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: EA) -> TransformResult:
    return ea(advantages, ctx.turns, ctx.entropies(), alpha=s.alpha, kappa=s.kappa)


EA_TRANSFORM = Transform(
    name="ea",
    summary="adds a bounded bonus for entropy to every token's advantage",
    when="exploration at uncertain tokens, simple baseline",
    cost="a few ms per batch on the CPU",
    source="arXiv 2506.14758",
    settings=EA,
    function="verl_entropy.methods.transforms.ea.ea",
    needs=frozenset({"entropy"}),
    order=30,
    metrics={"alpha": Metric("weight of the entropy", "number", "arXiv 2506.14758")},
    neutral={"alpha": 0.0},
    apply=_apply,
)
