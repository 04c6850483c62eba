# SPDX-License-Identifier: Apache-2.0
"""Everything that ``VERL_PLATFORM=cpu`` switches on, hung on the verl modules that it belongs to.

The engines are not among it: ``engine.register_engines`` needs the language-model engine of
``verl_entropy.hosts.verl_engine`` as its base.
"""

from __future__ import annotations

from types import ModuleType

from verl_entropy.cpu import client, older, order, process_group, puts
from verl_entropy.hosts.install import compat, hooks

ROLLOUT = "hf"


def register_rollout(rollout_base: ModuleType) -> None:
    """In ``verl.workers.rollout.base``: the adapter in the actor's process."""
    rollout_base._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "verl_entropy.cpu.adapter.ServerAdapter"


def register_replica(replica: ModuleType) -> None:
    """In ``verl.workers.rollout.replica``: the class that starts servers."""
    replica.RolloutReplicaRegistry.register(ROLLOUT, _load_replica)
    if compat.before(0, 8):  # which has neither
        replica.RolloutReplica.is_teacher_model, replica.RolloutReplica.name_suffix = False, ""


def _load_replica() -> type:
    from verl_entropy.cpu.server import HFReplica

    return HFReplica


CALLBACKS = (
    ("verl.utils.distributed", process_group.patch),
    ("verl.workers.rollout.base", register_rollout),
    ("verl.workers.rollout.replica", register_replica),
    ("verl.trainer.ppo.v1.trainer_base", order.patch),
)
SINCE_0_9 = (
    ("verl.workers.rollout.llm_server", client.patch),
    ("transfer_queue", puts.patch_queue),
    ("verl.trainer.ppo.v1.agent_loop_tq", puts.patch_worker),
)


def install() -> None:
    """Register the platform now and the rest after the import of its module."""
    if compat.before(0, 9):
        hooks.after_import("verl.utils.device", older.patch, older.NAMES)
    else:
        from verl_entropy.cpu import platform

        platform.register()
    if compat.before(0, 9, 1):
        hooks.after_import("verl.utils.attention_utils", older.patch_attention)
    for module, callback in CALLBACKS + (() if compat.before(0, 9) else SINCE_0_9):
        hooks.after_import(module, callback)
