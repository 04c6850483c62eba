# SPDX-License-Identifier: Apache-2.0
"""Entry point of group ``verl.plugins``: verl imports this module at the end of its own ``__init__`` in every process.

The only file whose import installs anything, so nothing in this package imports it; ``VERL_USE_EXTERNAL_MODULES`` may name it
too. It only installs import hooks (no torch, no trainer), so it costs milliseconds. verl logs a failing plugin at DEBUG, that
is nowhere; so a failure prints its cause and the fix here before it is raised.
"""

from __future__ import annotations

from verl_entropy.hosts.install import activate
from verl_entropy.log import say

try:
    activate.install()
except Exception as error:
    say(
        f"the plugin failed to load: {type(error).__name__}: {error}. Nothing of verl-entropy is active in this process. "
        "Fix: reinstall verl-entropy, run `verl-entropy doctor`, or set VERL_USE_EXTERNAL_PLUGINS=none to run without it."
    )
    raise
