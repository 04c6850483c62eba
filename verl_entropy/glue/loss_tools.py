# SPDX-License-Identifier: Apache-2.0
"""From verl's nested model outputs to padded response tensors."""

from __future__ import annotations

import torch


def response_RT(values: torch.Tensor, data, width: int) -> torch.Tensor:
    """Model output of the full sequences (nested, or packed (tokens,)) as a padded response tensor (R, width).

    Position t holds the output at the token before response token t, as verl's ``no_padding_2_padding``; one gather, no loop.
    """
    flat = values.values() if values.is_nested else values
    prompt_R, response_R = data["prompts"].offsets().diff(), data["responses"].offsets().diff()
    end_R = (prompt_R + response_R).cumsum(0)
    t_T = torch.arange(width, device=flat.device)
    index_RT = (end_R - response_R - 1).unsqueeze(1) + t_T
    inside_RT = t_T < response_R.unsqueeze(1)
    return torch.where(inside_RT, flat[index_RT.clamp(0, flat.shape[0] - 1)], 0.0)
