# SPDX-License-Identifier: Apache-2.0
"""The responses' values out of a micro-batch of packed rows, gathered at once.

Mends: verl's ``no_padding_2_padding`` waits for the device once for every row and cuts each row in Python, for every output that a
loss reads. Here the lengths come over with one wait and one gather takes all rows; the values are the same, bit for bit.
Versions: 0.9.0, 0.9.1.
Asked for by: a chosen method.
No longer needed when ``verl/workers/utils/padding.py`` cuts the responses without a loop over the rows (``for ... in zip(``).
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch

from verl_entropy.hosts.common.loss_tools import lengths, response_RT


def wrap(module: ModuleType) -> None:
    """Rebind ``no_padding_2_padding`` in ``verl.workers.utils.losses``, where verl's losses of actor and critic call it."""
    original = module.no_padding_2_padding

    @functools.wraps(original)
    def no_padding_2_padding(tensor, data):
        values = tensor.values() if tensor.is_nested else tensor
        if values.dim() != 1 or not data["prompts"].is_nested or "max_response_len" in data.keys():
            return original(tensor, data)
        prompt_R, response_R = lengths(data)
        seen = torch.stack([prompt_R.sum() + response_R.sum(), prompt_R.min(), response_R.max()])
        total, shortest, width = seen.tolist()  # one wait for the device
        if total != len(values) or shortest == 0:
            return original(tensor, data)  # says what is wrong
        return response_RT(values, data, width)

    module.no_padding_2_padding = no_padding_2_padding
