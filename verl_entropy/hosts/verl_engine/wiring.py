# SPDX-License-Identifier: Apache-2.0
"""Which piece of this package goes into which module of verl, and who asks for it. Nothing here is imported before it is asked for.

Everything that touches verl's workers is in this folder, what touches a trainer in ``verl_v1`` and ``verl_ray``; mends and speed-ups
of verl itself, each with the versions and the sign that it can go, are under ``verl_entropy.upstream``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from verl_entropy.hosts.install.activate import AGENT_LOOPS, CPU, METHODS, POLL_INTERVAL, VARLEN


@dataclass(frozen=True)
class Piece:
    """A function of this package that gets a module of verl once it is imported."""

    module: str
    function: str
    """Below ``verl_entropy``; its file is imported with the module."""
    groups: tuple[str, ...]
    """Any of them asks for it."""
    spread: tuple[str, ...] = ()
    """Names that other modules of verl import from the module."""
    since: tuple[int, ...] = ()
    """The first release of verl that it is for."""
    until: tuple[int, ...] = ()
    """The first release that it is not for."""

    def load(self):
        """The function."""
        file, _, name = self.function.rpartition(".")
        return getattr(importlib.import_module(f"verl_entropy.{file}"), name)

    def __call__(self, module: ModuleType) -> None:
        self.load()(module)


_ASKED = (METHODS, AGENT_LOOPS, VARLEN, POLL_INTERVAL)
_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_LOOPS = "verl.experimental.agent_loop.agent_loop"
_VLLM = "verl.workers.rollout.vllm_rollout"

PIECES = (
    # check the configuration before Ray starts, and tell the run's processes
    Piece("verl.utils.config", "hosts.verl_engine.driver.wrap", _ASKED, ("validate_config",)),
    # estimators and policy losses by name
    Piece("verl.trainer.ppo.core_algos", "hosts.verl_engine.registration.register", (METHODS,)),
    # feed estimators, apply transforms, keep state
    Piece(_TRAINER, "hosts.verl_v1.trainer.wrap", (METHODS,)),
    Piece("verl.trainer.ppo.ray_trainer", "hosts.verl_ray.trainer.wrap", (METHODS,), ("compute_advantage",)),
    Piece("verl.utils.tracking", "hosts.verl_ray.trainer.wrap_tracking", (METHODS,)),
    # feed losses, add regularizer and head
    Piece("verl.workers.engine_workers", "hosts.verl_engine.loss.wrap", (METHODS,)),
    # counts over the mini-batch, on any engine
    Piece("verl.workers.engine.base", "hosts.verl_engine.counts.wrap", (METHODS,)),
    # head and log-prob pass; on the CPU backend the engines themselves
    Piece("verl.workers.engine.fsdp.transformer_impl", "hosts.verl_engine.engine.register", (METHODS, CPU)),
    Piece(_LOOPS, "hosts.verl_ray.tokens.wrap", (METHODS, AGENT_LOOPS), until=(0, 9, 1)),
    Piece(_LOOPS, "hosts.verl_ray.tokens.wrap", (METHODS, AGENT_LOOPS), since=(0, 10)),
    Piece(_LOOPS, "agent.register", (METHODS, AGENT_LOOPS)),
    Piece("verl.protocol", "hosts.verl_ray.loops.wrap_union", (METHODS, AGENT_LOOPS)),
    Piece(_LOOPS, "hosts.verl_ray.loops.wrap", (METHODS, AGENT_LOOPS)),
    Piece(_TRAINER, "upstream.polling.patch", (METHODS, AGENT_LOOPS, POLL_INTERVAL, CPU)),
    Piece("transfer_queue", "upstream.queue.wrap_calls", (METHODS,)),
    Piece("transfer_queue.client", "upstream.queue.wrap_client", (METHODS,)),
    Piece("verl.utils.tensordict_utils", "upstream.rows.wrap", (METHODS,), ("index_select_tensor_dict",)),
    Piece("verl.utils.seqlen_balancing", "upstream.balance.wrap", (METHODS,), ("get_seqlen_balanced_partitions",)),
    Piece(f"{_VLLM}.vllm_rollout", "upstream.weights.wrap_sender", (METHODS,), since=(0, 9)),
    Piece(f"{_VLLM}.vllm_async_server", "upstream.weights.wrap_server", (METHODS,), since=(0, 9)),
    Piece("verl.workers.utils.losses", "upstream.slices.wrap", (METHODS,)),
    Piece("transformers.modeling_utils", "upstream.varlen_hooks.register", (VARLEN,)),
    Piece("verl.utils.model", "upstream.varlen_hooks.wrap_model", (VARLEN,), ("update_model_config", "load_valuehead_model")),
    Piece("verl.utils.ulysses", "upstream.varlen_hooks.watch_ulysses", (VARLEN,)),
)
