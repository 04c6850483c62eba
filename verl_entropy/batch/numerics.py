# SPDX-License-Identifier: Apache-2.0
"""Numbers that must not depend on precision, padding or the split of a batch.

fp32 log-probabilities and entropies in one chunked pass, masked means, group statistics, and the aggregation
of a per-token matrix to a scalar.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_CELLS = 2**24
"""Logits per chunk: 64 MiB in fp32, of which about three are alive at a time, so a pass needs about 0.2 GB.
"""

AGGREGATIONS = (
    "token-mean",
    "token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "nested-mean",
)


ROUNDING = 32 * 2.0**-23
"""Relative spread of values computed in fp32 that is rounding: 3.8e-6. The entropies of the same tokens, about 1 nat, differ by 1.9e-6
between a batch and alone."""


def rounding(size: float | Tensor) -> float | Tensor:
    """The spread up to which values of this size, computed in fp32, count as equal. The one place where ties are decided."""
    return ROUNDING * size


# ----------------------------------------------------------------------------- log-probabilities and entropy


def log_probs_and_entropy(
    logits: Tensor,
    labels: Tensor,
    temperature: float | Tensor | None = None,
    chunk_tokens: int | None = None,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """log pi(label) and entropy of softmax(logits / temperature), in nats and fp32, in one chunked pass.

        H = -sum_v p_v log p_v
        dlogits = [g_lp (onehot - p) - g_H p (log p + H)] / temperature

    Backward keeps the logits as given (no fp32 copy) and vectors of length N, recomputes the softmax chunk by
    chunk, and returns a gradient in the dtype of the logits. The result is the same inside and outside
    autocast, and for bf16 and fp16 logits within 1e-4 nats of fp64. A logit of -inf (a banned word) gives
    finite entropy and gradients.

    bf16 and fp16 logits on a GPU go through the Triton kernels of ``kernels``, which read each logit once per pass.

    For fp32 logits, log_probs, their gradient and the entropy are bit for bit those of verl's
    ``logprobs_from_logits_v2`` and ``entropy_from_logits``; that entropy, lse - sum p z, is off by some 1e-4
    nats at a vocabulary of 150k on the CPU, more with large logits. Other dtypes take -sum p log p.

    Args:
        logits: (..., V), any float dtype; fp64 stays fp64. Not contiguous logits are copied.
        labels: (...), long.
        temperature: number, or tensor with one entry per row (..., or broadcastable to it); gets no gradient.
        chunk_tokens: rows per chunk; default: as many as ``CHUNK_CELLS`` logits. A number turns the kernels off.
        with_entropy: False returns None for the entropy and saves half of the forward.

    Returns:
        log_probs (...) and entropy (...), fp32.
    """
    batch, vocab = logits.shape[:-1], logits.shape[-1]
    if labels.shape != batch:
        raise ValueError(f"labels has shape {tuple(labels.shape)}, expected {tuple(batch)}: one label per row of logits.")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens}: must be >= 1, or None for the default.")
    if isinstance(temperature, Tensor):
        temperature = _per_row(temperature, batch)
    elif temperature is not None and not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be > 0; use 1.0 for the plain softmax.")
    elif temperature == 1:
        temperature = None
    rows = chunk_tokens or max(1, CHUNK_CELLS // max(vocab, 1))
    one_pass = _Fused if chunk_tokens is None and _kernels_apply(logits) else _LogProbsAndEntropy
    log_probs, entropy = one_pass.apply(logits.reshape(-1, vocab), labels.reshape(-1), temperature, rows, with_entropy)
    return log_probs.view(batch), entropy.view(batch) if with_entropy else None


def _kernels_apply(logits: Tensor) -> bool:
    """Whether the Triton kernels take these logits. fp32 ones keep verl's order of operations."""
    if logits.device.type != "cuda" or logits.dtype not in (torch.bfloat16, torch.float16) or not logits.shape[-1]:
        return False
    return importlib.util.find_spec("triton") is not None  # comes with torch's CUDA builds


Gradients: TypeAlias = tuple[Tensor | None, None, None, None, None]
"""Of the logits; labels, temperature and the two settings get none."""


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        labels_N: Tensor,
        temperature: float | Tensor | None,
        rows: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        from verl_entropy.batch import kernels

        if not isinstance(temperature, Tensor):
            temperature = torch.tensor(1.0 if temperature is None else temperature).expand(len(labels_N))
        temperature_N = temperature.to(logits_NV.device).contiguous()
        log_probs_N, entropy_N, lse_N = kernels.forward(logits_NV, labels_N, temperature_N)
        ctx.save_for_backward(logits_NV, labels_N, temperature_N, lse_N, entropy_N)
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N.clone() if with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_log_probs_N: Tensor | None, g_entropy_N: Tensor | None) -> Gradients:
        from verl_entropy.batch import kernels

        if g_log_probs_N is None and g_entropy_N is None:
            return None, None, None, None, None
        zero_N = torch.zeros_like(ctx.saved_tensors[3])
        gradients = [(zero_N if g is None else g).contiguous() for g in (g_log_probs_N, g_entropy_N)]
        return kernels.backward(*ctx.saved_tensors, *gradients), None, None, None, None


class _LogProbsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        labels_N: Tensor,
        temperature: float | Tensor | None,
        rows: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        lse_N = logits_NV.new_empty(logits_NV.shape[0], dtype=dtype)
        log_probs_N = torch.empty_like(lse_N)
        entropy_N = torch.empty_like(lse_N) if with_entropy else None
        entropy_of = _entropy_as_verl if logits_NV.dtype == torch.float32 else _entropy
        with torch.autocast(logits_NV.device.type, enabled=False):
            for chunk in chunks(len(lse_N), rows):
                z = _from_the_maximum(scaled(logits_NV[chunk], temperature, chunk, dtype), logits_NV.dtype)
                lse = torch.logsumexp(z, dim=-1)
                label_logit = z.gather(-1, labels_N[chunk, None]).squeeze(-1)
                banned = lse == -torch.inf  # every logit is -inf: no distribution
                lse_N[chunk] = lse
                log_probs_N[chunk] = torch.where(banned, lse, label_logit - lse)
                if entropy_N is not None:
                    entropy_N[chunk] = torch.where(banned, 0.0, entropy_of(z, lse))
        is_tensor = isinstance(temperature, Tensor)
        ctx.save_for_backward(logits_NV, labels_N, lse_N, temperature if is_tensor else None)
        ctx.temperature, ctx.rows = None if is_tensor else temperature, rows
        ctx.set_materialize_grads(False)
        return log_probs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_log_probs_N: Tensor | None, g_entropy_N: Tensor | None) -> Gradients:
        logits_NV, labels_N, lse_N, temperature = ctx.saved_tensors
        temperature = ctx.temperature if temperature is None else temperature
        if g_log_probs_N is None and g_entropy_N is None:
            return None, None, None, None, None
        grad_NV = torch.empty_like(logits_NV)
        with torch.autocast(logits_NV.device.type, enabled=False):
            for chunk in chunks(len(lse_N), ctx.rows):
                z = _from_the_maximum(scaled(logits_NV[chunk], temperature, chunk, lse_N.dtype), logits_NV.dtype)
                lse = lse_N[chunk, None]
                log_p = z - lse.masked_fill(lse == -torch.inf, 0.0)
                p = log_p.exp()
                grad: Tensor | None = None
                if g_entropy_N is not None:
                    # H from this p, not the forward's: their rounding errors cancel in log p + H
                    grad = log_p.mul_(p).masked_fill_(p == 0, 0.0)
                    grad.addcmul_(p, -grad.sum(dim=-1, keepdim=True)).mul_(-g_entropy_N[chunk, None])
                if g_log_probs_N is not None:
                    g = g_log_probs_N[chunk, None]
                    from_label = p.mul_(-g).scatter_add_(-1, labels_N[chunk, None], g)
                    grad = from_label if grad is None else from_label.add_(grad)
                assert grad is not None  # one of the two has a gradient
                grad_NV[chunk] = grad if temperature is None else grad.div_(_rows_of(temperature, chunk))
        return grad_NV, None, None, None, None


def _entropy_as_verl(z: Tensor, lse: Tensor) -> Tensor:
    """lse - sum p z, in verl's order of operations."""
    return lse - torch.softmax(z, dim=-1).mul_(z).masked_fill_(z == -torch.inf, 0.0).sum(dim=-1)


def _entropy(z: Tensor, lse: Tensor) -> Tensor:
    """-sum p log p: unlike lse - sum p z, its error does not grow with the size of the logits."""
    log_p = z - lse[:, None]
    return -log_p.exp().mul_(log_p).masked_fill_(log_p == -torch.inf, 0.0).sum(dim=-1)


def _from_the_maximum(z: Tensor, dtype: torch.dtype) -> Tensor:
    """z less each row's maximum: lse is then small, and its rounding does not grow with the logits. fp32 logits stay as in verl."""
    if dtype not in (torch.bfloat16, torch.float16) or not z.shape[-1]:
        return z
    top = z.amax(dim=-1, keepdim=True)
    return z.sub_(top.masked_fill(top == -torch.inf, 0.0))  # z is the fp32 copy of these logits


def chunks(total: int, rows: int) -> Iterator[slice]:
    """The slices of at most ``rows`` rows that make up ``total``."""
    return (slice(start, start + rows) for start in range(0, total, rows))


def _rows_of(temperature: float | Tensor, chunk: slice) -> float | Tensor:
    return temperature[chunk, None] if isinstance(temperature, Tensor) else temperature


def scaled(logits: Tensor, temperature: float | Tensor | None, chunk: slice, dtype: torch.dtype) -> Tensor:
    """The logits of a chunk of rows in ``dtype``, divided by the temperature there: a number, one per row of the whole, or None for 1."""
    z = logits.to(dtype)
    return z if temperature is None else z / _rows_of(temperature, chunk)


def _per_row(temperature: Tensor, batch: torch.Size) -> Tensor:
    """One temperature per row, as a vector, from (...), (..., 1) or anything that broadcasts to the rows."""
    temperature = temperature.detach()
    if temperature.dim() == len(batch) + 1 and temperature.shape[-1] == 1:
        temperature = temperature.squeeze(-1)
    return temperature.float().expand(batch).reshape(-1)


# ----------------------------------------------------------------------------- statistics of groups


def center_by_group(
    values_N: Tensor,
    group_N: Tensor,
    num_groups: int,
    *,
    norm: str = "mean",
    eps: float = 1e-6,
    singleton: str = "zero",
) -> Tensor:
    """(value - mean of its group) / F; (N,) -> (N,), fp64.

    F is 1 with ``norm="mean"`` and std + eps (ddof 1) with ``"mean_std"``. A group whose values are all equal
    gives exactly 0. A group of one gives 0, or with ``singleton="raw"`` its value (mean 0 and std 1, as in
    verl's GRPO). Values count as equal up to fp32 rounding of the largest one (``rounding``).
    """
    if norm not in ("mean", "mean_std"):
        raise ValueError(f"norm={norm!r}: allowed are 'mean' and 'mean_std'.")
    if singleton not in ("zero", "raw"):
        raise ValueError(f"singleton={singleton!r}: allowed are 'zero' and 'raw'.")
    # fp64: the order in which the members are added then does not reach the fp32 result
    values_N = values_N.double()
    count_N = torch.bincount(group_N, minlength=num_groups)[group_N]
    mean_N = _sum_by_group(values_N, group_N, num_groups) / count_N
    centered_N = values_N - mean_N
    spread_N = torch.ones_like(values_N)
    if norm == "mean_std":
        variance_N = _sum_by_group(centered_N.square(), group_N, num_groups) / (count_N - 1).clamp(min=1)
        spread_N = variance_N.sqrt() + eps
    low_N, high_N = group_range(values_N, group_N, num_groups)
    equal_N = high_N - low_N <= rounding(torch.maximum(low_N.abs(), high_N.abs()))
    centered_N = torch.where(equal_N, 0.0, centered_N / spread_N)
    if singleton == "raw":
        raw_N = values_N / (1 + eps) if norm == "mean_std" else values_N
        centered_N = torch.where(count_N == 1, raw_N, centered_N)
    return centered_N


def group_range(values_N: Tensor, group_N: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Lowest and highest value of the group of each entry; (N,) -> (N,), (N,)."""
    limits = values_N.new_zeros(num_groups)
    low = limits.scatter_reduce(0, group_N, values_N, "amin", include_self=False)
    high = limits.scatter_reduce(0, group_N, values_N, "amax", include_self=False)
    return low[group_N], high[group_N]


def _sum_by_group(values_N: Tensor, group_N: Tensor, num_groups: int) -> Tensor:
    return values_N.new_zeros(num_groups).index_add_(0, group_N, values_N)[group_N]


# ----------------------------------------------------------------------------- masked means, aggregation


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of ``x`` where ``mask``, fp32; 0 where the mask is empty. Masked positions may hold anything."""
    mask = mask.bool()
    x = torch.where(mask, x.to(torch.promote_types(x.dtype, torch.float32)), 0.0)
    return x.sum(dim) / mask.sum(dim).clamp(min=1)


def aggregate(
    x_RT: Tensor,
    mask_RT: Tensor,
    mode: str,
    *,
    num_tokens: float | Tensor | None,
    num_rows: float | Tensor | None,
    dp_size: int = 1,
    weight: Tensor | None = None,
    weight_sum: float | Tensor | None = None,
    scale_factor: float | None = None,
) -> Tensor:
    """The share of a micro-batch in the aggregate of the global mini-batch; all shares add up to it.

    The five modes of verl's ``agg_loss`` have its values for the same counts. ``nested-mean`` is the token mean under the weights
    of ``turns.nested_token_weight``: the mean over trajectories of turns of tokens (Eq. 4 of EPO, arXiv
    2509.22576), divided by the mini-batch's sum of weights: a constant keeps its value in every mini-batch. Counts are never guessed
    from the micro-batch.

    Args:
        x_RT: per-token matrix; masked positions may hold anything and get no gradient.
        num_tokens: trained tokens of the global mini-batch over all ranks (token-mean; nested-mean without ``weight_sum``).
        num_rows: rows of the global mini-batch over all ranks that have a trained token (seq-mean-*). verl's trainer
            passes ppo_mini_batch_size * n to its own losses instead, whatever the rows are.
        dp_size: ranks whose gradients FSDP averages; the result is scaled by it.
        weight: weight of each row (R,) or token (R, T); denominators stay as they are, but for nested-mean.
        weight_sum: sum of the token weights over the trained tokens of the global mini-batch, all ranks (nested-mean). None only where
            the mini-batch is the whole batch that the weights are of: there the sum is ``num_tokens``.
        scale_factor: divisor of seq-mean-token-sum-norm, constant over the training.

    Returns:
        scalar, fp32; 0 for an empty micro-batch.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"mode={mode!r}: allowed are {', '.join(AGGREGATIONS)}.")
    if mode == "nested-mean" and (weight is None or weight.dim() != 2):
        raise ValueError("mode='nested-mean' needs one weight per token; pass nested_token_weight(turns) of the batch.")
    mask_RT = mask_RT.bool()
    x_RT = torch.where(mask_RT, x_RT.to(torch.promote_types(x_RT.dtype, torch.float32)), 0.0)
    if weight is not None:
        weight_RT = weight[:, None] if weight.dim() == 1 else weight
        x_RT = x_RT * torch.where(mask_RT, weight_RT.to(x_RT.dtype), 0.0)
    if mode == "token-sum":
        return x_RT.sum() * dp_size
    if mode == "nested-mean" and weight_sum is not None:
        total = torch.as_tensor(weight_sum, dtype=x_RT.dtype, device=x_RT.device)
        return x_RT.sum() / torch.where(total > 0, total, 1.0) * dp_size
    if mode in ("token-mean", "nested-mean"):
        return x_RT.sum() / _count(num_tokens, "num_tokens", mode) * dp_size
    rows_R = x_RT.sum(-1)
    if mode == "seq-mean-token-mean":
        rows_R = rows_R / mask_RT.sum(-1).clamp(min=1)
    total = rows_R.sum() / _count(num_rows, "num_rows", mode) * dp_size
    return total / _scale(scale_factor) if mode == "seq-mean-token-sum-norm" else total


def _count(count: float | Tensor | None, name: str, mode: str) -> float | Tensor:
    if count is None:
        raise ValueError(f"mode={mode!r} needs {name}: the count of the global mini-batch, all micro-batches and ranks.")
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _scale(scale_factor: float | None) -> float:
    if scale_factor is None or not scale_factor > 0:
        raise ValueError(
            f"scale_factor={scale_factor}: mode 'seq-mean-token-sum-norm' needs a number > 0 that stays the "
            "same over the training, for example the maximum response length."
        )
    return scale_factor
