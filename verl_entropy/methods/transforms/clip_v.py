# SPDX-License-Identifier: Apache-2.0
"""Clip_V: drops tokens whose entropy discriminator is far from its expectation under the policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.numerics import chunks, scaled
from verl_entropy.batch.packed import mean_and_std
from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.common.keep import DROPPED, MIN_STD, check_keep_settings, keep_result, limit_dropped
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import LogitsOutput, Metric, Transform, setting
from verl_entropy.methods.result import TransformResult
from verl_entropy.methods.transforms.clip_b import discriminator


@dataclass(frozen=True)
class ClipV:
    """Entropy-discriminator clipping, vocabulary-normalised (arXiv 2602.03392)."""

    mu: float = setting(8.5, "drop beyond this many standard deviations (n = 8)", ge=0.0)
    two_sided: bool = setting(False, "drop on both sides, whatever the sign of the advantage")
    max_frac: float | None = setting(1e-4, "drop at most this share of the tokens", gt=0.0, le=1.0)


@torch.no_grad()
def vocab_centre(logits: Tensor, chunk_size: int = 256, *, temperature: Tensor | None = None) -> Tensor:
    """N = sum_v pi_v^2 (H + log pi_v), the expectation of S = pi (H + log pi) under the policy; fp32, without gradient.

    ``logits`` [..., V], divided by ``temperature`` [...] in fp32 (None: 1); the result has shape [...]. A logit of -inf is a
    token of probability 0 and adds nothing. Works in fp32 on ``chunk_size`` tokens at a time, so it needs
    about 3 x chunk_size x V x 4 bytes (0.47 GB for a vocabulary of 152 k) and one pass over the logits.

    Source: arXiv 2602.03392, Thm 3.3. The released code computes it in fp32 too and cannot do so with fused
    kernels, which never hold the logits.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    centre = torch.empty(len(flat), dtype=torch.float32, device=logits.device)
    temperature_N = None if temperature is None else temperature.reshape(-1).float().clamp(min=1e-8)
    for rows in chunks(len(flat), max(1, chunk_size)):
        log_prob = torch.log_softmax(scaled(flat[rows], temperature_N, rows, torch.float32), dim=-1)
        prob = log_prob.exp()
        log_prob.masked_fill_(prob == 0.0, 0.0)
        weighted = prob * log_prob
        entropy = -weighted.sum(-1)
        centre[rows] = prob.square().sum(-1) * entropy + weighted.mul_(prob).sum(-1)
    return centre.view(logits.shape[:-1])


def clip_v(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    log_prob_RT: Tensor,
    entropy_RT: Tensor,
    vocab_centre_RT: Tensor,
    *,
    mu: float = 8.5,
    two_sided: bool = False,
    max_frac: float | None = 1e-4,
) -> TransformResult:
    """Mask that removes the tokens whose update would move the entropy most, centred on the policy's own expectation.

        D = N - S,   S = pi (H + log pi),   N = sum_v pi_v^2 (H + log pi_v)      (nats)
        drop where A <= 0 and D > mu std D

    A policy-gradient step of size a on the token changes the entropy by a D, to first order (Thm 3.3). The
    standard deviation (ddof 0) runs over the valid tokens of the batch; D is compared without subtracting its
    mean; std < 1e-12 drops nothing. Dropped tokens leave the numerator and the denominator of the loss.
    Advantages are unchanged.

    Shapes: all tensors [R, T], ``vocab_centre_RT`` from ``vocab_centre`` in the old-log-prob pass;
    ``mask_RT`` of the result is bool [R, T].

    Source: arXiv 2602.03392, Thm 3.3, read through notes, and a public Trinity-RFT example that cites it (mu
    8.5, max_frac 1e-4, 8 rollouts; class default of mu 2.0). As there, A = 0 counts as negative, and if more
    than ``max_frac`` of the valid tokens would go, only the worst max(int(max_frac n), 1) of those with A < 0
    do (A = 0 is not limited). The paper's own mask was not seen; ``two_sided`` drops where |D| > mu std D
    whatever the sign of A. ``max_frac`` = None: no limit.

    Neutral: mu = inf drops nothing.
    """
    check_keep_settings(mu, max_frac)
    score_N = discriminator(turns.pack(log_prob_RT), turns.pack(entropy_RT))
    distance_N = (turns.pack(vocab_centre_RT) - score_N).nan_to_num_(0.0, 0.0, 0.0)
    _, std = mean_and_std(distance_N, correction=0)
    if std < MIN_STD or mu == float("inf"):
        outside_N = torch.zeros_like(distance_N, dtype=torch.bool)
    else:
        outside_N = (distance_N.abs() if two_sided else distance_N) > mu * std
    if not bool(outside_N.any()):
        return keep_result(advantages_RT, turns, outside_N, std=std)
    limited_N = outside_N
    if not two_sided:
        advantages_N = turns.pack(advantages_RT)
        outside_N, limited_N = outside_N & (advantages_N <= 0), outside_N & (advantages_N < 0)
    if max_frac is not None and int(torch.count_nonzero(outside_N)) > max_frac * len(outside_N):
        outside_N = limit_dropped(limited_N, distance_N.abs(), max_frac) | (outside_N & ~limited_N)
    return keep_result(advantages_RT, turns, outside_N, std=std)


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: ClipV) -> TransformResult:
    return clip_v(
        advantages,
        ctx.turns,
        ctx.log_probs(),
        ctx.entropies(),
        ctx.fields["vocab_centre"],
        mu=s.mu,
        two_sided=s.two_sided,
        max_frac=s.max_frac,
    )


CLIP_V = Transform(
    name="clip_v",
    summary="as clip_b, centred on the policy's own expectation",
    when="rare tokens cause the swings; sampler and trainer differ",
    cost="one more reduction over the logits in the old-log-prob pass",
    source="arXiv 2602.03392, Thm 3.3",
    settings=ClipV,
    function="verl_entropy.methods.transforms.clip_v.clip_v",
    needs=frozenset({"entropy", "logits"}),
    drops=True,
    order=65,
    metrics=DROPPED | {"std": Metric("standard deviation of D = N - S", "nats")},
    logits=lambda s: {"vocab_centre": LogitsOutput(vocab_centre, in_update=False)},
    logits_bytes=(3 * 256 * 4, "expectation of a chunk"),
    example={"mu": 0.5, "max_frac": 0.2},
    apply=_apply,
)
