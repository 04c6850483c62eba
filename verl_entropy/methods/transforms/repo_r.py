# SPDX-License-Identifier: Apache-2.0
"""REPO-R: positive advantages rescaled by the centred log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.transforms.centre import centred_log_prob
from verl_entropy.methods.transforms.result import TransformResult


def repo_r(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    log_prob_RT: Tensor,
    entropy_RT: Tensor | None = None,
    *,
    zeta: float = 1e-3,
    center: str = "exact",
    keep_sign: bool = False,
) -> TransformResult:
    """Advantage that rewards rare good actions more and likely ones less.

        A' = A - zeta max(A, 0) L = A (1 - zeta L)  if A > 0, else A
        L  = log pi(a|s) - E_{a ~ pi}[log pi(a|s)]                       (nats)

    Shapes: ``advantages_RT``, ``log_prob_RT``, ``entropy_RT`` and the result [R, T]; the result is 0 outside
    the mask. The log-probabilities and entropies are those of the old-log-prob pass, so A' is fixed for the
    iteration.

    Source: "Entropy-Preserving Reinforcement Learning" (REPO), sec. 4; beta = zeta max(A, 0). No public code.
    What the paper leaves open, and what we chose:

    - centring of L: ``exact`` (L = log pi + H) by default, as the entropy costs nothing here; ``batch_mean``
      and ``group_mean`` use log-probabilities only;
    - zeta: moved by ``TargetEntropyController`` (1e-3, x2 / :2, [1e-5, 1e-1]). A negative zeta pushes entropy
      down: that is the bidirectional variant of appendix B;
    - A' changes sign where zeta L > 1. The formula allows it, and so do we unless ``keep_sign`` stops A' at
      0.

    Neutral: zeta = 0 returns A.
    """
    advantages_N, log_prob_N = turns.pack(advantages_RT), turns.pack(log_prob_RT)
    centred_N = centred_log_prob(log_prob_N, entropy_RT, turns, center)
    # not by max(A, 0): 0 times a log-probability of -inf is NaN
    shaped_N = torch.where(advantages_N > 0.0, torch.addcmul(advantages_N, advantages_N, centred_N, value=-zeta), advantages_N)
    if keep_sign:
        shaped_N = torch.maximum(shaped_N, advantages_N.clamp_max(0.0))
    return TransformResult(Packed(shaped_N, turns), metrics={"zeta": zeta})
