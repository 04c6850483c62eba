# SPDX-License-Identifier: Apache-2.0
"""SIREN: holds the nucleus entropy of peak tokens at its initial value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from verl_entropy.batch.numerics import chunks, scaled
from verl_entropy.methods.context import AdvantageContext, LossContext
from verl_entropy.methods.method import LogitsOutput, Metric, Regularizer, setting


@dataclass(frozen=True)
class Siren:
    """Selective entropy regularisation: beta (Hbar - anchor)^2 on the peaks of the nucleus entropy (SIREN)."""

    beta: float = setting(0.005, "weight", ge=0.0)
    top_p: float = setting(0.8, "probability mass of the nucleus", gt=0.0, le=1.0)
    tau: float | None = setting(0.8, "quantile of the row above which a token is a peak; null: all tokens", ge=0.0, lt=1.0)
    crossing: str = setting(
        "include", "token that crosses top_p: in the nucleus (standard), or not (authors' code)", choices=("include", "exclude")
    )
    anchor: float | None = setting(None, "entropy to hold; null: that of the first iteration", gt=0.0)


CROSSINGS = ("include", "exclude")


def _compute_dtype(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _nucleus_chunk(logits: Tensor, top_p: float, crossing: str) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy, least kept logit and number of kept ties with it, for [n, V] logits in compute precision."""
    ordered = logits.sort(dim=-1, descending=True, stable=True).values
    log_prob = ordered - ordered.logsumexp(-1, keepdim=True)
    prob = log_prob.exp()
    mass = prob.cumsum(-1)
    if crossing == "include":
        kept = torch.cat((torch.ones_like(mass[:, :1], dtype=torch.bool), mass[:, :-1] < top_p), dim=-1)
    else:
        kept = mass < top_p
    number = kept.sum(-1)
    prob = torch.where(kept, prob, 0.0)
    total = prob.sum(-1)
    weighted = torch.where(prob > 0.0, prob * log_prob, 0.0).sum(-1)
    safe = torch.where(number > 0, total, 1.0)
    entropy = torch.where(number > 0, safe.log() - weighted / safe, 0.0).clamp_min(0.0)
    last = ordered.gather(-1, (number - 1).clamp_min(0).unsqueeze(-1))
    last = torch.where(number.unsqueeze(-1) > 0, last, math.inf)
    return entropy, last.squeeze(-1), number - (ordered > last).sum(-1)


class _NucleusEntropy(torch.autograd.Function):
    """Keeps three numbers per token for backward; the kept set is rebuilt from the least kept logit."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, top_p: float, crossing: str, chunk_size: int, temperature: Tensor | None) -> Tensor:
        dtype = _compute_dtype(logits)
        parts = (scaled(logits[rows], temperature, rows, dtype) for rows in chunks(len(logits), chunk_size))
        entropy, last, ties = (torch.cat(p) for p in zip(*(_nucleus_chunk(z, top_p, crossing) for z in parts), strict=True))
        ctx.save_for_backward(logits, entropy, last, ties, temperature)
        ctx.chunk_size = chunk_size
        return entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, entropy, last, ties, temperature = ctx.saved_tensors
        out = torch.empty_like(logits)
        for rows in chunks(len(logits), ctx.chunk_size):
            x, edge = scaled(logits[rows], temperature, rows, entropy.dtype), last[rows].unsqueeze(-1)
            tied = x == edge
            kept = (x > edge) | (tied & (tied.cumsum(-1, dtype=torch.int32) <= ties[rows].unsqueeze(-1)))
            log_prob = x.masked_fill(~kept, -math.inf)
            # A row that keeps nothing has a logsumexp of -inf.
            log_prob = log_prob - log_prob.logsumexp(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
            prob = log_prob.exp()
            slope = -(log_prob.masked_fill_(prob == 0.0, 0.0) + entropy[rows].unsqueeze(-1)) * prob
            rate = grad[rows] if temperature is None else grad[rows] / temperature[rows].to(entropy.dtype)
            out[rows] = (slope * rate.unsqueeze(-1)).to(out.dtype)
        return out, None, None, None, None


def nucleus_entropy(
    logits: Tensor, top_p: float = 0.8, *, crossing: str = "include", chunk_size: int = 128, temperature: Tensor | None = None
) -> Tensor:
    """Entropy of the policy restricted to its nucleus and renormalised, in nats, with gradient.

        u_v = pi_v / sum_{w in nucleus} pi_w,   H = -sum_{v in nucleus} u_v log u_v
        dH / dz_v = -u_v (log u_v + H) inside the nucleus, 0 outside

    ``logits`` [..., V], divided by ``temperature`` [...] in fp32 (None: 1); the result [...] is fp32 (fp64 for fp64 logits).
    ``crossing``: "include" is the standard nucleus, the least set whose probability reaches ``top_p``;
    "exclude" leaves out the token that crosses it, as the authors' code does: a token with pi_1 >= top_p then
    has an empty nucleus, entropy 0 and no gradient. Ties at the edge are cut by vocabulary order. ``top_p``
    >= 1 is the full entropy.

    Cost: one sort of the vocabulary per token forward and none backward. It keeps the logits and three
    numbers per token; transient memory is about 6 x ``chunk_size`` x V x 4 bytes (0.47 GB at 128 x 152 k).

    Source: SIREN (code Linn3a/siren at fa59a8d, ``efficient_top_p_sampling``, which loops over rows and
    considers the 10,000 likeliest tokens only; here all tokens are candidates).
    """
    if crossing not in CROSSINGS:
        raise ValueError(f"crossing={crossing!r}: allowed are {', '.join(CROSSINGS)}.")
    if not top_p > 0.0:
        raise ValueError(f"top_p={top_p}: must be > 0. Use 0.8, or 1 for the full entropy.")
    bound = math.inf if top_p >= 1.0 else top_p
    flat = logits.reshape(-1, logits.shape[-1])
    if not len(flat):
        return flat.sum(-1, dtype=_compute_dtype(logits)).view(logits.shape[:-1])
    temperature = None if temperature is None else temperature.detach().reshape(-1).clamp(min=1e-8)
    return _NucleusEntropy.apply(flat, bound, crossing, max(1, chunk_size), temperature).view(logits.shape[:-1])


@torch.no_grad()
def peak_mask(entropy_RT: Tensor, mask_RT: Tensor, tau: float | None = 0.8) -> Tensor:
    """Tokens whose entropy exceeds the ``tau``-quantile of their row, bool [R, T].

    The quantile interpolates linearly between order statistics of the row's valid tokens (numpy's and torch's
    default). Rows with one token or constant entropy have no peak and are skipped, that is, all False; the
    authors' code divides 0 by 0 there. ``tau`` = None keeps the whole mask.

    Source: SIREN's ``mask_by_quantile``, whose upper quantile is ignored; a row is a response.
    """
    if tau is None:
        return mask_RT
    if not 0.0 <= tau < 1.0:
        raise ValueError(f"tau={tau}: must be in [0, 1). Use 0.8, or null for all tokens.")
    if not mask_RT.numel():
        return mask_RT
    ordered_RT = torch.where(mask_RT, entropy_RT.float(), math.inf).sort(dim=-1).values
    place_R1 = (mask_RT.sum(-1, keepdim=True) - 1).clamp_min(0).double() * tau
    below_R1 = place_R1.floor()
    low_R1 = ordered_RT.gather(-1, below_R1.long())
    high_R1 = ordered_RT.gather(-1, place_R1.ceil().long())
    # An empty row has +inf for both; its mask is False anyway.
    step_R1 = torch.where(high_R1 > low_R1, high_R1 - low_R1, 0.0)
    return mask_RT & (entropy_RT > low_R1 + (place_R1 - below_R1) * step_R1)


def masked_row_mean(entropy_RT: Tensor, peak_RT: Tensor) -> Tensor:
    """Hbar: mean over the rows that have peaks of the row's mean over its peaks (seq-mean-token-mean), 0-d; 0 without peaks."""
    count_R = peak_RT.sum(-1)
    sum_R = torch.where(peak_RT, entropy_RT, torch.zeros((), dtype=entropy_RT.dtype, device=entropy_RT.device)).sum(-1)
    return (sum_R / count_R.clamp_min(1)).sum() / (count_R > 0).sum().clamp_min(1)


def siren_loss(hbar_global: float | Tensor, anchor: float, beta: float = 0.005) -> float | Tensor:
    """Value of the loss, beta (Hbar - anchor)^2, for the metric.

    ``hbar_global`` is ``masked_row_mean`` over the whole global mini-batch. Not for backward where a
    micro-batch sees a part of it: use ``siren_surrogate``.
    """
    return beta * (hbar_global - anchor) ** 2


def siren_surrogate(entropy_RT: Tensor, peak_RT: Tensor, *, hbar_global: float, anchor: float, beta: float = 0.005) -> Tensor:
    """Loss of each token whose aggregate has the gradient of ``siren_loss`` whatever the split into micro-batches; [R, T].

        d/dtheta beta (Hbar - anchor)^2 = 2 beta (Hbar - anchor) dHbar/dtheta

    Hbar couples the micro-batches, but only through a number: with ``hbar_global`` known beforehand and
    constant, the per-token loss 2 beta (hbar_global - anchor) H, 0 outside the peaks, aggregated as
    seq-mean-token-mean over ``peak_RT`` (``num_rows`` = rows of the global mini-batch that have a peak), sums
    to that gradient. Its value is not the loss: report ``siren_loss``.

    ``hbar_global`` comes from the old-policy pass (exact for the first mini-batch, a step old for the later
    ones) or from a first forward pass over the mini-batch. The authors' code squares inside each micro-batch,
    so its value depends on the split.

    Shapes: ``entropy_RT`` is the nucleus entropy with gradient, ``peak_RT`` bool, both [R, T]. Neutral: beta
    = 0.
    """
    coefficient = 2.0 * beta * (float(hbar_global) - anchor)
    return coefficient * torch.where(peak_RT, entropy_RT, torch.zeros((), dtype=entropy_RT.dtype, device=entropy_RT.device))


class SirenAnchor:
    """The entropy to hold: Hbar of the first iteration, from the old-policy pass with the same masks.

    The authors' trainer re-reads its anchor from logged metrics and falls back to 0; here it is state that a
    checkpoint keeps.
    """

    def __init__(self, value: float | None = None):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"anchor={value}: must be a finite entropy in nats, or null for the first iteration's.")
        self.value = None if value is None else float(value)

    def update(self, hbar: float) -> float:
        """Take this iteration's Hbar and return the anchor (``hbar`` while there is none).

        The first finite positive one becomes the anchor; 0 means that no row had a peak.
        """
        hbar = float(hbar)
        if self.value is None and math.isfinite(hbar) and hbar > 0.0:
            self.value = hbar
        return hbar if self.value is None else self.value

    def state_dict(self) -> dict[str, float | None]:
        """Plain JSON values."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float | None]) -> None:
        """Restore ``state_dict``; a missing or surplus key is an error."""
        if set(state) != {"value"}:
            raise ValueError(f"SIREN anchor state has keys {sorted(state)}: expected ['value']. Use a matching checkpoint.")
        self.value = SirenAnchor(state["value"]).value


class SirenState:
    """SIREN's anchor, and the masked nucleus entropy of this iteration's experience under the old policy."""

    of_each_batch = True
    """What it says is about the batch, where the others move once a step."""

    def __init__(self, settings: Siren) -> None:
        self.settings = settings
        self.anchor = SirenAnchor(settings.anchor)

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        nucleus_RT = ctx.fields["nucleus_entropy"]
        peak_RT = peak_mask(nucleus_RT, ctx.mask_RT, self.settings.tau)
        hbar = float(masked_row_mean(nucleus_RT, peak_RT))
        anchor = self.anchor.update(hbar)
        ctx.fields["peak"] = peak_RT
        ctx.metrics["verl_entropy/siren/hbar"] = hbar
        ctx.metrics["verl_entropy/siren/anchor"] = anchor
        return {"hbar": hbar, "anchor": anchor}

    def state_dict(self) -> dict[str, Any]:
        return self.anchor.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.anchor.load_state_dict(values)


def _columns(ctx: AdvantageContext, s: Siren) -> Mapping[str, Tensor]:
    # the state's, which hbar is over, as far as a transform left them
    return {"peak": (ctx.fields["peak"] & ctx.mask_RT).float()}


def _logits(s: Siren) -> Mapping[str, LogitsOutput]:
    def nucleus(logits_NV: Tensor, temperature: Tensor | None = None) -> Tensor:
        return nucleus_entropy(logits_NV, s.top_p, crossing=s.crossing, temperature=temperature)

    return {"nucleus_entropy": LogitsOutput(nucleus, in_update=True)}


def _apply(ctx: LossContext, s: Siren) -> Tensor:
    """The surrogate with SIREN's gradient, shifted to SIREN's value, so that the reported loss is the method's."""
    info, peak_RT = ctx.info["siren"], ctx.column("peak").bool() & ctx.mask_RT
    loss_RT = siren_surrogate(
        ctx.output("nucleus_entropy"), peak_RT, hbar_global=info["hbar"], anchor=info["anchor"], beta=s.beta
    )
    share = ctx.aggregate(loss_RT, "seq-mean-token-mean", mask_RT=peak_RT, num_rows=ctx.totals["peak"][1])
    value = siren_loss(info["hbar"], info["anchor"], s.beta)
    tokens = ctx.mask_RT.sum() / max(ctx.num_tokens, 1.0) * ctx.dp_size
    ctx.token_means["siren/loss"] = torch.full(ctx.mask_RT.shape, float(value), device=ctx.mask_RT.device)
    return share - share.detach() + value * tokens


SIREN = Regularizer(
    name="siren",
    summary="holds the nucleus entropy of each response's peaks at its first value",
    when="a bonus raises the entropy of all tokens, not of the decisive ones",
    cost="one sort of the vocabulary per response token and pass",
    source="Linn3a/siren @fa59a8d",
    settings=Siren,
    function="verl_entropy.methods.regularizers.siren.siren_surrogate",
    needs=frozenset({"entropy", "logits"}),
    metrics={
        "hbar": Metric("mean nucleus entropy of the peaks", "nats", "SIREN"),
        "anchor": Metric("entropy that is held", "nats", "SIREN"),
        "loss": Metric("(hbar - anchor)^2, weighted", "loss", "SIREN"),
    },
    neutral={"beta": 0.0},
    state=SirenState,
    logits=_logits,
    logits_bytes=(6 * 128 * 4, "nucleus of a chunk"),
    columns=_columns,
    coefficient=(None, "no bonus: loss = policy loss + beta x (H of the peaks - anchor)^2"),
    apply=_apply,
)
