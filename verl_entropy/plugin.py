# SPDX-License-Identifier: Apache-2.0
"""Entry point of group ``verl.plugins``: verl imports this module at the end of its own ``__init__`` in every process.

It only installs import hooks (no torch, no trainer), so it costs milliseconds. verl logs a failing plugin at DEBUG, that
is nowhere; so a failure prints its cause and the fix here before it is raised.
"""

from __future__ import annotations

import os
import sys

from verl_entropy.hosts.install import compat, hooks, patched

INSTALLED = False
"""True once the hooks are in place in this process."""


def say(message: str) -> None:
    """Print to stderr: visible whatever verl's log level is."""
    print(f"[verl-entropy] {message}", file=sys.stderr, flush=True)


def install() -> bool:
    """Install the hooks once; False, with a printed reason, where the installed verl cannot be extended."""
    global INSTALLED
    if INSTALLED:
        return True
    if patched.series() == patched.VERL_AGENT:
        # The launcher does the rest there; patched source that loads plugins gets our estimators by name.
        if "registries" in patched.features():
            hooks.after_import("verl.trainer.ppo.core_algos", patched.register)
        INSTALLED = True
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
    INSTALLED = True
    return True


try:
    install()
except Exception as error:
    say(
        f"the plugin failed to load: {type(error).__name__}: {error}. Nothing of verl-entropy is active in this process. "
        "Fix: reinstall verl-entropy, run `verl-entropy doctor`, or set VERL_USE_EXTERNAL_PLUGINS=none to run without it."
    )
    raise
