# SPDX-License-Identifier: Apache-2.0
"""Entrocraft: keeps only the rollouts whose sign moves the entropy into a scheduled range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns, padded
from verl_entropy.methods.common.keep import DROPPED, keep_result
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Transform, setting
from verl_entropy.methods.result import TransformResult


@dataclass(frozen=True)
class Entrocraft:
    """Range of entropy outside of which experience is rejected (arXiv 2604.26326)."""

    schedule: str = setting("linear", "course of the range over training", choices=("fixed", "linear", "cosine"))
    start_low: float = setting(0.6, "lower edge at the start, nats", ge=0.0)
    start_high: float = setting(0.7, "upper edge at the start, nats", ge=0.0)
    end_low: float = setting(0.1, "lower edge at the end, nats (paper's schedule; released script: .4)", ge=0.0)
    end_high: float = setting(0.2, "upper edge at the end, nats (paper's schedule; released script: .5)", ge=0.0)
    total_steps: int | None = setting(None, "length of the schedule; null: trainer.total_training_steps", ge=1)


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
    end, where the code goes on. Ranges they used: linear (.6, .7) -> (.1, .2) in the paper (default); -> (.4, .5) in the released
    script, nearer to the abstract's "slightly lower target" (the two do not agree); -> (.2, .3) on GSPO; cosine (.9, 1.0) ->
    (.1, .2) for Llama-8B and (.4, .5) -> (.1, .2) for Qwen3-14B.
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
    chosen_RT: Tensor | Packed = advantages_RT
    if sign:
        score_K = turns.score_J[turns.trajectory_K].float()
        chosen_RT = turns.to_tokens(score_K.clamp_min(0.0) if sign > 0 else score_K.clamp_max(0.0))
    return TransformResult(chosen_RT, metrics={"side": float(sign)})


def _range(ctx: AdvantageContext, s: Entrocraft) -> dict[str, float]:
    low, high = entropy_range(
        ctx.step,
        s.total_steps or ctx.total_steps,
        schedule=s.schedule,
        start=(s.start_low, s.start_high),
        end=(s.end_low, s.end_high),
    )
    return {"entropy": float("nan") if ctx.entropy is None else ctx.entropy, "low": low, "high": high}


def _filter(ctx: AdvantageContext, advantages: Tensor | Packed, s: Entrocraft) -> TransformResult:
    return entrocraft(advantages, ctx.turns, **_range(ctx, s))


def _switch(ctx: AdvantageContext, advantages: Tensor | Packed, s: Entrocraft) -> TransformResult:
    return entrocraft_switch(padded(advantages), ctx.turns, **_range(ctx, s))


def _far(s: Entrocraft, raw: Mapping[str, Any], name: str = "entrocraft") -> Iterator[str]:
    """The paper's range is that of large models at temperature 1."""
    if s.start_low >= Entrocraft.start_low:
        yield (
            f"algorithm.entropy.{name}.start_low={s.start_low:g}: a policy that starts far below the range is trained on its failures "
            "alone until it is there, which destroyed one of .16 nats within three steps. Set start_low and start_high around the entropy of "
            "the first steps (actor/entropy)."
        )


_SIDE = Metric("1: entropy above the range, -1: below, 0: inside", "sign", "arXiv 2604.26326")

ENTROCRAFT = Transform(
    name="entrocraft",
    summary="rejects the experience that would push entropy further out of a scheduled range",
    when="a stated course of entropy over training",
    cost="negligible; rejected tokens are lost",
    source="arXiv 2604.26326",
    settings=Entrocraft,
    function="verl_entropy.methods.transforms.entrocraft.entrocraft",
    needs=frozenset({"entropy", "step"}),
    drops=True,
    order=10,
    conflicts={"entrocraft_switch": "both react to the same range; choose the paper's filter or the released switch"},
    ordered=(("start_low", "start_high"), ("end_low", "end_high")),
    steers=True,
    doubts=_far,
    metrics=DROPPED
    | {"side": _SIDE, "low": Metric("lower edge of the range", "nats"), "high": Metric("upper edge of the range", "nats")},
    neutral={"schedule": "fixed", "start_low": 0.0, "start_high": 1e6},
    apply=_filter,
)


def _switch_doubts(s: Entrocraft, raw: Mapping[str, Any]) -> Iterator[str]:
    """The range; and other trajectory scores than +1 and -1 stop the run at the first one."""
    yield from _far(s, raw, "entrocraft_switch")
    env = (raw.get("data") or {}).get("env") or {}
    win, penalty = (env.get("kwargs") or {}).get("win_reward"), float(env.get("invalid_action_penalty") or 0.0)
    if env:
        why = f"data.env.kwargs.win_reward={win:g}" if win is not None else f"the environment {env.get('name')}"
        why += f" and data.env.invalid_action_penalty={penalty:g}" if penalty else ""
        yield (
            f"entrocraft_switch needs trajectory scores of +1 or -1 and stops the run at the first other one; see that {why} gives "
            "these, or take entrocraft."
        )


SWITCH = Transform(
    name="entrocraft_switch",
    summary="raw positive or raw negative rewards outside the range, the base inside (the released code)",
    when="to reproduce Entrocraft's code; rewards must be +1 and -1",
    cost="negligible",
    source="lblaoke/entrocraft @26165bd",
    settings=Entrocraft,
    function="verl_entropy.methods.transforms.entrocraft.entrocraft_switch",
    needs=frozenset({"entropy", "step"}),
    order=10,
    ordered=(("start_low", "start_high"), ("end_low", "end_high")),
    steers=True,
    doubts=_switch_doubts,
    metrics={"side": _SIDE},
    neutral={"schedule": "fixed", "start_low": 0.0, "start_high": 1e6},
    apply=_switch,
)
