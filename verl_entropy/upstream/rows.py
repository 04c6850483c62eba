# SPDX-License-Identifier: Apache-2.0
"""Mini- and micro-batches of a batch that the plugin's trainer sent, cut in whole columns.

Mends: verl takes every nested column apart into its rows and stacks the chosen ones again, for each micro-batch: with a thousand
short rows that is a good part of a small model's step. Here the chosen rows' values are gathered at once; the result is the
same, bit for bit. Batches without the mark, and columns of another form, go verl's way.
Versions: 0.9.0, 0.9.1.
Asked for by: a chosen method, whose trainer sets the mark.
No longer needed when ``index_select_tensor_dict`` selects from nested columns without ``unbind``.
"""

from __future__ import annotations

import functools
import gc
from types import ModuleType
from typing import Any

import torch

MARK = "verl_entropy_whole_columns"
"""Non-tensor entry of the batches that are cut so."""


@functools.cache
def settle() -> None:
    """Once per process, at its first batch: spare the garbage collector what is loaded by then.

    A thousand rows come out of the queue as tens of thousands of objects, which set off full collections, and each of those
    would go through every object of torch, the model and the configuration again.
    """
    gc.collect()
    gc.freeze()


def is_jagged(column: Any) -> bool:
    """Rows of one dimension that lie end to end."""
    if not isinstance(column, torch.Tensor) or not column.is_nested or column.layout is not torch.jagged:
        return False
    return column.dim() == 2 and column.lengths() is None


def select_rows(column: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows ``index`` of a nested column, in this order."""
    begin = column.offsets()
    index = index.to(begin.device)
    length = begin.diff()[index]
    offsets = torch.nn.functional.pad(length.cumsum(0), (1, 0))
    total, shortest, longest = torch.stack([offsets[-1], length.min(), length.max()]).tolist()  # one wait for the device
    shift = torch.repeat_interleave(begin[index] - offsets[:-1], length, output_size=total)
    values = column.values()[torch.arange(total, device=begin.device) + shift]
    # Without its longest row a nested tensor is padded to the length of all of them together.
    return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)


def pad_rows(column: torch.Tensor, width: int) -> torch.Tensor:
    """A nested column with zeros behind each row; for the trainer, on the CPU, where torch's own kernel takes ten times as long.

    On a device the check of the lengths would wait for it.
    """
    if not is_jagged(column):
        return torch.nested.to_padded_tensor(column, padding=0, output_size=(column.size(0), width))
    length = column.offsets().diff()
    if (length > width).any():
        raise ValueError(f"a row of {int(length.max())} values does not fit into {width}")  # torch would cut it
    values = column.values()
    inside = torch.arange(width, device=values.device) < length.unsqueeze(1)
    return values.new_zeros(inside.shape).masked_scatter(inside, values)


def wrap(module: ModuleType) -> None:
    """Wrap ``index_select_tensor_dict`` of ``verl.utils.tensordict_utils``, through which verl cuts every batch."""
    original = module.index_select_tensor_dict

    @functools.wraps(original)
    def index_select_tensor_dict(batch, indices):
        if batch is None or MARK not in batch.keys():
            return original(batch, indices)
        settle()
        columns = {name: column for name, column in batch.items() if is_jagged(column)}
        selected = original(batch.exclude(*columns), indices)
        index = torch.as_tensor(indices)
        for name, column in columns.items():
            selected[name] = select_rows(column, index)
        return selected

    module.index_select_tensor_dict = index_select_tensor_dict
