# SPDX-License-Identifier: Apache-2.0
"""Agent loops whose requests come to the rollout server in an order of chance, as under load."""

import asyncio
import random

import every_tool

from verl_entropy.agent.stepwise import StepwiseAgentLoop

LONGEST = 0.2
"""Seconds; several times what the rollout server and its client wait for requests to come together."""


class Late:
    """A rollout server that asks ``server`` a moment later."""

    def __init__(self, server):
        self._server, self._random = server, random.SystemRandom()  # the worker's own generator is seeded

    async def generate(self, *args, **kwargs):
        await asyncio.sleep(self._random.random() * LONGEST)
        return await self._server.generate(*args, **kwargs)


class HeldUp:
    """Puts ``Late`` before the server of the agent loop beside it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.server_manager = Late(self.server_manager)


class Stepwise(HeldUp, StepwiseAgentLoop):
    """Our loop."""


class Tools(HeldUp, every_tool.Loop):
    """verl's tool loop."""
