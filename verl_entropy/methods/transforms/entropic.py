# SPDX-License-Identifier: Apache-2.0
"""EntroPIC's lever: right actions weigh less and wrong ones more, or the other way round, to raise or lower entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.common.controllers import controlled
from verl_entropy.methods.common.hold import Hold
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class Entropic:
    """Weights 1 - alpha and 1 + alpha of positive and negative advantages (after EntroPIC, arXiv 2511.15248)."""

    alpha: float = setting(
        0.05, "weight taken from positive and given to negative advantages; its first value where it moves", ge=0.0
    )
    alpha_min: float = setting(1e-3, "lower bound where adaptive", gt=0.0)
    alpha_max: float = setting(0.5, "largest weight, of either sign under algorithm.entropy.target", gt=0.0, lt=1.0)
    min_prob: float = setting(0.0, "least probability of the tokens whose advantages are weighted; 0: all tokens", ge=0.0, lt=1.0)
    factor: float = setting(2.0, "factor of the controller's step where adaptive", gt=1.0)
    adaptive: bool = setting(
        False, "move alpha by doubling and halving towards the target; algorithm.entropy.target moves it evenly"
    )
    target: float | None = setting(None, "target entropy in nats where adaptive; null: entropy of the first iteration", gt=0.0)


def entropic(
    advantages_RT: Tensor | Packed, turns: Turns, log_prob_RT: Tensor, *, alpha: float, min_prob: float = 0.0
) -> TransformResult:
    """Advantages of one sign weigh more, those of the other less.

        A' = (1 - alpha) A  if A > 0,  (1 + alpha) A  if A < 0,    at tokens with pi(a|s) >= min_prob; else A

    To train on a likely right action lowers entropy, to punish a likely wrong one raises it; alpha > 0 therefore raises entropy,
    alpha < 0 lowers it. Shapes: [R, T], 0 outside the mask; ``log_prob_RT`` of the old-log-prob pass, in nats.

    Source: after EntroPIC (arXiv 2511.15248), which moves such weights by a proportional-integral controller and applies them to tokens
    of high probability. Its gains and its threshold are not reproduced here: alpha is constant, or follows
    ``algorithm.entropy.target`` by ``EntropyHold``, and every token is weighted unless ``min_prob`` says otherwise.

    Neutral: alpha = 0 returns A.
    """
    advantages_N, log_prob_N = turns.pack(advantages_RT), turns.pack(log_prob_RT)
    shaped_N = torch.where(advantages_N > 0.0, (1.0 - alpha) * advantages_N, (1.0 + alpha) * advantages_N)
    if min_prob > 0.0:
        shaped_N = torch.where(log_prob_N.float().exp() >= min_prob, shaped_N, advantages_N)
    return TransformResult(Packed(shaped_N, turns), metrics={"alpha": alpha})


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: Entropic) -> TransformResult:
    return entropic(advantages, ctx.turns, ctx.log_probs(), alpha=ctx.info["entropic"]["alpha"], min_prob=s.min_prob)


_BOUNDED = ("alpha", "alpha_min", "alpha_max")
_HOLD = Hold(unit=0.1, signed=True)

ENTROPIC = Transform(
    name="entropic",
    summary="takes weight from right and gives it to wrong actions, or the reverse; made to follow a target entropy",
    when="you want entropy at a level of your own, without an entropy term in the loss",
    cost="negligible",
    source="after EntroPIC, 2511.15248",
    settings=Entropic,
    function="verl_entropy.methods.transforms.entropic.entropic",
    needs=frozenset({"entropy"}),
    order=45,
    bounded=_BOUNDED,
    hold=_HOLD,
    steers=True,
    metrics={
        "alpha": Metric("weight taken from positive and given to negative advantages", "number", "after EntroPIC, 2511.15248")
    },
    neutral={"alpha": 0.0, "adaptive": False},
    state=controlled("entropic", _BOUNDED, hold=_HOLD),
    apply=_apply,
)
