# SPDX-License-Identifier: Apache-2.0
"""Clip_B: drops tokens of negative advantage whose entropy discriminator is far below the batch mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.numerics import rounding
from verl_entropy.batch.packed import mean_and_std
from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.common.keep import DROPPED, MIN_STD, check_keep_settings, keep_result, limit_dropped
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class ClipB:
    """Entropy-discriminator clipping, batch-normalised (arXiv 2602.03392)."""

    mu: float = setting(2.5, "drop beyond this many standard deviations (n = 16)", ge=0.0)
    two_sided: bool = setting(False, "drop on both sides, whatever the sign of the advantage")
    max_frac: float | None = setting(None, "drop at most this share of the tokens", gt=0.0, le=1.0)


def discriminator(log_prob: Tensor, entropy: Tensor) -> Tensor:
    """S = pi (H + log pi): raising the token's logit by e changes the entropy by -e S, to first order (any shape).

    0 where it is not finite: the limit at pi = 0, and one NaN must not take the batch's mean and standard deviation with it.
    """
    return (log_prob + entropy).mul_(log_prob.exp()).nan_to_num_(0.0, 0.0, 0.0)


def clip_b(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    log_prob_RT: Tensor,
    entropy_RT: Tensor,
    *,
    mu: float = 2.5,
    two_sided: bool = False,
    max_frac: float | None = None,
) -> TransformResult:
    """Mask that removes, of the tokens with A < 0, those with the lowest discriminator, centred on the batch.

    One-sided: pushing such a token down lowers the entropy most. Tokens with A > 0, and those whose update raises entropy, stay;
    ``two_sided`` drops on both sides.

        S = pi (H + log pi)                                              (H, log pi in nats)
        drop where A < 0 and S - mean S < -mu std S

    Mean and standard deviation (ddof 0) run over the valid tokens of the batch; a std within fp32 rounding of the mean drops
    nothing.
    Dropped tokens leave the numerator and the denominator of the loss. Advantages are unchanged.

    Shapes: all tensors [R, T]; ``mask_RT`` of the result is bool [R, T].

    Source: arXiv 2602.03392, Thm 3.2 and 3.3, read through notes, and a public Trinity-RFT example that cites
    it (mu 2.5 with 16 rollouts). The example feeds the sampler's log-probabilities; pass either those or the
    trainer's as ``log_prob_RT``: a mismatch between sampler and trainer makes S noisy. The paper's own mask
    was not seen; it may be two-sided:

    - ``two_sided``: drop where |S - mean S| > mu std S whatever the sign of A;
    - ``max_frac``: drop at most this share of the valid tokens (at least one), those furthest out first;
      None: no limit.

    Neutral: mu = inf drops nothing.
    """
    check_keep_settings(mu, max_frac)
    score_N = discriminator(turns.pack(log_prob_RT), turns.pack(entropy_RT))
    mean, std = mean_and_std(score_N, correction=0)
    centred_N = score_N.sub_(mean)
    if std < max(MIN_STD, rounding(abs(mean))) or mu == float("inf"):
        dropped_N = torch.zeros_like(centred_N, dtype=torch.bool)
    elif two_sided:
        dropped_N = centred_N.abs() > mu * std
    else:
        dropped_N = centred_N < -mu * std
        if bool(dropped_N.any()):
            dropped_N &= turns.pack(advantages_RT) < 0
    if max_frac is not None and int(torch.count_nonzero(dropped_N)) > max_frac * len(dropped_N):
        dropped_N = limit_dropped(dropped_N, centred_N.abs(), max_frac)
    return keep_result(advantages_RT, turns, dropped_N, mean=mean, std=std)


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: ClipB) -> TransformResult:
    return clip_b(
        advantages,
        ctx.turns,
        ctx.log_probs(),
        ctx.entropies(),
        mu=s.mu,
        two_sided=s.two_sided,
        max_frac=s.max_frac,
    )


CLIP_B = Transform(
    name="clip_b",
    summary="drops tokens of negative advantage whose entropy discriminator is far below the batch mean (one-sided)",
    when="rare tokens cause the swings",
    cost="a few ms per batch on the CPU",
    source="arXiv 2602.03392",
    settings=ClipB,
    function="verl_entropy.methods.transforms.clip_b.clip_b",
    needs=frozenset({"entropy"}),
    drops=True,
    order=60,
    doubtful_with={
        "clip_v": "two forms of one clip (centred on the batch, and on the policy); each drops tokens of its own, and a run loses "
        "both. Choose one."
    },
    metrics=DROPPED | {"mean": Metric("mean of the discriminator S", "nats"), "std": Metric("its standard deviation", "nats")},
    example={"mu": 0.5},
    apply=_apply,
)
