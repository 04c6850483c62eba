# SPDX-License-Identifier: Apache-2.0
"""Entry point of group ``verl.plugins``: verl imports this module at the end of its own ``__init__`` in every process.

Nothing is put into verl, and nothing waits for its modules, until a run asks for something of ours: in the driver that is seen when
Hydra composes its configuration (``hosts/install/absent.py``), and the driver tells the other processes of its run by an
environment variable, which is read here. ``VERL_PLATFORM=cpu`` asks for the CPU backend. ``VERL_USE_EXTERNAL_MODULES`` may name this
file too. verl logs a failing plugin at DEBUG, that is nowhere; so a failure stops a process that was asked, with cause and fix.
"""

from __future__ import annotations

import os

from verl_entropy import find_hydra_plugin

find_hydra_plugin()
if os.environ.get("VERL_ENTROPY_CHOSEN") or os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
    from verl_entropy.hosts.install import activate

    activate.from_environment()
