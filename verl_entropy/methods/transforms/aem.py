# SPDX-License-Identifier: Apache-2.0
"""Adaptive entropy modulation (AEM, arXiv 2605.00425)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.numerics import center_by_group, group_range, rounding
from verl_entropy.batch.turns import Packed, Turns, padded
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class AEM:
    """Adaptive entropy modulation (arXiv 2605.00425, Eqs. 13-15)."""

    temperature: float = setting(1.0, "lambda of Eq. 15; 0 switches the method off", ge=0.0)
    min_range: float = setting(1e-8, "groups whose entropies span less (nats), or only by fp32 rounding, keep weight 1", ge=0.0)
    min_group: int = setting(2, "groups with fewer turns keep weight 1", ge=1)
    normalise: str = setting(
        "turn",
        "what has mean weight 1 in a group: turns (Eq. 15), or tokens, so that long turns do not change the size of the advantages",
        choices=("turn", "token"),
    )
    sign_mask: str = setting(
        "none",
        "analysis of Eq. 16: drop turns whose advantage x relative entropy is positive, or negative",
        choices=("none", "positive", "negative"),
    )


def aem(
    advantages: Tensor | Packed,
    turns: Turns,
    entropy_RT: Tensor,
    *,
    temperature: float = 1.0,
    min_range: float = 1e-8,
    min_group: int = 2,
    drop: str = "none",
    normalise: str = "turn",
) -> TransformResult:
    """A'_{r,t} = alpha_r A_{r,t}: turns of low entropy inside their prompt group weigh more; (R, T).

    ``entropy_RT`` are the token entropies (nats) of the pass that gives old_log_probs; no gradient flows into
    them. H_r is over trained tokens, and a turn without one is in no group. ``temperature=0`` returns
    the advantages as given. ``drop``: "positive" or "negative" also drops turns, see ``sign_mask``. See ``aem_weights`` for alpha.
    """
    advantages_RT = padded(advantages)
    keep_RT = None if drop == "none" else sign_mask(advantages_RT, entropy_RT, turns, drop=drop)
    if temperature == 0:
        return TransformResult(advantages_RT, keep_RT)
    entropy_K = turns.trained_mean(entropy_RT.detach())
    size_K = turns.sum(turns.mask_RT).double() if normalise == "token" else None
    alpha_K = aem_weights(entropy_K, turns, temperature=temperature, min_range=min_range, min_group=min_group, size_K=size_K)
    return TransformResult(turns.scale(advantages_RT, alpha_K), keep_RT)


def aem_weights(
    entropy_K: Tensor,
    turns: Turns,
    *,
    temperature: float = 1.0,
    min_range: float = 1e-8,
    min_group: int = 2,
    size_K: Tensor | None = None,
) -> Tensor:
    """The factor of each turn, with mean 1 in its prompt group; (K,), fp32.

        H_r     = mean token entropy of turn r, ``entropy_K``                           Eq. 13
        h_r     = (H_r - min_G H) / (max_G H - min_G H)    over the turns of the group  Eq. 14
        alpha_r = exp(-lambda h_r) / mean_G exp(-lambda h)                              Eq. 15

    The mean is over turns, so sum |A'| / sum |A| over tokens is 1 only where a turn's length does not go with its entropy (audited
    batches: .58 to 1.24). ``size_K``, the tokens of each turn, takes the mean over tokens instead (``normalise="token"``, ours).

    alpha = 1 in a group with fewer than ``min_group`` turns or whose entropies span less than ``min_range``
    nats, or no more than fp32 rounding of an entropy (``rounding``, at least that of 1 nat): the paper sets alpha = 1 "to avoid
    sampling noise" under a condition that is not known, and no
    authors' code is public. A turn whose entropy is not finite keeps alpha = 1 and is left out of its group.
    """
    if temperature < 0:
        raise ValueError(f"temperature={temperature}: must be >= 0; 0 switches AEM off.")
    alpha_K = torch.ones_like(entropy_K)
    kept_N = torch.isfinite(entropy_K).nonzero().squeeze(-1)
    entropy_N, group_N = entropy_K[kept_N].double(), turns.group_K[kept_N]
    low_N, high_N = group_range(entropy_N, group_N, turns.num_groups)
    count_P = torch.bincount(group_N, minlength=turns.num_groups)
    range_N = high_N - low_N
    active_N = (range_N >= min_range) & (range_N > rounding(high_N.abs().clamp_min(1.0))) & (count_P[group_N] >= min_group)
    weight_N = torch.exp(-temperature * (entropy_N - low_N) / torch.where(active_N, range_N, 1.0))
    size_N = torch.ones_like(weight_N) if size_K is None else size_K[kept_N].to(weight_N.dtype)
    total_P = weight_N.new_zeros(turns.num_groups).index_add_(0, group_N, weight_N * size_N)
    size_P = weight_N.new_zeros(turns.num_groups).index_add_(0, group_N, size_N)
    mean_N = (total_P / size_P.clamp(min=1.0))[group_N]
    return alpha_K.index_copy_(0, kept_N, torch.where(active_N, weight_N / mean_N, 1.0).to(alpha_K.dtype))


def sign_mask(advantages_RT: Tensor, entropy_RT: Tensor, turns: Turns, *, drop: str) -> Tensor:
    """Mask of the analysis of Eq. 16: keep turns unless A_r (H_r - mean_G H) has the sign ``drop``; (R, T), bool.

    A_r is the turn's mean advantage and H_r - mean_G H its entropy relative to its prompt group, AEM's proxy of the relative
    surprisal. The drift of entropy under a policy-gradient step is their product, so dropping "positive" turns lowers entropy
    and dropping "negative" ones raises it.
    """
    if drop not in ("positive", "negative"):
        raise ValueError(f"drop={drop!r}: allowed are positive, negative.")
    entropy_K = turns.trained_mean(entropy_RT.detach()).double()
    finite_K = torch.isfinite(entropy_K)
    relative_K = torch.zeros_like(entropy_K)  # a turn whose entropy is not finite is kept
    relative_K[finite_K] = center_by_group(entropy_K[finite_K], turns.group_K[finite_K], turns.num_groups)
    product_K = turns.mean(advantages_RT) * relative_K
    kept_K = product_K <= 0 if drop == "positive" else product_K >= 0
    return turns.to_tokens(kept_K.float()).bool()


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: AEM) -> TransformResult:
    return aem(
        advantages,
        ctx.turns,
        ctx.entropies(),
        temperature=s.temperature,
        min_range=s.min_range,
        min_group=s.min_group,
        drop=s.sign_mask,
        normalise=s.normalise,
    )


AEM_TRANSFORM = Transform(
    name="aem",
    summary="weights each turn's advantage by its relative entropy inside the prompt group",
    when="entropy collapses early or never comes down; any base estimator",
    cost="a few ms per batch on the CPU, no extra forward pass",
    source="arXiv 2605.00425, Eqs. 13-15",
    settings=AEM,
    function="verl_entropy.methods.transforms.aem.aem",
    equations=("verl_entropy.methods.transforms.aem.aem_weights",),
    needs=frozenset({"entropy", "group"}),
    drops=True,
    keeps_with=("sign_mask", "none"),
    order=50,
    neutral={"temperature": 0.0},
    apply=_apply,
)
