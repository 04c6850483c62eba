# SPDX-License-Identifier: Apache-2.0
"""Small real environments, importable by name, so that a spawned process can build them too."""

from __future__ import annotations

import os
import subprocess
import threading
import time

RELEASE = threading.Event()
"""Set it and every hanging call of this process returns."""


class Climb:
    """Reach ``goal`` by "up" (or "up two"); the goal comes from the seed. Reward 1 at the top, 0 before."""

    def __init__(self, goal: int | None = None, limit: int = 99):
        self._fixed, self._limit = goal, limit

    def reset(self, *, seed=None, options=None):
        self.goal = (options or {}).get("goal") or self._fixed or 2 + (seed or 0) % 3
        self.height, self.turns = 0, 0
        return f"height {self.height}", self._info()

    def step(self, action):
        self.turns += 1
        self.height += {"up": 1, "up two": 2, "down": -1}.get(action, 0)
        won = self.height >= self.goal
        return f"height {self.height}", float(won), won, not won and self.turns >= self._limit, self._info()

    def close(self):
        pass

    def _info(self):
        return {
            "admissible_actions": ["up", "up two", "down"],
            "won": self.height >= self.goal,
            "task": f"reach {self.goal}",
            "task_type": "climb",
        }


class Trouble(Climb):
    """Also knows actions that crash, hang, exit the process or break the interface."""

    built = 0
    closed = 0

    def __init__(self, fail_at_reset: int = 0, hang_in_build: bool = False, **kwargs):
        super().__init__(**kwargs)
        type(self).built += 1
        self._fail_at_reset = fail_at_reset
        if hang_in_build:
            RELEASE.wait(60)

    def reset(self, *, seed=None, options=None):
        if type(self).built <= self._fail_at_reset:
            raise OSError("the game file is broken")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == "crash":
            raise RuntimeError("out of order")
        if action == "stop iteration":
            raise StopIteration
        if action == "hang":
            RELEASE.wait(60)
        if action == "sleep":
            time.sleep(0.05)
        if action == "exit":
            os._exit(3)
        if action == "old gym":
            return "height 0", 0.0, False, {}
        return super().step(action)

    def close(self):
        type(self).closed += 1


class Simulator(Climb):
    """Has a helper process that never answers: "hang" waits for it, "exit" leaves it behind. ``kill`` ends it."""

    def reset(self, *, seed=None, options=None):
        self.helper = subprocess.Popen(["sleep", "300"])
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "pid": self.helper.pid}

    def step(self, action):
        if action == "hang":
            self.helper.wait()
            raise RuntimeError("the simulator is gone")
        if action == "exit":
            os._exit(3)
        return super().step(action)

    def kill(self):
        self.helper.kill()

    def close(self):
        self.helper.kill()
        self.helper.wait()


class Cloned(Climb):
    """Climb whose steps count: a clone goes on with the count, and an environment that was played again would not."""

    SNAPSHOT = "clone"
    resets = 0

    def reset(self, *, seed=None, options=None):
        type(self).resets += 1
        return super().reset(seed=seed, options=options)


class Forgetful(Climb):
    """Shows another observation each time an episode is played: its turns cannot be played again."""

    count = 0

    def step(self, action):
        type(self).count += 1
        observation, *rest = super().step(action)
        return f"{observation} . {type(self).count}", *rest


class Neither(Climb):
    SNAPSHOT = "none"
