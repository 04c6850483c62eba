# SPDX-License-Identifier: Apache-2.0
"""Entropy-regularised policy optimisation (EPO, arXiv 2509.22576; authors' code WujiangXu/EPO at 5b6fa98)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_entropy.batch.turns import nested_token_weight
from verl_entropy.methods.context import AdvantageContext, LossContext
from verl_entropy.methods.method import Metric, Regularizer, setting


@dataclass(frozen=True)
class EPO:
    """Entropy-regularised policy optimisation: -lambda [H - beta_k P] (arXiv 2509.22576, Eqs. 4-7)."""

    entropy_coeff: float = setting(0.001, "lambda: weight of the entropy term (Tables 2-3)", ge=0.0)
    smooth_coeff: float = setting(
        0.1,
        "alpha: weight of the smoothing penalty (lambda_k in Tables 2-3: .1 ALFWorld, .05 ScienceWorld); below 1 / beta the term raises "
        "entropy above the corridor too",
        ge=0.0,
    )
    kappa_low: float = setting(0.0, "lower edge of the entropy corridor, in units of its history mean", ge=0.0)
    kappa_high: float = setting(2.0, "upper edge of the entropy corridor, in units of its history mean", ge=0.0)
    penalty: str = setting(
        "hinge",
        "hinge: Eq. 5, with its gradient; indicator: Definition 9 and the released code, which has none",
        choices=("hinge", "indicator"),
    )
    weight: str = setting(
        "paper",
        "beta_k: paper (Eq. 7), released (the authors' code), constant (beta_start), off (EPO-Base)",
        choices=("paper", "released", "constant", "off"),
    )
    beta_start: float = setting(2.0, "b_s of Eq. 7", ge=0.0)
    beta_end: float = setting(1.0, "b_e of Eq. 7", ge=0.0)
    decay: float = setting(3.0, "lambda_d of Eq. 7", ge=0.0)
    total_steps: int | None = setting(None, "K of Eq. 7; null: trainer.total_training_steps", ge=1)
    entropy_decay: bool = setting(False, "ablation EPO-Decay: lambda times the released code's decay from 1 to .04")
    history: str = setting(
        "batch",
        "what the corridor is centred on: mean entropy of earlier steps (Eq. 5), or one mean per turn index",
        choices=("batch", "turn"),
    )
    aggregation: str = setting(
        "nested-mean",
        "nested-mean: trajectories, turns, tokens (Eq. 4); or one of verl's modes",
        choices=("nested-mean", "token-mean", "seq-mean-token-mean"),
    )


def epo_regularizer(
    entropy_RT: Tensor,
    mask_RT: Tensor,
    *,
    hbar: float | Tensor | None,
    beta: float,
    entropy_coeff: float = 0.001,
    smooth_coeff: float = 0.1,
    kappa_low: float = 0.0,
    kappa_high: float = 2.0,
    penalty: str = "hinge",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss to minimise, on top of the policy loss; (R, T), fp32.

        loss     = -lambda (H - beta P)
        dloss/dH = -lambda (1 - beta dP/dH) with the hinge, -lambda with the indicator

    Above the corridor the hinge gives dloss/dH = -lambda (1 - beta alpha), below it -lambda (1 + beta alpha), inside -lambda. At the
    paper's values (alpha .1 or .05, beta from 2 to 1) 1 - beta alpha is .8 or more, so **the term still raises entropy above the
    corridor**, only less; what holds it is the policy loss. The tables' lambda_k is read as alpha, the one coefficient of Eq. 5 that they
    do not name otherwise; read as a factor of L^smooth beside beta it would be the same product. The corridor holds where
    beta alpha > 1 for every beta, and where its upper edge does not run away with the history (kappa_high near 1): preset
    ``epo_corridor`` (alpha 2, kappa .9 and 1.1; ours). The bonus alone then keeps the entropy at the upper edge, which drifts as
    step^.1: from 1.0 to 1.7 nats over 600 steps of a policy of 64 actions, where the paper's values end at 4.1 of ln 64 = 4.2.

    ``aggregate(loss_RT, ..., "nested-mean")`` is -lambda (L^H - beta_k L^smooth) of Eqs. 4-6. The released
    code takes verl's token mean instead, and applies P only to micro-batches that hold a late turn.

    Args:
        entropy_RT: token entropy of the current policy, with gradient; masked positions may hold anything.
        hbar: mean entropy of the earlier steps (``EntropyHistory.mean``); None before there is one: P = 0
            (Alg. 1). A tensor that broadcasts to (R, T) gives each token its own, NaN for none.
        beta: weight of the smoothing, ``epo_beta``.
        entropy_coeff: lambda.
        smooth_coeff: alpha of Eq. 5 (lambda_k in the paper's tables, out_range_penalty in the code).
        kappa_low, kappa_high: edges of the corridor in units of hbar.
        penalty: "hinge" (Eq. 5) or "indicator" (Definition 9 and the released code).

    Returns:
        loss_RT, and detached parts (R, T) whose token means are the metrics ``verl_entropy/epo/<name>``.
    """
    if penalty not in PENALTIES:
        raise ValueError(f"penalty={penalty!r}: allowed are {', '.join(PENALTIES)}.")
    if kappa_low > kappa_high:
        raise ValueError(f"kappa_low={kappa_low} is above kappa_high={kappa_high}: the corridor is empty; swap them.")
    mask_RT = mask_RT.bool()
    entropy_RT = torch.where(mask_RT, entropy_RT.to(torch.promote_types(entropy_RT.dtype, torch.float32)), 0.0)
    known_RT, center_RT = _center(hbar, entropy_RT)
    penalty_RT = PENALTIES[penalty](entropy_RT, center_RT, smooth_coeff=smooth_coeff, kappa_low=kappa_low, kappa_high=kappa_high)
    penalty_RT = torch.where(mask_RT & known_RT, penalty_RT, 0.0)
    loss_RT = -entropy_coeff * (entropy_RT - beta * penalty_RT)
    h_RT = entropy_RT.detach()
    outside_RT = known_RT & ((h_RT < kappa_low * center_RT) | (h_RT > kappa_high * center_RT)) & mask_RT
    parts = {"entropy": h_RT, "penalty": penalty_RT.detach(), "outside": outside_RT.to(h_RT.dtype)}
    return loss_RT, parts


def epo_hinge(entropy: Tensor, hbar: float | Tensor, *, smooth_coeff: float, kappa_low: float, kappa_high: float) -> Tensor:
    """Distance to the corridor, with its gradient.

        P = alpha [max(0, kappa_low Hbar - H) + max(0, H - kappa_high Hbar)]            Eq. 5

    dP/dH is -alpha below, alpha above and 0 inside. kappa_low = 0 switches the lower side off, also against
    an entropy that rounding made negative.
    """
    above = torch.relu(entropy - kappa_high * hbar)
    return smooth_coeff * (above if kappa_low == 0 else above + torch.relu(kappa_low * hbar - entropy))


def epo_indicator(entropy: Tensor, hbar: float | Tensor, *, smooth_coeff: float, kappa_low: float, kappa_high: float) -> Tensor:
    """P = 0 strictly inside (kappa_low Hbar, kappa_high Hbar), alpha elsewhere: the released code.

    It is constant in the parameters, so **its gradient is zero**: it moves the reported loss and nothing
    else, and EPO with it is a plain entropy bonus. Definition 9 of the paper is the same but for the edges,
    which it counts as inside.
    """
    entropy = entropy.detach()
    inside = (entropy > kappa_low * hbar) & (entropy < kappa_high * hbar)
    return smooth_coeff * (~inside).to(entropy.dtype)


PENALTIES = {"hinge": epo_hinge, "indicator": epo_indicator}


def _center(hbar: float | Tensor | None, entropy_RT: Tensor) -> tuple[Tensor, Tensor]:
    """Where there is a history mean, and that mean (0 elsewhere)."""
    hbar = torch.as_tensor(math.nan if hbar is None else hbar, dtype=entropy_RT.dtype, device=entropy_RT.device).detach()
    known = torch.isfinite(hbar)
    return known, torch.where(known, hbar, 0.0)


# ----------------------------------------------------------------------------- weight of the smoothing


def epo_beta(k: int, total_steps: int, beta_start: float = 2.0, beta_end: float = 1.0, decay: float = 3.0) -> float:
    """Weight of the smoothing at step k of K = ``total_steps``, k_mid = floor(K / 2) (Eq. 7).

        beta_k = b_s + (1 - b_s) (1 - e^(-decay k / k_mid))                    k <= k_mid
               = 1 + (b_e - 1) (1 - e^(-decay (k - k_mid) / (K - k_mid)))      k > k_mid

    With the paper's table (2, 1, 3) it falls from 2 to 1.0498 and then stays 1, although the text says that
    it grows late; (0.5, 2, 3) does that.

    >>> [round(epo_beta(k, 150), 4) for k in (0, 10, 75, 76, 150)]
    [2.0, 1.6703, 1.0498, 1.0, 1.0]
    """
    _check_step(k, total_steps)
    middle = total_steps // 2
    if k <= middle:
        return beta_start + (1 - beta_start) * (1 - math.exp(-decay * k / max(middle, 1)))
    return 1 + (beta_end - 1) * (1 - math.exp(-decay * (k - middle) / (total_steps - middle)))


def epo_released_weight(k: int, total_steps: int = 150) -> float:
    """The released code's weight in place of beta_k: 1 -> .827 until half time, then .8 -> .0398.

        w_k = 1 - .2 (1 - e^(-2 k / half))        k <= half = floor(K / 2)
            = .8 e^(-3 (k - half) / (K - half))   k > half; constant after K

    The code fixes K = 150.

    >>> [round(epo_released_weight(k), 4) for k in (0, 75, 76, 150)]
    [1.0, 0.8271, 0.7686, 0.0398]
    """
    _check_step(k, total_steps)
    k, half = min(k, total_steps), total_steps // 2
    if k <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * k / max(half, 1)))
    return 0.8 * math.exp(-3 * (k - half) / (total_steps - half))


def _check_step(k: int, total_steps: int) -> None:
    if k < 0 or total_steps < 1:
        raise ValueError(f"k={k}, total_steps={total_steps}: steps count from 0 and total_steps must be >= 1.")


# ----------------------------------------------------------------------------- history


class EntropyHistory:
    """Hbar of Eq. 5: the mean of the batch entropies (nats) of the steps so far, None before the first.

    >>> history = EntropyHistory()
    >>> history.append(1.0)
    >>> history.append(float("nan"))
    >>> history.append(0.5)
    >>> history.mean(), history.state_dict()
    (0.75, {'sum': 1.5, 'count': 2, 'skipped': 1})
    """

    def __init__(self) -> None:
        self._sum, self.count, self.skipped = 0.0, 0, 0

    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    def append(self, entropy: float) -> None:
        """Add the entropy (nats) of a step that is over; one that is not finite is only counted, in
        ``skipped``.
        """
        if math.isfinite(entropy):
            self._sum, self.count = self._sum + float(entropy), self.count + 1
        else:
            self.skipped += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; a JSON round trip gives back the same bits."""
        return {"sum": self._sum, "count": self.count, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check_state(state, self.state_dict())
        self._sum, self.count, self.skipped = float(state["sum"]), int(state["count"]), int(state["skipped"])


class TurnEntropyHistory:
    """One history mean per turn index: the released code's variant, aligned.

    Entry t is the mean over the steps in which a trajectory reached turn t, so each index has its own count;
    the entropy of a step at t is the mean over its turns there. The released code instead pads the vector of
    a step with zeros on the *left* (turn t of a short step then lands on a later index), counts those zeros,
    and includes the current step.
    """

    def __init__(self) -> None:
        self._sums: list[float] = []
        self.counts: list[int] = []
        self.skipped = 0

    def mean(self) -> list[float]:
        """Mean at each turn index, NaN where there is none; empty before the first step."""
        return [s / n if n else math.nan for s, n in zip(self._sums, self.counts, strict=True)]

    def append(self, entropy_K: Tensor, index_K: Tensor) -> None:
        """Add a step by the mean token entropy and the index of its turns; turns that are not finite are left
        out.
        """
        entropy_K = entropy_K.detach().double()
        finite_K = torch.isfinite(entropy_K)
        self.skipped += int((~finite_K).sum())
        index_K = index_K[finite_K]
        count = torch.bincount(index_K, minlength=len(self._sums))
        total = entropy_K.new_zeros(len(count)).index_add_(0, index_K, entropy_K[finite_K])
        grown = len(count) - len(self._sums)
        self._sums, self.counts = self._sums + [0.0] * grown, self.counts + [0] * grown
        for index, (step_total, turns) in enumerate(zip(total.tolist(), count.tolist(), strict=True)):
            if turns:
                self._sums[index] += step_total / turns
                self.counts[index] += 1

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; a JSON round trip gives back the same bits."""
        return {"sums": list(self._sums), "counts": list(self.counts), "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check_state(state, self.state_dict())
        sums, counts = [float(s) for s in state["sums"]], [int(c) for c in state["counts"]]
        if len(sums) != len(counts):
            raise ValueError(f"EPO history: {len(sums)} sums but {len(counts)} counts; the saved state is damaged.")
        self._sums, self.counts, self.skipped = sums, counts, int(state["skipped"])


def _check_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    missing = sorted(set(expected) - set(state))
    if missing:
        raise ValueError(
            f"EPO history: the saved state lacks {', '.join(missing)}; it has {', '.join(state) or 'none'}. "
            "Resume from a checkpoint with the same actor_rollout_ref.actor.policy_loss.epo.history."
        )


class EpoState:
    """EPO's corridor and weight: the history of the entropies of earlier steps."""

    of_each_batch = False

    def __init__(self, settings: EPO) -> None:
        self.settings = settings
        self.history: Any = TurnEntropyHistory() if settings.history == "turn" else EntropyHistory()

    def _beta(self, k: int, total: int) -> float:
        s = self.settings
        if s.weight == "paper":
            return epo_beta(k, total, s.beta_start, s.beta_end, s.decay)
        if s.weight == "released":
            return epo_released_weight(k, total)
        return s.beta_start if s.weight == "constant" else 0.0

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        """Corridor centre, beta_k and the factor of lambda; ``k`` counts from 0 (Alg. 1), later steps keep the last value."""
        s = self.settings
        total = s.total_steps or ctx.total_steps
        k = min(ctx.step - 1, total)
        hbar, beta = self.history.mean(), self._beta(k, total)
        if s.history == "turn":
            trained_K = ctx.turns.trained_K
            self.history.append(ctx.turns.trained_mean(ctx.entropies())[trained_K], ctx.turns.index_K[trained_K])
        elif ctx.entropy is not None:
            self.history.append(ctx.entropy)
        decay = epo_released_weight(k, total) if s.entropy_decay else 1.0
        ctx.metrics["verl_entropy/epo/beta"] = beta
        ctx.metrics["verl_entropy/epo/entropy_coeff"] = s.entropy_coeff * decay
        if isinstance(hbar, float):
            ctx.metrics["verl_entropy/epo/corridor_low"] = s.kappa_low * hbar
            ctx.metrics["verl_entropy/epo/corridor_high"] = s.kappa_high * hbar
        return {"hbar": None if hbar == [] else hbar, "beta": beta, "decay": decay}

    def state_dict(self) -> dict[str, Any]:
        return self.history.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.history.load_state_dict(values)


def _columns(ctx: AdvantageContext, s: EPO) -> Mapping[str, Tensor]:
    columns = {}
    if s.aggregation == "nested-mean":
        columns["token_weight"] = nested_token_weight(ctx.turns)
    if s.history == "turn":
        columns["turn"] = ctx.turns.to_tokens(ctx.turns.index_K.float())
    return columns


def _hbar(ctx: LossContext, hbar: Any) -> Any:
    """Corridor centre as a number, or per token when the history is kept by turn index."""
    if not isinstance(hbar, list):
        return hbar
    # Turn indices that no earlier step reached have no corridor (NaN).
    table = torch.tensor([*hbar, float("nan")], dtype=torch.float32, device=ctx.mask_RT.device)
    return table[ctx.column("turn").long().clamp(max=len(hbar))]


def _apply(ctx: LossContext, s: EPO) -> Tensor:
    info = ctx.info["epo"]
    loss_RT, parts = epo_regularizer(
        ctx.entropies(),
        ctx.mask_RT,
        hbar=_hbar(ctx, info["hbar"]),
        beta=info["beta"],
        entropy_coeff=s.entropy_coeff * info["decay"],
        smooth_coeff=s.smooth_coeff,
        kappa_low=s.kappa_low,
        kappa_high=s.kappa_high,
        penalty=s.penalty,
    )
    ctx.token_means.update({f"epo/{k}": v for k, v in parts.items()})
    return ctx.aggregate(loss_RT, s.aggregation)


EPO_REGULARIZER = Regularizer(
    name="epo",
    summary="entropy bonus, weaker above a corridor around the entropy of earlier steps",
    when="entropy of early turns runs away and late turns oscillate; a corridor that holds: preset epo_corridor",
    cost="entropy with gradient; no further tensor of vocabulary size",
    source="arXiv 2509.22576, Eqs. 4-7",
    settings=EPO,
    function="verl_entropy.methods.regularizers.epo.epo_regularizer",
    equations=("verl_entropy.methods.regularizers.epo.epo_beta",),
    needs=frozenset({"entropy", "grad_entropy", "step"}),
    ordered=(("kappa_low", "kappa_high"),),
    metrics={
        "beta": Metric("weight of the smoothing penalty", "number", "EPO, Eq. 7"),
        "entropy_coeff": Metric("weight of the entropy term", "number", "EPO, Eq. 6"),
        "corridor_low": Metric("lower edge of the corridor", "nats", "EPO, Eq. 5"),
        "corridor_high": Metric("upper edge of the corridor", "nats", "EPO, Eq. 5"),
        "entropy": Metric("mean entropy during the update", "nats", "EPO"),
        "penalty": Metric("mean penalty outside the corridor", "nats", "EPO, Eq. 5"),
        "outside": Metric("share of tokens outside the corridor", "share", "EPO, Eq. 5"),
    },
    neutral={"entropy_coeff": 0.0},
    state=EpoState,
    columns=_columns,
    coefficient=("entropy_coeff", "loss = policy loss - value x (H - beta P), beta moves over training"),
    apply=_apply,
)
