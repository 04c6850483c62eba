# SPDX-License-Identifier: Apache-2.0
"""Which piece of glue waits for which module. Everything that touches verl is under ``verl_entropy.glue``.

verl.utils.config                          check the configuration before Ray starts          driver.py
verl.trainer.ppo.core_algos                register estimators and policy losses              registration.py
verl.trainer.ppo.v1.trainer_base           feed estimators, apply transforms, keep state      trainer.py, polling.py
verl.workers.engine_workers                feed losses, add regulariser and head loss         loss.py
verl.workers.engine.fsdp.transformer_impl  head and log-prob pass inside the engine           engine.py
verl.utils.tensordict_utils                cut our batches in whole columns                   rows.py
verl.utils.seqlen_balancing                balance rows on plain numbers                      balance.py
transfer_queue, transfer_queue.client      fewer and cheaper calls of the queue              queue.py
verl.workers.rollout.vllm_rollout          a socket of its own for a run's weights            weights.py
verl.experimental.agent_loop.agent_loop    agent loops for text environments                  verl_entropy.agent
transformers.modeling_utils                attn_implementation=varlen                         attention.py
verl.utils.model, verl.utils.ulysses       the same under verl                                attention.py
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

PIECES = {
    "verl.utils.config": ("driver.wrap",),
    "verl.trainer.ppo.core_algos": ("registration.register",),
    "verl.trainer.ppo.v1.trainer_base": ("trainer.wrap", "polling.patch"),
    "verl.workers.engine_workers": ("loss.wrap",),
    "transfer_queue": ("queue.wrap_calls",),
    "transfer_queue.client": ("queue.wrap_client",),
    "verl.utils.tensordict_utils": ("rows.wrap",),
    "verl.utils.seqlen_balancing": ("balance.wrap",),
    "verl.workers.rollout.vllm_rollout.vllm_rollout": ("weights.wrap_sender",),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": ("weights.wrap_server",),
    "transformers.modeling_utils": ("attention.register",),
    "verl.utils.model": ("attention.wrap_model",),
    "verl.utils.ulysses": ("attention.watch_ulysses",),
}
"""Functions of this folder that get the module, in their order."""


def piece(name: str):
    """A function of this folder; its file is imported only now."""
    file, function = name.split(".")
    return getattr(importlib.import_module(f"{__package__}.{file}"), function)


def _hand_over(names: tuple[str, ...], module: ModuleType) -> None:
    for name in names:
        piece(name)(module)


def _fsdp(_: ModuleType) -> None:
    piece("engine.register")()


def _agent_loop(_: ModuleType) -> None:
    import verl_entropy.agent

    verl_entropy.agent.register()


CALLBACKS = {
    **{module: functools.partial(_hand_over, names) for module, names in PIECES.items()},
    "verl.workers.engine.fsdp.transformer_impl": _fsdp,
    "verl.experimental.agent_loop.agent_loop": _agent_loop,
}
