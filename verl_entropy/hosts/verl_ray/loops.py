# SPDX-License-Identifier: Apache-2.0
"""Outputs of an agent loop, where verl's worker takes one of them: ours give a list, as on V1."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def one(outputs: list[Any]) -> Any:
    """The only output of an episode; RuntimeError where there is none or several."""
    if len(outputs) == 1:
        return outputs[0]
    if not outputs:
        raise RuntimeError(
            "verl-entropy: the environment of an episode kept failing, and verl's RayPPOTrainer has no place for an episode without "
            "a row. The cause is in the log above. Mend the environment, raise data.env.episode_retries, or use trainer.use_v1=True (verl 0.9)."
        )
    raise RuntimeError(
        f"verl-entropy: an agent loop gave {len(outputs)} rows for one episode, and verl's RayPPOTrainer takes one. "
        "Set actor_rollout_ref.rollout.agent.default_agent_loop=span_env, or trainer.use_v1=True (verl 0.9)."
    )


def wrap(module: ModuleType) -> None:
    """Wrap ``AgentLoopWorker._agent_loop_postprocess``; the worker of V1 has one of its own, which takes lists."""
    worker_cls = module.AgentLoopWorker
    original = worker_cls._agent_loop_postprocess

    @functools.wraps(original)
    async def _agent_loop_postprocess(self, output, *args, **kwargs):
        return await original(self, one(output) if isinstance(output, list) else output, *args, **kwargs)

    worker_cls._agent_loop_postprocess = _agent_loop_postprocess
