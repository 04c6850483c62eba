# SPDX-License-Identifier: Apache-2.0
"""Requests of an agent-loop worker to the ``hf`` rollout, without a load balancer's process and many to a call.

verl asks an actor which server to use, calls the server and tells the actor that it is done: three calls a turn. The servers of a CPU
run do not change, so a digest of the request id finds the server (all turns of an episode the same one), and the requests that come
within ``WINDOW`` go to it in one call. What a request samples does not depend on the others of its call (``runner``).
"""

from __future__ import annotations

import asyncio
import functools
from types import ModuleType
from typing import Any

from verl_entropy.cpu.sampling import digest

WINDOW = 0.005
"""Seconds that the first request of a call waits for others."""


class BatchedServer:
    """Stands for the handle of a server: ``server.generate.remote(...)`` is awaited as verl's client does it."""

    def __init__(self, handle: Any):
        self._handle = handle
        self._waiting: list[tuple[dict[str, Any], asyncio.Future]] = []

    @property
    def generate(self) -> BatchedServer:
        return self

    def remote(self, **request: Any) -> asyncio.Future:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(WINDOW, lambda: loop.create_task(self._send()))
        self._waiting.append((request, loop.create_future()))
        return self._waiting[-1][1]

    async def _send(self) -> None:
        sent, self._waiting = self._waiting, []
        try:
            results = await self._handle.generate_many.remote([request for request, _ in sent])
        except Exception as error:  # the server died: every caller has to know
            results = [error] * len(sent)
        for (_, future), result in zip(sent, results, strict=True):
            if future.done():  # the caller went away
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)


class Servers:
    """Takes the place of the handle of verl's load balancer; lives in the process of its client."""

    def __init__(self, handles: dict[str, Any]):
        self._servers = [(name, BatchedServer(handle)) for name, handle in sorted(handles.items())]

    def find(self, request_id: str) -> tuple[str, BatchedServer]:
        return self._servers[digest(request_id.encode()) % len(self._servers)]


def patch(llm_server: ModuleType) -> None:
    """In ``verl.workers.rollout.llm_server``: the manager of hybrid ``hf`` servers hands out ``Servers``, and clients use them."""
    manager, client = llm_server.LLMServerManager, llm_server.LLMServerClient
    start, acquire, release = manager._init_global_load_balancer, client._acquire_server, client._release_server

    @functools.wraps(start)
    async def _init_global_load_balancer(self) -> None:
        config = self.rollout_config
        if config.name != "hf" or self.worker_group is None or self._load_balancer_cls or config.router_config_path:
            return await start(self)
        self.global_load_balancer = Servers(dict(zip(self.server_addresses, self.server_handles, strict=True)))

    @functools.wraps(acquire)
    async def _acquire_server(self, request_id: str, **extra: Any):
        if isinstance(self._load_balancer, Servers):
            return self._load_balancer.find(request_id)
        return await acquire(self, request_id, **extra)

    @functools.wraps(release)
    def _release_server(self, *args: Any, **kwargs: Any) -> None:  # verl 0.9.0 gives the server's name alone
        if not isinstance(self._load_balancer, Servers):
            release(self, *args, **kwargs)

    manager._init_global_load_balancer = _init_global_load_balancer
    client._acquire_server, client._release_server = _acquire_server, _release_server
