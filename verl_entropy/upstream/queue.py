# SPDX-License-Identifier: Apache-2.0
"""Fewer and cheaper calls of TransferQueue, through which verl's V1 trainer, workers and agent loops hand on their rows.

Mends: a call costs about as much as two columns of a thousand short rows, so what the advantage phase reads and writes for us travels
with verl's own read and write of that phase. And the queue takes every nested column apart once per storage unit and four times
for its schema, a torch call that checks each row; here it is done once per put. What is stored stays the same.
Versions: verl 0.9.0, 0.9.1 with TransferQueue 0.1.10, 0.1.11.
Asked for by: a chosen method.
No longer needed when verl's trainer lets a plugin name columns to read and write with its own, and ``async_put`` unbinds a nested
column once (``tests/plugin/test_queue.py`` counts it).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from verl_entropy.upstream.rows import is_jagged


@dataclass
class Ride:
    """What travels with verl's next read and its next write of these rows."""

    keys: list[str]
    read: list[str]
    rows: Any = None
    """What was read of ``read``; None before."""
    write: dict[str, torch.Tensor] = field(default_factory=dict)
    written: bool = False


_ride: ContextVar[Ride | None] = ContextVar("verl_entropy_ride", default=None)


@contextlib.contextmanager
def riding(ride: Ride) -> Iterator[Ride]:
    """Let ``ride`` travel with verl's calls inside a with block; what found no call is left to the caller."""
    token = _ride.set(ride)
    try:
        yield ride
    finally:
        _ride.reset(token)


def wrap_calls(module: ModuleType) -> None:
    """Wrap ``kv_batch_get`` and ``kv_batch_put`` of ``transfer_queue``, as verl's trainer calls them."""
    get, put = module.kv_batch_get, module.kv_batch_put

    @functools.wraps(get)
    def kv_batch_get(keys, partition_id, select_fields=None):
        ride = _ride.get()
        if ride is None or ride.rows is not None or not isinstance(select_fields, list) or keys != ride.keys:
            return get(keys, partition_id, select_fields)
        ours = [name for name in ride.read if name not in select_fields]
        data = get(keys, partition_id, [*select_fields, *ours])
        ride.rows = data.select(*ride.read, strict=False)
        return data.exclude(*ours)

    @functools.wraps(put)
    def kv_batch_put(keys, partition_id, fields=None, *args, **kwargs):
        ride = _ride.get()
        if ride is not None and ride.write and not ride.written and fields is not None and keys == ride.keys:
            fields, ride.written = fields.copy().update(ride.write), True
        return put(keys, partition_id, fields, *args, **kwargs)

    module.kv_batch_get, module.kv_batch_put = kv_batch_get, kv_batch_put


def _parts(column: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of a nested column, as views."""
    return column.values().split(column.offsets().diff().tolist()) if is_jagged(column) else tuple(column.unbind())


def _remember(column: torch.Tensor) -> None:
    parts = _parts(column)
    column.unbind = lambda dim=0: parts if dim == 0 else torch.unbind(column, dim)


@contextlib.contextmanager
def unbound_once(data: Any) -> Iterator[None]:
    """Nested columns of ``data`` keep their rows inside a with block, however often they are taken apart."""
    columns = [column for column in data.values() if isinstance(column, torch.Tensor) and column.is_nested]
    for column in columns:
        _remember(column)
    try:
        yield
    finally:
        for column in columns:
            vars(column).pop("unbind", None)  # another put of the same column may have ended before


def wrap_client(module: ModuleType) -> None:
    """Wrap ``async_put`` of ``transfer_queue.client``, to which every put comes down."""
    client_cls = module.AsyncTransferQueueClient
    original = client_cls.async_put

    @functools.wraps(original)
    async def async_put(self, data, *args, **kwargs):
        with unbound_once(data):
            return await original(self, data, *args, **kwargs)

    client_cls.async_put = async_put
