# SPDX-License-Identifier: Apache-2.0
"""Which piece of glue waits for which module. Everything that touches verl is under ``verl_entropy.hosts.verl_v1``.

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

from verl_entropy.hosts.install import hooks

PIECES = {
    "verl.utils.config": ("hosts.verl_v1.driver.wrap",),
    "verl.trainer.ppo.core_algos": ("hosts.verl_v1.registration.register",),
    "verl.trainer.ppo.v1.trainer_base": ("hosts.verl_v1.trainer.wrap", "upstream.polling.patch"),
    "verl.workers.engine_workers": ("hosts.verl_v1.loss.wrap",),
    "transfer_queue": ("upstream.queue.wrap_calls",),
    "transfer_queue.client": ("upstream.queue.wrap_client",),
    "verl.utils.tensordict_utils": ("upstream.rows.wrap",),
    "verl.utils.seqlen_balancing": ("upstream.balance.wrap",),
    "verl.workers.rollout.vllm_rollout.vllm_rollout": ("upstream.weights.wrap_sender",),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": ("upstream.weights.wrap_server",),
    "transformers.modeling_utils": ("upstream.varlen_hooks.register",),
    "verl.utils.model": ("upstream.varlen_hooks.wrap_model",),
    "verl.utils.ulysses": ("upstream.varlen_hooks.watch_ulysses",),
}
"""Functions of this package that get the module, in their order."""


def piece(name: str):
    """A function of this package; its file is imported only now."""
    file, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"verl_entropy.{file}"), function)


def _hand_over(names: tuple[str, ...], module: ModuleType) -> None:
    for name in names:
        piece(name)(module)


FSDP = "verl.workers.engine.fsdp.transformer_impl"
_engine_is_late = False
"""verl's engine was imported by engine.py itself, whose class did not exist yet."""


def _fsdp(_: ModuleType) -> None:
    global _engine_is_late
    engine = importlib.import_module("verl_entropy.hosts.verl_v1.engine")
    # Without `register`, its last function, the file is still being imported and will say when it is whole.
    _engine_is_late = "register" not in vars(engine)
    if not _engine_is_late:
        engine.register()


def engine_is_whole() -> None:
    """Called at the end of engine.py: runs the hook of verl's engine that came too early. Does nothing where none came."""
    if _engine_is_late:
        hooks.after_import(FSDP, _fsdp)


def _agent_loop(_: ModuleType) -> None:
    import verl_entropy.agent

    verl_entropy.agent.register()


CALLBACKS = {
    **{module: functools.partial(_hand_over, names) for module, names in PIECES.items()},
    FSDP: _fsdp,
    "verl.experimental.agent_loop.agent_loop": _agent_loop,
}
