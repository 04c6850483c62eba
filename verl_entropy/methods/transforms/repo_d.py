# SPDX-License-Identifier: Apache-2.0
"""REPO-D: advantages shifted so that the predicted change of entropy is cancelled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_entropy.batch.packed import spread
from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.common.centre import CENTRES, active_rows, centred_log_prob, scope_mean
from verl_entropy.methods.common.controllers import controlled
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class RepoD:
    """REPO-D: A - beta L, beta = zeta E[A L pi] ("Entropy-Preserving Reinforcement Learning", sec. 4, Cor. 1)."""

    zeta: float = setting(1e-3, "first value of the coefficient (sec. 4)", ge=0.0)
    zeta_min: float = setting(1e-3, "lower bound of the coefficient", gt=0.0)
    zeta_max: float = setting(10.0, "upper bound of the coefficient", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    adaptive: bool = setting(True, "move zeta towards the target entropy; false: keep it")
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    center: str = setting("exact", "centring of the log-probability: by the entropy, or by a mean", choices=CENTRES)
    scope: str = setting(
        "batch",
        "what the expectation runs over; per_token flips A where zeta pi L^2 > 1",
        choices=("batch", "group", "per_token"),
    )
    clamp: bool = setting(False, "stop beta at 0 where entropy is rising already")
    skip_zero_groups: bool = setting(True, "leave out groups whose advantages are all zero, which the paper drops")


SCOPES = ("batch", "group", "per_token")


def repo_d(
    advantages_RT: Tensor | Packed,
    turns: Turns,
    log_prob_RT: Tensor,
    entropy_RT: Tensor | None = None,
    *,
    zeta: float = 1e-3,
    center: str = "exact",
    scope: str = "batch",
    clamp: bool = False,
    skip_zero_groups: bool = True,
) -> TransformResult:
    """Advantage minus a multiple of the centred log-probability that is proportional to the predicted loss of entropy.

        A'   = A - beta L
        beta = zeta E_a[A L pi]        (by Cor. 1, dH ~ -E_a[A L pi], so beta = -zeta dH)
        L    = log pi(a|s) - E_{a ~ pi}[log pi(a|s)]                     (nats)

    Shapes: ``advantages_RT``, ``log_prob_RT``, ``entropy_RT`` and the result [R, T]; the result is 0 outside
    the mask.

    Source: "Entropy-Preserving Reinforcement Learning" (REPO), sec. 4 and Cor. 1. No public code. What the
    paper leaves open, and what we chose:

    - ``scope`` of the expectation: ``batch`` (default) or ``group``, the mean over the valid tokens of the
      batch or of the prompt group. ``per_token`` is the literal one-sample reading, A' = A (1 - zeta pi L^2):
      it never boosts, while appendix E.1 speaks of a rotation that boosts actions by their surprisal, so it is not the
      default; and it **flips the sign** of A where zeta pi L^2 > 1 (zeta = 10, its upper bound: pi = .2, |L| = 1 gives -A).
      Measured on sampled softmax policies of 32 and 64 actions, |dH| that is left of a gradient step's (1: as without
      REPO-D): zeta = 1: per_token .46 to .74, group .69 to .80, batch .71 to .81; zeta = 10, where every scope overshoots: 3.6 to
      4.8, 1.8 to 2.1, 1.6 to 1.9. So per_token comes closest to dH = 0 up to zeta = 1 and does most harm at 10;
    - sign of beta: entropy that is already rising gives beta < 0, which is applied ("neutralise dH") unless
      ``clamp`` stops beta at 0;
    - ``center`` of L: as in REPO-R;
    - prompt groups whose advantages are all 0: the paper drops them from the batch. Where they are still in
      it, ``skip_zero_groups`` (default) leaves them out of the mean and unchanged; without it the formula gives them -beta L.

    zeta is moved by ``TargetEntropyController`` (1e-3, x2 / :2, [1e-3, 10]). Neutral: zeta = 0 returns A.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r}: allowed are {', '.join(SCOPES)}.")
    advantages_N, log_prob_N = turns.pack(advantages_RT), turns.pack(log_prob_RT)
    tokens = counted = max(len(advantages_N), 1)
    centred_N = centred_log_prob(log_prob_N, entropy_RT, turns, center)
    loss_N = log_prob_N.exp().mul_(centred_N).mul_(advantages_N)
    if scope == "per_token":
        beta = zeta * loss_N
    else:
        active_R = active_rows(advantages_N, turns) if skip_zero_groups else None
        beta = zeta * scope_mean(loss_N, turns, scope, active_R)
        if active_R is not None:
            counted = max(int((turns.tokens_R * active_R).sum()), 1)
            beta = beta * spread(active_R, turns.tokens_R)
    beta = beta.clamp_min(0.0) if clamp else beta
    metrics = {
        "zeta": zeta,
        "predicted_entropy_change": -float(loss_N.sum()) / tokens,
        "beta": float(beta) if beta.dim() == 0 else float(beta.sum()) / counted,
    }
    return TransformResult(Packed(torch.addcmul(advantages_N, centred_N, beta, value=-1.0), turns), metrics=metrics)


def _apply(ctx: AdvantageContext, advantages: Tensor | Packed, s: RepoD) -> TransformResult:
    return repo_d(
        advantages,
        ctx.turns,
        ctx.log_probs(),
        ctx.entropies(),
        zeta=ctx.info["repo_d"]["zeta"],
        center=s.center,
        scope=s.scope,
        clamp=s.clamp,
        skip_zero_groups=s.skip_zero_groups,
    )


_BOUNDED = ("zeta", "zeta_min", "zeta_max")

REPO_D = Transform(
    name="repo_d",
    summary="subtracts the centred log-probability in proportion to the predicted loss of entropy",
    when="as repo_r, with a correction on every token",
    cost="a few ms per batch on the CPU",
    source="REPO paper, sec. 4 and Cor. 1",
    settings=RepoD,
    function="verl_entropy.methods.transforms.repo_d.repo_d",
    needs=frozenset({"entropy"}),
    order=45,
    bounded=_BOUNDED,
    steers=True,
    metrics={
        "zeta": Metric("coefficient zeta", "number", "REPO paper, sec. 4"),
        "beta": Metric("zeta E[A L pi]", "number", "REPO paper, sec. 4"),
        "predicted_entropy_change": Metric(
            "-mean(A L pi) of the advantages before the transform", "nats per unit of step", "Cor. 1"
        ),
    },
    neutral={"zeta": 0.0, "adaptive": False},
    state=controlled("repo_d", _BOUNDED),
    apply=_apply,
)
