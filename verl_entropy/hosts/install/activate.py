# SPDX-License-Identifier: Apache-2.0
"""Puts the plugin's import hooks in place, when called; importing this file changes nothing."""

from __future__ import annotations

import os

from verl_entropy.hosts.install import compat, hooks, patched
from verl_entropy.log import say

INSTALLED = False
"""True once the hooks are in place in this process."""

LAUNCHED = False
"""True in a process that ``python -m verl_entropy.verl_agent`` started: the launcher does what the hooks do elsewhere."""

FAILURE: str | None = None
"""Why ``install`` raised in this process."""


def install() -> bool:
    """Install the hooks once; False, with a printed reason, where the installed verl cannot be extended."""
    global INSTALLED, FAILURE
    if INSTALLED:
        return True
    try:
        INSTALLED = _install()
    except Exception as error:
        FAILURE = f"{type(error).__name__}: {error}"
        raise
    FAILURE = None
    return INSTALLED


def _install() -> bool:
    if patched.series() == patched.VERL_AGENT:
        # The launcher does the rest there; patched source that loads plugins gets our estimators by name.
        if "registries" in patched.features():
            hooks.after_import("verl.trainer.ppo.core_algos", patched.register)
        return True
    reason = compat.unsupported_reason()
    if reason is not None:
        say(f"not active, verl is left as it is: {reason}")
        return False
    if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
        from verl_entropy.cpu import wiring

        wiring.install()
    from verl_entropy.hosts.verl_v1 import wiring as glue

    for module, callback in glue.CALLBACKS.items():
        hooks.after_import(module, callback)
    from verl_entropy.config import presets

    # Imported by Hydra right before it builds its search path.
    hooks.after_import("hydra._internal.hydra", presets.ensure_search_path)
    return True
