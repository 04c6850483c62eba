# SPDX-License-Identifier: Apache-2.0
"""Rows of episodes that end together go to TransferQueue in one put.

verl's agent-loop worker turns the rows of each session into a TensorDict of their own and puts it: some 20 columns to build, encode,
decode and list, for each of the 64 episodes of a step, most of which end in the same moment. Here the rows that come within ``WINDOW``
are one put; the same rows are stored under the same keys and tags.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

WINDOW = 0.02
"""Seconds that the first rows of a put wait for others."""


class Rows(list):
    """Rows, one dict each, that become a TensorDict when they are put."""


@dataclass
class _Put:
    keys: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    task: asyncio.Task | None = None


_open: dict[tuple, _Put] = {}
"""By event loop, partition and columns."""


def patch_queue(transfer_queue: ModuleType) -> None:
    """Let ``async_kv_batch_put`` of ``transfer_queue`` gather ``Rows``; whatever else is put goes its way."""
    original = transfer_queue.async_kv_batch_put

    @functools.wraps(original)
    async def async_kv_batch_put(keys, partition_id, fields=None, tags=None):
        if not isinstance(fields, Rows):
            return await original(keys, partition_id, fields, tags)
        place = (asyncio.get_running_loop(), partition_id, tuple(fields[0]))
        put = _open.setdefault(place, _Put())
        put.keys += keys
        put.rows += fields
        put.tags += tags
        if put.task is None:
            put.task = asyncio.create_task(send(place))
        return await asyncio.shield(put.task)  # one caller may go away, the others' rows still have to arrive

    async def send(place: tuple):
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        await asyncio.sleep(WINDOW)
        put = _open.pop(place)
        return await original(put.keys, place[1], list_of_dict_to_tensordict(put.rows), put.tags)

    transfer_queue.async_kv_batch_put = async_kv_batch_put


def patch_worker(agent_loop_tq: ModuleType) -> None:
    """In ``verl.trainer.ppo.v1.agent_loop_tq``: the worker hands its rows to the put as they are."""
    agent_loop_tq.list_of_dict_to_tensordict = Rows
