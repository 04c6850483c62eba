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

from types import ModuleType


def _config(module: ModuleType) -> None:
    from verl_entropy.glue import driver

    driver.wrap(module)


def _core_algos(module: ModuleType) -> None:
    from verl_entropy.glue import registration

    registration.register(module)


def _trainer_base(module: ModuleType) -> None:
    from verl_entropy.glue import polling, trainer

    trainer.wrap(module)
    polling.patch(module)


def _engine_workers(module: ModuleType) -> None:
    from verl_entropy.glue import loss

    loss.wrap(module)


def _tensordict_utils(module: ModuleType) -> None:
    from verl_entropy.glue import rows

    rows.wrap(module)


def _seqlen_balancing(module: ModuleType) -> None:
    from verl_entropy.glue import balance

    balance.wrap(module)


def _vllm_adapter(module: ModuleType) -> None:
    from verl_entropy.glue import weights

    weights.wrap_sender(module)


def _vllm_server(module: ModuleType) -> None:
    from verl_entropy.glue import weights

    weights.wrap_server(module)


def _transfer_queue(module: ModuleType) -> None:
    from verl_entropy.glue import queue

    queue.wrap_calls(module)


def _transfer_queue_client(module: ModuleType) -> None:
    from verl_entropy.glue import queue

    queue.wrap_client(module)


def _fsdp(module: ModuleType) -> None:
    from verl_entropy.glue import engine

    engine.register()


def _agent_loop(module: ModuleType) -> None:
    import verl_entropy.agent

    verl_entropy.agent.register()


def _transformers(module: ModuleType) -> None:
    from verl_entropy.glue import attention

    attention.register(module)


def _model(module: ModuleType) -> None:
    from verl_entropy.glue import attention

    attention.wrap_model(module)


def _ulysses(module: ModuleType) -> None:
    from verl_entropy.glue import attention

    attention.watch_ulysses(module)


CALLBACKS = {
    "verl.utils.config": _config,
    "verl.trainer.ppo.core_algos": _core_algos,
    "verl.trainer.ppo.v1.trainer_base": _trainer_base,
    "verl.workers.engine_workers": _engine_workers,
    "transfer_queue": _transfer_queue,
    "transfer_queue.client": _transfer_queue_client,
    "verl.workers.engine.fsdp.transformer_impl": _fsdp,
    "verl.utils.tensordict_utils": _tensordict_utils,
    "verl.utils.seqlen_balancing": _seqlen_balancing,
    "verl.workers.rollout.vllm_rollout.vllm_rollout": _vllm_adapter,
    "verl.workers.rollout.vllm_rollout.vllm_async_server": _vllm_server,
    "verl.experimental.agent_loop.agent_loop": _agent_loop,
    "transformers.modeling_utils": _transformers,
    "verl.utils.model": _model,
    "verl.utils.ulysses": _ulysses,
}
