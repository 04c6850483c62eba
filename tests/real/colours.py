# SPDX-License-Identifier: Apache-2.0
"""A user's own environment for the real runs: name the wanted colour within three turns. One class, chosen by its path."""

import os
import random
import time


class Colours:
    """``hang_seed`` hangs and ``crash_seed`` crashes in the episode of that seed, as broken environments do.

    ``signed``: rewards are +1 and -1.
    """

    def __init__(self, crash_seed: int | None = None, hang_seed: int | None = None, signed: bool = False):
        self.crash_seed, self.hang_seed, self.signed = crash_seed, hang_seed, signed

    def reset(self, *, seed=None, options=None):
        self.seed, self.rng, self.turn = seed, random.Random(seed), 0
        return self._observe()

    def _observe(self):
        self.want = self.rng.choice(["red", "green", "blue"])
        info = {"admissible_actions": ["red", "green", "blue"], "task": "goal", "won": False}
        return f"want {self.want}", info

    def step(self, action):
        if self.seed == self.crash_seed:
            raise RuntimeError("the simulator crashed")
        if self.seed == self.hang_seed:
            time.sleep(3600)
        self.turn += 1
        won = self.want in action  # an untrained model says anything, and so wins now and then
        observation, info = self._observe()
        info["won"] = won
        over = won or self.turn >= 3
        reward = (1.0 if won else -1.0 if over else 0.0) if self.signed else (10.0 if won else 0.0)
        return observation, reward, won, self.turn >= 3, info

    def close(self):
        assert os.getpid()
