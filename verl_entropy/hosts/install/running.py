# SPDX-License-Identifier: Apache-2.0
"""A Ray that runs before the configuration is read: do its workers know what the run has chosen?

verl hands the environment variables of ``ray_kwargs.ray_init.runtime_env`` to the Ray that it starts, and to none that runs already.
"""

from __future__ import annotations

import os
import sys

from verl_entropy.hosts.install import hooks

LIMIT_S = 120.0
"""Time for a worker to start and answer."""


def _answer() -> tuple[str, str]:
    """In a Ray worker: what it was told, and which plugins verl loads there."""
    return os.environ.get(hooks.CHOSEN, ""), os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")


def check(wanted: str) -> None:
    """Ask a worker of a Ray that runs already; SystemExit unless it was told ``wanted``. Without a running Ray, nothing."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    fix = (
        f"set {hooks.CHOSEN}={wanted} in the environment (ray.init(runtime_env={{'env_vars': {{'{hooks.CHOSEN}': '{wanted}'}}}})) "
        "before Ray starts, or let verl start Ray"
    )
    try:
        told, plugins = ray.get(ray.remote(num_cpus=0)(_answer).remote(), timeout=LIMIT_S)
    except Exception as error:  # the package is not there, or no worker starts
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SystemExit(
            f"[verl-entropy] stopped before training: a worker of the Ray that is running could not answer ({lines[-1]}). "
            f"Fix: install verl-entropy on every node, and {fix}."
        ) from None
    if not set(wanted.split(",")) <= set(told.split(",")):
        raise SystemExit(
            f"[verl-entropy] stopped before training: Ray was running before this configuration was read, and its workers have "
            f"{hooks.CHOSEN}={told or 'unset'} (VERL_USE_EXTERNAL_PLUGINS={plugins}), so the run would train without verl-entropy. "
            f"Fix: {fix}."
        )
