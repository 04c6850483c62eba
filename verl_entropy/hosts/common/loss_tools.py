# SPDX-License-Identifier: Apache-2.0
"""Between verl's nested tensors, padded response tensors and the flat token axis of the model."""

from __future__ import annotations

import torch

from verl_entropy.hosts.common.trainer_keys import WHOLE_MASKS


def lengths(micro_batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of each row's prompt and response."""
    return micro_batch["prompts"].offsets().diff(), micro_batch["responses"].offsets().diff()


def trained_tokens(micro_batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Trained tokens in row order: their places among all response tokens, and their rows, both (N,). One host sync.

    Those of the batch, also where a transform dropped some of them from the policy's loss.
    """
    whole = WHOLE_MASKS["loss_mask"]
    mask = micro_batch[whole if whole in micro_batch.keys() else "loss_mask"]
    token_N = mask.values().nonzero().squeeze(-1)
    return token_N, torch.searchsorted(mask.offsets()[1:], token_N, right=True)


def trained_positions(micro_batch, packed: bool, shift: int, token_N: torch.Tensor, row_N: torch.Tensor) -> torch.Tensor:
    """Flat indices of ``trained_tokens`` into the model's (rows x width) or packed token axis; ``shift`` -1 gives the one before."""
    prompt_end_R = micro_batch["prompts"].offsets()[1:]  # packed: all responses before this one's are in ``token_N`` already
    if not packed:
        prompt_R, response_R = lengths(micro_batch)
        length_R = prompt_R + response_R
        start_R = torch.arange(len(length_R), device=length_R.device) * length_R.max()
        prompt_end_R = start_R + prompt_R - micro_batch["responses"].offsets()[:-1]
    return token_N + (prompt_end_R + shift).index_select(0, row_N)


def clip_bounds(config) -> tuple[float, float]:
    """How far the ratio may go below and above 1, as verl reads it: ``clip_ratio`` where ``clip_ratio_low`` or ``_high`` is null."""
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return (config.clip_ratio if low is None else low), (config.clip_ratio if high is None else high)


def response_RT(values: torch.Tensor, data, width: int) -> torch.Tensor:
    """Model output of the full sequences (nested, or packed (tokens,)) as a padded response tensor (R, width).

    Position t holds the output at the token before response token t, as verl's ``no_padding_2_padding``, bit for bit; one
    gather instead of its loop, which waits for the device three times a row.
    """
    flat = values.values() if values.is_nested else values
    prompt_R, response_R = lengths(data)
    end_R = (prompt_R + response_R).cumsum(0)
    t_T = torch.arange(width, device=flat.device)
    index_RT = (end_R - response_R - 1).unsqueeze(1) + t_T
    inside_RT = t_T < response_R.unsqueeze(1)
    taken_RT = flat.index_select(0, index_RT.clamp(0, flat.shape[0] - 1).flatten()).view(index_RT.shape)
    return torch.where(inside_RT, taken_RT, 0.0)
