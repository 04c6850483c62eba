# SPDX-License-Identifier: Apache-2.0
"""REPO-R: positive advantages rescaled by the centred log-probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.common.centre import CENTRES, centred_log_prob
from verl_entropy.methods.common.controllers import controlled
from verl_entropy.methods.common.hold import Hold
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class RepoR:
    """REPO-R: A (1 - zeta L) for A > 0 ("Entropy-Preserving Reinforcement Learning", sec. 4)."""

    zeta: float = setting(1e-3, "first value of the coefficient (sec. 4)", ge=0.0)
    zeta_min: float = setting(1e-5, "lower bound of the coefficient", gt=0.0)
    zeta_max: float = setting(1e-1, "upper bound of the coefficient", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    adaptive: bool = setting(True, "move zeta towards the target entropy; false: keep it")
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    bidirectional: bool = setting(False, "zeta may turn negative above the target (App. B)")
    flip: str = setting("reset", "magnitude after a change of sign: zeta_min, or kept", choices=("reset", "keep"))
    center: str = setting("exact", "centring of the log-probability: by the entropy, or by a mean", choices=CENTRES)
    keep_sign: bool = setting(
        False, "stop an advantage at 0 where zeta L > 1; without it a bidirectional zeta < 0 punishes rare correct tokens"
    )


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
    - A' changes sign where zeta L > 1. With zeta > 0 that takes L > 10 at the least, which no likely token has; with zeta = -.1
      (bidirectional) it is every correct token with L < -10: at L = -12 the factor is -.2, so a **rare correct token is punished**.
      The formula allows it, and so do we unless ``keep_sign`` stops A' at 0, as the preset repo_r_bidirectional does.

    Neutral: zeta = 0 returns A.
    """
    advantages_N, log_prob_N = turns.pack(advantages_RT), turns.pack(log_prob_RT)
    centred_N = centred_log_prob(log_prob_N, entropy_RT, turns, center)
    # not by max(A, 0): 0 times a log-probability of -inf is NaN
    shaped_N = torch.where(advantages_N > 0.0, torch.addcmul(advantages_N, advantages_N, centred_N, value=-zeta), advantages_N)
    if keep_sign:
        shaped_N = torch.maximum(shaped_N, advantages_N.clamp_max(0.0))
    return TransformResult(Packed(shaped_N, turns), metrics={"zeta": zeta})


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: RepoR) -> TransformResult:
    zeta = ctx.info["repo_r"]["zeta"]
    return repo_r(advantages, ctx.turns, ctx.log_probs(), ctx.entropies(), zeta=zeta, center=s.center, keep_sign=s.keep_sign)


_BOUNDED = ("zeta", "zeta_min", "zeta_max")
_HOLD = Hold(unit=0.02, signed=True)

REPO_R = Transform(
    name="repo_r",
    summary="boosts rare good actions; the coefficient follows the entropy of the first iteration",
    when="entropy falls steadily; any base and clip",
    cost="a few ms per batch on the CPU",
    source="REPO paper, sec. 4",
    settings=RepoR,
    function="verl_entropy.methods.transforms.repo_r.repo_r",
    needs=frozenset({"entropy"}),
    order=40,
    conflicts={"repo_d": "both would correct the same drift of entropy; choose one"},
    bounded=_BOUNDED,
    hold=_HOLD,
    steers=True,
    metrics={"zeta": Metric("coefficient zeta", "number", "REPO paper, sec. 4")},
    neutral={"zeta": 0.0, "adaptive": False},
    state=controlled("repo_r", _BOUNDED, "bidirectional", "flip", hold=_HOLD),
    apply=_apply,
)
