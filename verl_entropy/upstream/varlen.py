# SPDX-License-Identifier: Apache-2.0
"""Attention over packed rows without flash-attn: transformers' attention implementation ``varlen``, on torch's own flash kernel.

Mends: with ``use_remove_padding`` verl lays the rows of a micro-batch end to end in one sequence, without a mask; positions that start
again at 0 mark where a row begins. Of transformers' implementations only flash-attn's reads them. Here a token attends to the earlier
tokens of its own row:

    bf16 and fp16 on CUDA    ``torch.nn.attention.varlen.varlen_attn``
    everything else          scaled_dot_product_attention over the rows, each padded to the longest
    a batch with a mask      transformers' own ``sdpa``

What ``varlen_attn`` lacks is refused: dropout, soft capping of the scores, attention sinks.
Versions: transformers 5.9 and 5.10 with verl 0.9.0, 0.9.1; torch 2.10 or later on CUDA.
Asked for by: ``attn_implementation=varlen``.
No longer needed when an implementation of transformers other than flash-attn's takes packed rows by their positions.

Letters: T tokens, H query heads, K key heads, D head dimension, R rows, M tokens of the longest row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from packaging.version import Version
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# transformers is imported in functions: this module is imported by a hook on transformers.modeling_utils.

NAME = "varlen"
"""Value of ``attn_implementation``."""

TORCH = Version(torch.__version__).release[:2]
FIRST_TORCH = (2, 10)  # varlen_attn(is_causal=...)
SCALE_AND_WINDOW = (2, 11)  # scale=, window_size= instead of is_causal=
GROUPED_HEADS = (2, 12)  # enable_gqa=
"""Releases of torch in which varlen_attn got what is used here."""

HALF = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256  # of torch's flash kernels
AMPERE = (8, 0)  # the first compute capability they run on

FIX = "Fix: override_config.attn_implementation=sdpa with use_remove_padding=False, or flash_attention_2 with flash-attn."
UNSUPPORTED = {"softcap": "soft capping of the attention scores", "s_aux": "attention sinks"}
"""Arguments of transformers' attention functions that change its values, and what they are."""


def shards() -> int:
    """Ranks that share one sequence (Ulysses); the glue puts verl's function in this place."""
    return 1


def check_torch() -> None:
    """Refuse a torch without ``varlen_attn``."""
    if TORCH < FIRST_TORCH:
        raise ValueError(
            f"attn_implementation={NAME} needs torch >= 2.10, whose torch.nn.attention.varlen it calls; installed is "
            f"torch {torch.__version__}. {FIX}"
        )


@dataclass(frozen=True)
class Rows:
    """Where the rows of a packed sequence begin. Never refers to the positions that it was read from: it is kept weakly by them."""

    starts: Tensor
    """(R + 1,) int32, with the end of the last row."""
    longest: int
    version: int
    """Of the positions, which in-place operations count up."""
    tokens: int

    @functools.cached_property
    def cells_T(self) -> Tensor:
        """Index of each token in R rows of M cells."""
        starts = self.starts.long()
        lengths, first = starts.diff(), starts[:-1]
        cells = torch.arange(len(lengths), device=starts.device) * self.longest - first
        return torch.arange(self.tokens, device=starts.device) + cells.repeat_interleave(lengths, output_size=self.tokens)


_rows = WeakTensorKeyDictionary()
"""Rows by the tensor of positions, which is one object for all layers of a forward pass and its recomputation in backward."""


def rows_of(position_ids: Tensor) -> Rows:
    """Rows of positions (1, T); computed once per tensor, with one copy to the host."""
    if position_ids.is_inference():  # has no version
        return _read(position_ids, 0)
    known = _rows.get(position_ids)
    if known is None or known.version != position_ids._version:
        known = _rows[position_ids] = _read(position_ids, position_ids._version)
    return known


def _read(position_ids: Tensor, version: int) -> Rows:
    position_T = position_ids[0].cpu()  # the only synchronisation
    begins_T = torch.ones_like(position_T, dtype=torch.bool)
    begins_T[1:] = position_T[1:] != position_T[:-1] + 1
    first = begins_T.nonzero().squeeze(1)
    if position_T[first].any():
        raise ValueError(
            f"attn_implementation={NAME}: positions of a packed row must be 0, 1, 2, ...; here one jumps to "
            f"{int(position_T[first].max())}, so rows cannot be told apart. {FIX}"
        )
    starts = torch.cat([first, first.new_tensor([len(position_T)])]).int()
    return Rows(starts.to(position_ids.device, non_blocking=True), int(starts.diff().max()), version, len(position_T))


def varlen_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    mask_function: Callable,
    attention_mask: Tensor | None,
    local_size: int | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs,
) -> Tensor | None:
    """None for packed rows, or an empty mask (1, 1, 0, W) if the mask is local to W tokens; else transformers' mask for ``sdpa``."""
    from transformers.masking_utils import sdpa_mask

    # Masks that a model makes itself, and blocks that see both ways (images), are more than causal rows.
    special = use_vmap or allow_is_bidirectional_skip or mask_function.__name__ == "or_mask"
    whole = batch_size == 1 and attention_mask is None and q_length == kv_length and q_offset == 0 and kv_offset == 0
    if whole and not special:
        return None if local_size is None else torch.empty(1, 1, 0, local_size, dtype=torch.bool, device=device)
    return sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        use_vmap=use_vmap,
        device=device,
        **kwargs,
    )


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_ids: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention of a layer in transformers' interface: query (1, H, T, D), key and value (1, K, T, D); returns (1, T, H, D)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    for argument, meaning in UNSUPPORTED.items():
        if kwargs.get(argument) is not None:
            raise ValueError(f"attn_implementation={NAME}: this model uses {meaning} ({argument}), which it lacks. {FIX}")
    local = attention_mask.shape[-1] if attention_mask is not None and attention_mask.numel() == 0 else None
    causal = module.is_causal if is_causal is None else is_causal
    packed = causal and query.shape[0] == 1 and query.shape[2] == key.shape[2] and (attention_mask is None or local is not None)
    if not packed:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    _check_packed(query, position_ids, dropout)
    rows = rows_of(position_ids)
    window = _window(local, sliding_window, rows.longest)
    if torch.is_autocast_enabled(query.device.type):  # as for torch's own attention functions
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attend = flash if _has_flash(query, value) else row_by_row
    out_THD = attend(*(x[0].transpose(0, 1) for x in (query, key, value)), rows, scale, window)
    return out_THD.unsqueeze(0), None


def _check_packed(query: Tensor, position_ids: Tensor | None, dropout: float) -> None:
    if shards() > 1:
        raise ValueError(
            f"attn_implementation={NAME}: a rank sees {1 / shards():.0%} of each sequence, since ulysses_sequence_parallel_size="
            f"{shards()}. Fix: set it to 1, or attn_implementation=flash_attention_2 with flash-attn installed."
        )
    if dropout:
        raise ValueError(
            f"attn_implementation={NAME} has no dropout, and the model's attention_dropout is {dropout}. "
            "Fix: override_config.attention_dropout=0.0."
        )
    if position_ids is None or position_ids.shape != (1, query.shape[2]):
        got = "none" if position_ids is None else f"shape {tuple(position_ids.shape)}"
        raise ValueError(
            f"attn_implementation={NAME} finds the rows by the positions that layers hand on to their attention, "
            f"(1, {query.shape[2]}) here; this model gives {got}. {FIX}"
        )


def _window(local: int | None, sliding_window: int | None, longest: int) -> int | None:
    """Tokens that a token sees, itself among them, if less than its row; mask and layer must agree on it."""
    if all(size is None or longest <= size for size in (local, sliding_window)):
        return None
    if local != sliding_window:
        raise ValueError(
            f"attn_implementation={NAME}: the model's mask is local to {local} tokens, but its layers ask for "
            f"sliding_window={sliding_window} (chunked attention, or a layer that leaves the window to the mask). {FIX}"
        )
    return local


def _has_flash(query: Tensor, value: Tensor) -> bool:
    """Whether torch's flash kernel takes these tensors."""
    width = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in HALF
        and value.shape[-1] == width
        and width % 8 == 0
        and width <= MAX_HEAD_DIM
        and torch.cuda.get_device_capability(query.device) >= AMPERE
    )


def flash(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, rows: Rows, scale: float, window: int | None) -> Tensor:
    """Attention (T, H, D) by ``varlen_attn``, in the signature of the installed torch."""
    check_torch()
    from torch.nn.attention.varlen import varlen_attn

    options: dict = {}
    groups = query_THD.shape[1] // key_TKD.shape[1]
    if groups > 1 and TORCH >= GROUPED_HEADS:
        options["enable_gqa"] = True
    elif groups > 1:
        key_TKD, value_TKD = key_TKD.repeat_interleave(groups, dim=1), value_TKD.repeat_interleave(groups, dim=1)
    if TORCH >= SCALE_AND_WINDOW:
        options |= {"scale": scale, "window_size": (-1 if window is None else window - 1, 0)}
    elif window is None and math.isclose(scale, query_THD.shape[-1] ** -0.5):
        options["is_causal"] = True
    else:
        raise ValueError(
            f"attn_implementation={NAME}: a sliding window, or a scale of the scores other than head_dim^-0.5, needs torch >= 2.11; "
            f"installed is torch {torch.__version__}. {FIX}"
        )
    starts, longest = rows.starts, rows.longest
    return varlen_attn(query_THD, key_TKD, value_TKD, starts, starts, longest, longest, **options)


def row_by_row(query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, rows: Rows, scale: float, window: int | None) -> Tensor:
    """The same by scaled_dot_product_attention over (R, M): padding follows a row, so no token of the row sees it."""
    cells_T, number, longest = rows.cells_T, len(rows.starts) - 1, rows.longest
    heads = query_THD.shape[1]

    def in_rows(x: Tensor) -> Tensor:
        # Equal heads: fp32 on CUDA has no fused kernel for groups.
        x = x.repeat_interleave(heads // x.shape[1], dim=1)
        padded = x.new_zeros(number * longest, *x.shape[1:]).index_copy(0, cells_T, x)
        return padded.unflatten(0, (number, longest)).transpose(1, 2)

    mask = None
    if window is not None:
        cell_M = torch.arange(longest, device=query_THD.device)
        back_MM = cell_M.unsqueeze(1) - cell_M
        mask = (back_MM >= 0) & (back_MM < window)
    out_RHMD = torch.nn.functional.scaled_dot_product_attention(
        in_rows(query_THD), in_rows(key_TKD), in_rows(value_TKD), attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out_RHMD.transpose(1, 2).flatten(0, 1)[cells_T]


def register() -> None:
    """Make ``attn_implementation=varlen`` known to transformers."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, varlen_attention)
    AttentionMaskInterface.register(NAME, varlen_mask)
