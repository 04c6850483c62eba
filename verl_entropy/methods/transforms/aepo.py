# SPDX-License-Identifier: Apache-2.0
"""AEPO: advantages scaled by the token's standardised entropy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from verl_entropy.batch.numerics import rounding
from verl_entropy.batch.packed import mean_and_std
from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class AepoAdvantage:
    """Entropy-aware advantage of AEPO: A (1 + alpha Hn) (arXiv 2510.14545)."""

    alpha: float = setting(0.2, "weight of the standardised entropy (authors' code)", ge=0.0)
    clamp: bool = setting(True, "keep the factor at or above 0")


def aepo(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    entropy_RT: Tensor,
    *,
    alpha: float = 0.2,
    clamp: bool = True,
) -> TransformResult:
    """Entropy-aware advantage: uncertain tokens weigh more, certain ones less.

        A' = A (1 + alpha Hn),   Hn = (H - mean H) / std H               (H in nats, detached)

    Mean and standard deviation (ddof 1) run over the valid tokens of the batch; a std of fp32 rounding, or a single
    token, gives Hn = 0.

    Shapes: ``advantages_RT``, ``entropy_RT`` and the result [R, T]; the result is 0 outside the mask.

    Source: arXiv 2510.14545 (agentic entropy-balanced policy optimisation), read through a note that quotes
    the equations and through a public copy of the authors' code. That code fixes alpha = .2, standardises
    inside each micro-batch (so the value depends on the split), and gets no entropy at all unless
    entropy_coeff != 0, while its configuration has 0: the term is then off without a word. Here the entropies
    of the old-log-prob pass are standardised once over the whole batch.

    ``clamp`` (our default; not in the code) keeps the factor at or above 0: it is negative where Hn < -1 /
    alpha, which would reward the opposite of the outcome.

    Neutral: alpha = 0, or constant entropy, returns A.
    """
    entropy_N = turns.pack(entropy_RT)
    mean, std = mean_and_std(entropy_N, correction=1)
    factor_N = entropy_N.sub(mean).mul_(alpha / std if std > rounding(abs(mean)) else 0.0).add_(1.0)
    factor_N = factor_N.clamp_min_(0.0) if clamp else factor_N
    shaped = Packed(factor_N.mul_(turns.pack(advantages_RT)), turns)
    return TransformResult(shaped, metrics={"entropy_mean": mean, "entropy_std": std})


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: AepoAdvantage) -> TransformResult:
    return aepo(advantages, ctx.turns, ctx.entropies(), alpha=s.alpha, clamp=s.clamp)


AEPO = Transform(
    name="aepo",
    summary="weights tokens by their standardised entropy",
    when="together with the loss of the same name",
    cost="a few ms per batch on the CPU",
    source="arXiv 2510.14545",
    settings=AepoAdvantage,
    function="verl_entropy.methods.transforms.aepo.aepo",
    needs=frozenset({"entropy"}),
    order=35,
    metrics={
        "entropy_mean": Metric("mean token entropy that the advantages are standardised by", "nats", "AEPO, arXiv 2510.14545"),
        "entropy_std": Metric("its standard deviation", "nats", "AEPO"),
    },
    neutral={"alpha": 0.0},
    apply=_apply,
)
