# SPDX-License-Identifier: Apache-2.0
"""GSPO in its token form, which takes advantages per token: the loss of GSPO-REPO."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.methods.common.ppo_clip import Info, check_clip, clip_info, masked, masked_log_ratio

MAX_LOG_RATIO = 10.0
"""Upper bound of the sequence log ratio before exp, as in verl."""


def sequence_ratio(log_prob_RT: Tensor, old_log_prob_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """Ratio of each token in GSPO's token form, [R, T].

        s_r     = (prod_t pi / pi_old)^(1 / |y_r|) = exp(mean_t log(pi / pi_old))
        s_{r,t} = sg[s_r] pi / sg[pi]

    Value s_r on every token, gradient that of the token's own log-probability. A row without valid tokens has
    s = 1.
    """
    log_ratio = masked_log_ratio(log_prob_RT, old_log_prob_RT, mask_RT)
    mean_R1 = log_ratio.detach().sum(-1, keepdim=True) / mask_RT.sum(-1, keepdim=True).clamp_min(1)
    log_prob = masked(log_prob_RT, mask_RT)
    return (log_prob - log_prob.detach() + mean_R1).clamp(max=MAX_LOG_RATIO).exp()


def gspo(
    log_prob_RT: Tensor,
    old_log_prob_RT: Tensor,
    advantages_RT: Tensor,
    mask_RT: Tensor,
    entropy_RT: Tensor | None = None,
    *,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
) -> tuple[Tensor, Info]:
    """Clipped loss with the sequence's ratio on every token.

        loss = max(-A_t s_t, -A_t clip(s_t, 1 - eps_low, 1 + eps_high)),   s_t = sequence_ratio

    Aggregate it with seq-mean-token-mean. Shapes: all tensors [R, T], the loss too; it is 0 outside the mask.
    ``entropy_RT`` is not used. A sequence is a row: a turn in the step-wise layout, a trajectory where one
    row holds it.

    Source: GSPO, arXiv 2507.18071; equal, bit for bit, to verl's ``gspo`` before aggregation. GSPO-REPO puts
    REPO's per-token A' in place of A. How A' enters a sequence ratio is not stated in the REPO paper; the
    token form equals the use of the row's mean A' whenever the clip decides alike for all tokens of the row.
    """
    check_clip(eps_low, eps_high, None)
    advantages = masked(advantages_RT, mask_RT)
    ratio = sequence_ratio(log_prob_RT, old_log_prob_RT, mask_RT)
    clipped = -advantages * ratio.clamp(1.0 - eps_low, 1.0 + eps_high)
    loss = masked(torch.maximum(-advantages * ratio, clipped), mask_RT)
    with torch.no_grad():
        info = clip_info(ratio, advantages, loss, eps_low, eps_high, None)
        info["ppo_kl"] = -masked_log_ratio(log_prob_RT, old_log_prob_RT, mask_RT)
    return loss, info
