# SPDX-License-Identifier: Apache-2.0
"""A short poll interval for verl's replay buffer.

The V1 trainer builds its replay buffer with a poll interval of 2 seconds and no setting for it; that is
longer than a whole step of a tiny model. verl's ``trainer.v1.sampler.custom_sampler`` would take a subclass,
but does not pass it the settings of ``algorithm.filter_groups``, so dynamic filtering would be lost without a
word. The interval is therefore set on the buffer that the trainer has built, whatever its class: filtering,
eviction and refill stay verl's.
"""

from __future__ import annotations

import functools
from types import ModuleType

POLL_INTERVAL = 0.05
"""Seconds. One poll is one call to the queue's controller, a few milliseconds of the waiting process."""

_patched: set[int] = set()


def poll_interval(sampler_kwargs) -> float:
    """``trainer.v1.sampler.sampler_kwargs.poll_interval`` in seconds, or ``POLL_INTERVAL``."""
    value = sampler_kwargs.get("poll_interval", POLL_INTERVAL) if sampler_kwargs else POLL_INTERVAL
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"trainer.v1.sampler.sampler_kwargs.poll_interval={value!r} must be a positive number of "
            f"seconds; fix: remove it (default {POLL_INTERVAL}) or set, say, 0.1"
        )
    return float(value)


def patch(trainer_base: ModuleType) -> None:
    """Set the interval on every replay buffer that ``PPOTrainer`` of ``verl.trainer.ppo.v1.trainer_base``
    builds.
    """
    if id(trainer_base) in _patched:
        return
    _patched.add(id(trainer_base))
    build = trainer_base.PPOTrainer._build_replay_buffer

    @functools.wraps(build)
    def _build_replay_buffer(self):
        buffer = build(self)
        if isinstance(buffer, trainer_base.ReplayBuffer):
            buffer.poll_interval = poll_interval(self.config.trainer.v1.sampler.sampler_kwargs)
        return buffer

    trainer_base.PPOTrainer._build_replay_buffer = _build_replay_buffer
