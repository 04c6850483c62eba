# SPDX-License-Identifier: Apache-2.0
"""Everything that ``VERL_PLATFORM=cpu`` switches on, hung on the verl modules that it belongs to.

The engines are not among it: ``engine.register_engines`` needs the language-model engine of
``verl_entropy.hosts.verl_v1`` as its base.
"""

from __future__ import annotations

from verl_entropy.cpu import order, platform, process_group, rollout
from verl_entropy.hosts.install import hooks

CALLBACKS = (
    ("verl.utils.distributed", process_group.patch),
    ("verl.workers.rollout.base", rollout.register_rollout),
    ("verl.workers.rollout.replica", rollout.register_replica),
    ("verl.trainer.ppo.v1.trainer_base", order.patch),
)


def install() -> None:
    """Register the platform now and the rest after the import of its module."""
    platform.register()
    for module, callback in CALLBACKS:
        hooks.after_import(module, callback)
