# SPDX-License-Identifier: Apache-2.0
"""An environment that states no task and names its own anchor."""

from __future__ import annotations


class Taskless:
    def reset(self, *, seed=None, options=None):
        return "height 0", {"anchor": "here"}

    def step(self, action):
        return "height 1", 1.0, True, False, {}

    def close(self):
        pass
