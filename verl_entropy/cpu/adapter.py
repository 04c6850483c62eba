# SPDX-License-Identifier: Apache-2.0
"""The half of ``rollout.name=hf`` that lives in the actor's process: it sends the weights to the server."""

from __future__ import annotations

import os
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator


class ServerAdapter(BaseRollout):
    """One per rank of the actor; rank r feeds replica r."""

    def __init__(self, config, model_config, device_mesh, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server = None

    @property
    def server(self):
        """Handle of the server; looked up late because servers start after the actor."""
        if self._server is None:
            from verl_entropy.cpu.server import server_name

            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        await self.server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights,
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: Any = None,
        **_: Any,
    ) -> None:
        """Send all weights, one Ray call per bucket of ``checkpoint_engine.update_weights_bucket_megabytes``.

        Every rank runs through ``weights``, since gathering a sharded weight is a collective.
        """
        if wire_format != "named_tensors":
            raise ValueError(
                f"rollout.checkpoint_engine sends {wire_format!r}, the hf rollout takes 'named_tensors'; "
                "fix: set actor_rollout_ref.rollout.checkpoint_engine.backend=naive"
            )
        if peft_config is not None:
            raise ValueError(
                "the hf rollout takes merged weights, not a LoRA adapter; fix: set +actor_rollout_ref.model.lora.merge=True"
            )
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: dict[str, torch.Tensor] = {}
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            tensor = tensor.detach().to("cpu", torch.float32)
            if bucket and size + tensor.nbytes > limit:
                await self.server.load_weights.remote(bucket, last=False)
                bucket, size = {}, 0
            bucket[name] = tensor
            size += tensor.nbytes
        await self.server.load_weights.remote(bucket, last=True, global_steps=global_steps)
