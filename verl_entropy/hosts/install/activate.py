# SPDX-License-Identifier: Apache-2.0
"""Puts the plugin's import hooks in place, when called; importing this file changes nothing.

What is put in place comes in groups, and only those that were asked for:

    methods        estimators, transforms, losses, regularizers, head, diagnostics, with the speed-ups and mends that their runs use
    agent_loops    stepwise_env and span_env
    varlen         attn_implementation=varlen
    poll_interval  the replay buffer's poll interval
    cpu            the CPU backend (VERL_PLATFORM=cpu)
"""

from __future__ import annotations

import os
from collections.abc import Collection

from verl_entropy.hosts.install import compat, hooks, patched
from verl_entropy.log import say

METHODS, AGENT_LOOPS, VARLEN, POLL_INTERVAL, CPU = "methods", "agent_loops", "varlen", "poll_interval", "cpu"
GROUPS = (METHODS, AGENT_LOOPS, VARLEN, POLL_INTERVAL, CPU)
CHECKED = "checked"
"""Beside the groups in ``VERL_ENTROPY_CHOSEN``: the driver has checked and prepared the run's configuration."""

INSTALLED: set[str] = set()
"""Groups whose hooks are in place in this process."""

LAUNCHED = False
"""True in a process that ``python -m verl_entropy.verl_agent`` started: the launcher does what the hooks do elsewhere."""

FAILURE: str | None = None
"""Why ``install`` raised in this process."""

_pieces: set[tuple[str, str]] = set()
"""Module and function of the pieces that are in place or wait."""


def install(groups: Collection[str] = (METHODS, AGENT_LOOPS, VARLEN, POLL_INTERVAL)) -> bool:
    """Install the hooks of these groups, each once; False, with a printed reason, where the installed verl cannot be extended."""
    global FAILURE
    unknown = set(groups) - set(GROUPS)
    if unknown:
        raise ValueError(
            f"{hooks.CHOSEN}={','.join(sorted(unknown))}: no such group. Allowed: {', '.join(GROUPS)}. Fix: unset it."
        )
    wanted = set(groups) | ({CPU} if os.environ.get("VERL_PLATFORM", "").lower() == "cpu" else set())
    if wanted <= INSTALLED:
        return True
    try:
        if not _install(wanted - INSTALLED):
            return False
    except Exception as error:
        FAILURE = f"{type(error).__name__}: {error}"
        raise
    FAILURE = None
    INSTALLED.update(wanted)
    return True


def _install(groups: set[str]) -> bool:
    if patched.series() == patched.VERL_AGENT:
        # The launcher does the rest there; patched source that loads plugins gets our estimators by name.
        if METHODS in groups and "registries" in patched.features():
            hooks.after_import("verl.trainer.ppo.core_algos", patched.register)
        return True
    # The driver has read verl's source for its run; a worker whose verl differs fails at the piece.
    reason = compat.unsupported_reason(read=not os.environ.get(hooks.CHOSEN))
    if reason is not None:
        say(f"not active, verl is left as it is: {reason}")
        return False
    if CPU in groups:
        from verl_entropy.cpu import wiring as cpu

        cpu.install()
    from verl_entropy.hosts.verl_engine import wiring

    for piece in wiring.PIECES:
        if compat.before(*piece.since) or (piece.until and not compat.before(*piece.until)):
            continue
        if groups.intersection(piece.groups) and (piece.module, piece.function) not in _pieces:
            _pieces.add((piece.module, piece.function))
            hooks.after_import(piece.module, piece, piece.spread)
    return True


def from_environment() -> None:
    """What the environment of this process asks for; SystemExit, which verl does not swallow, where it cannot be had."""
    groups = [name for name in os.environ.get(hooks.CHOSEN, "").split(",") if name not in ("", CHECKED)]
    try:
        done = install(groups)
    except Exception as error:
        say(f"the plugin failed to load: {type(error).__name__}: {error}")
        done = False
    if not done:
        asked = f"{hooks.CHOSEN}={','.join(groups)}" if groups else "VERL_PLATFORM=cpu"
        raise SystemExit(
            f"[verl-entropy] {asked} asks for verl-entropy in this process (pid {os.getpid()}), and it cannot be active here; the cause "
            "is in the line above. Fix: install the driver's versions of verl and verl-entropy on every node (`verl-entropy doctor`), or "
            "take the keys of verl-entropy out of the run."
        )


def told() -> str:
    """Value of ``VERL_ENTROPY_CHOSEN`` for the processes of a run that has what is installed here."""
    return ",".join(name for name in GROUPS if name in INSTALLED and name != CPU)
