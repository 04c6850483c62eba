# SPDX-License-Identifier: Apache-2.0
"""Counts over the whole mini-batch and the actor's own mask, for any training engine: every engine of verl updates by
``BaseEngine.train_batch``, which is called once per mini-batch on every rank."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id

from verl_entropy.hosts.common.trainer_keys import ACTOR_MASKS, NUM_ROWS, PREFIX, TOTALS, WHOLE_MASKS


def wrap(module: ModuleType) -> None:
    """Wrap ``train_batch`` of ``verl.workers.engine.base.BaseEngine``: before an update with our loss the mini-batch gets its counts."""
    from verl_entropy.hosts.verl_engine.configs import OurActor

    original = module.BaseEngine.train_batch

    @functools.wraps(original)
    def train_batch(self, data, loss_function):
        given = loss_function.keywords if isinstance(loss_function, functools.partial) else {}
        if isinstance(given.get("config"), OurActor):
            _use_actor_masks(data)
            rows, totals = _global_totals(data, self.get_data_parallel_group())
            tu.assign_non_tensor(data, **{NUM_ROWS: rows, TOTALS: totals})
        return original(self, data, loss_function)

    module.BaseEngine.train_batch = train_batch


def _global_totals(data, group) -> tuple[float, dict[str, list[float]]]:
    """Over the mini-batch and all ranks: rows with a trained token; and of each of our columns the sum, and its rows above 0."""
    names = [k for k in data.keys() if k.startswith(PREFIX) and isinstance(data[k], torch.Tensor) and data[k].is_nested]
    numbers = [_rows_above_0(data["loss_mask"])]
    for name in names:
        numbers += [data[name].values().double().sum(), _rows_above_0(data[name])]
    total = torch.stack([x.double() for x in numbers]).to(get_device_id())
    torch.distributed.all_reduce(total, group=group)
    rows, *rest = total.tolist()
    return rows, {name.removeprefix(PREFIX): rest[2 * i : 2 * i + 2] for i, name in enumerate(names)}


def _use_actor_masks(data) -> None:
    """Put the actor's masks in the place of verl's, which stay beside them; nothing where no transform dropped a token."""
    for name, own in ACTOR_MASKS.items():
        if own in data.keys():
            data[WHOLE_MASKS[name]] = data[name]
            data[name] = data.pop(own)


def _rows_above_0(column: torch.Tensor) -> torch.Tensor:
    """Number of rows of a nested column that hold a value above 0."""
    ends = column.offsets().to(column.values().device)
    running = torch.nn.functional.pad((column.values() > 0).long().cumsum(0), (1, 0))
    return (running[ends[1:]] > running[ends[:-1]]).sum()
