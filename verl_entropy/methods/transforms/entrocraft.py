# SPDX-License-Identifier: Apache-2.0
"""Entrocraft: keeps only the rollouts whose sign moves the entropy into a scheduled range."""

from __future__ import annotations

import math

from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns
from verl_entropy.methods.transforms.keep import keep_result
from verl_entropy.methods.transforms.result import TransformResult

SCHEDULES = ("fixed", "linear", "cosine")


def entropy_range(
    step: int,
    total_steps: int,
    *,
    schedule: str = "linear",
    start: tuple[float, float] = (0.6, 0.7),
    end: tuple[float, float] = (0.1, 0.2),
) -> tuple[float, float]:
    """The range (h_low, h_high) in nats that the entropy should be in at ``step``.

        h = h_start + (h_end - h_start) q;   q = 0 (fixed), step / total (linear), (1 - cos(pi step / total)) / 2 (cosine)

    Source: arXiv 2604.26326, and the authors' code for both formulas; steps beyond ``total_steps`` keep the
    end, where the code goes on. Ranges they used: linear (.6, .7) -> (.1, .2) in the paper (default), -> (.4,
    .5) in the code's script, -> (.2, .3) on GSPO; cosine (.9, 1.0) -> (.1, .2) for Llama-8B and (.4, .5) ->
    (.1, .2) for Qwen3-14B.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: allowed are {', '.join(SCHEDULES)}.")
    for name, (low, high) in (("start", start), ("end", end)):
        if not low <= high:
            raise ValueError(f"{name}={(low, high)}: the lower bound exceeds the upper. Set {name} to (low, high), low <= high.")
    if schedule == "fixed":
        return start
    if total_steps < 1:
        raise ValueError(f"total_steps={total_steps}: must be >= 1 for schedule={schedule}. Set it, or use schedule=fixed.")
    progress = min(max(step / total_steps, 0.0), 1.0)
    if schedule == "cosine":
        progress = 0.5 * (1.0 - math.cos(math.pi * progress))
    low, high = (a + (b - a) * progress for a, b in zip(start, end, strict=True))
    return low, high


def entrocraft(advantages_RT: Tensor | Packed, turns: Turns, *, entropy: float, low: float, high: float) -> TransformResult:
    """Rejects the experience that would push the entropy further out of its range.

        m = 1(H > h_high) - 1(H < h_low);   keep where m A >= 0

    With entropy too low only A <= 0 stays, with entropy too high only A >= 0, inside the range everything; A
    = 0 always stays. ``entropy`` is the token mean of the batch's old-pass entropies (nats, before the
    update); ``low`` and ``high`` come from ``entropy_range``. A non-finite entropy keeps everything.

    Shapes: ``advantages_RT`` [R, T]; ``mask_RT`` of the result is bool [R, T]. The paper filters rollouts;
    here the sign is read per token, which is the same as long as the advantage is constant over a rollout (or
    turn): put this before transforms that change tokens one by one. The mask can be empty (an all-correct
    batch at low entropy): skip the step then; see the metric ``dropped_fraction``.

    Source: arXiv 2604.26326. The paper averages the loss over the kept set of each prompt; the mask here
    takes rejected tokens out of the numerator and the denominator of whatever aggregation the loss uses. The
    authors' code does something else: see ``entrocraft_switch``.

    Neutral: low = 0 with a huge high keeps everything.
    """
    sign = int(entropy > high) - int(entropy < low)
    dropped_N = sign * turns.pack(advantages_RT) < 0
    return keep_result(advantages_RT, turns, dropped_N, side=sign, low=low, high=high)


def entrocraft_switch(
    advantages_RT: Tensor | Packed, turns: Turns, *, entropy: float, low: float, high: float
) -> TransformResult:
    """The released estimator switch: another advantage outside the entropy range, no rejection.

        H > h_high   A' = max(r, 0)    (called RAFT++ there)
        H < h_low    A' = min(r, 0)    (called NSR)
        else         A' = A            (GRPO)

    r is the raw trajectory score, not normalised, so the scale of the advantage changes at the edges of the
    range; rows with A' = 0 stay in the denominator and in a KL loss. Rewards must be +1 or -1: with {0, 1}
    the NSR branch would be all zero.

    Shapes: ``advantages_RT`` [R, T] (the base advantage, GRPO in the paper), the result [R, T].

    Source: lblaoke/entrocraft at 26165bd (``grpo_range``, ``grpo_range_linear``, ``grpo_range_cos``); it
    differs from the paper's filter, ``entrocraft``. ``entropy``, ``low`` and ``high`` as there.
    """
    wrong = turns.score_J[turns.score_J.abs() != 1.0]
    if len(wrong):
        raise ValueError(
            f"entrocraft_switch needs trajectory scores of +1 or -1, got {float(wrong[0])} (and {len(wrong) - 1} more). "
            "Let the reward be +1 for success and -1 for failure without penalties, or use entrocraft."
        )
    sign = int(entropy > high) - int(entropy < low)
    if sign:
        score_K = turns.score_J[turns.trajectory_K].float()
        chosen_RT = turns.to_tokens(score_K.clamp_min(0.0) if sign > 0 else score_K.clamp_max(0.0))
    else:
        chosen_RT = advantages_RT
    return TransformResult(chosen_RT, metrics={"side": float(sign)})
