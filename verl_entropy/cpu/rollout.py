# SPDX-License-Identifier: Apache-2.0
"""Registers the rollout backend ``hf`` with verl. Imports nothing heavy; the classes are in ``adapter`` and
``server``.
"""

from __future__ import annotations

from types import ModuleType

NAME = "hf"


def register_rollout(rollout_base: ModuleType) -> None:
    """In ``verl.workers.rollout.base``: the adapter in the actor's process."""
    rollout_base._ROLLOUT_REGISTRY[(NAME, "async")] = "verl_entropy.cpu.adapter.ServerAdapter"


def register_replica(replica: ModuleType) -> None:
    """In ``verl.workers.rollout.replica``: the class that starts servers."""
    replica.RolloutReplicaRegistry.register(NAME, _load_replica)


def _load_replica() -> type:
    from verl_entropy.cpu.server import HFReplica

    return HFReplica
