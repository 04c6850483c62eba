# SPDX-License-Identifier: Apache-2.0
"""Agent loops on text environments: ``stepwise_env`` (a row per turn) and ``span_env`` (a row per episode); and verl's tool loop under a
rollout method, ``tool_agent_branching``.

Everything here is free of verl except the modules that :func:`register` imports.
"""

from __future__ import annotations

from types import ModuleType

from verl_entropy.agent.environment import TextEnvironment
from verl_entropy.agent.settings import AgentSettings

__all__ = ["AgentSettings", "TextEnvironment", "register"]


def register(_: ModuleType | None = None) -> None:
    """Register the agent loops, once ``verl.experimental.agent_loop.agent_loop`` is imported."""
    from verl_entropy.agent import multispan, stepwise, tools  # noqa: F401  importing them registers their loops
