# SPDX-License-Identifier: Apache-2.0
"""The poll interval of verl's replay buffer, as a setting, and a run that ends when its environments cannot be used.

Mends: the V1 trainer builds its replay buffer with a poll interval of 2 seconds and no setting for it; that is a good part of the step
of a small model, and longer than a whole step of a tiny one. ``+trainer.v1.sampler.sampler_kwargs.poll_interval=0.2`` sets
another; on the CPU backend the default is 0.1, elsewhere verl's 2 seconds stay. And verl goes on polling for ever when an agent-loop
worker has given up; here the next poll ends the run.
Versions: 0.9.0, 0.9.1.
Asked for by: the key, an agent loop of ours, the CPU backend or a chosen method.
No longer needed when ``PPOTrainer._build_replay_buffer`` hands ``poll_interval`` to the buffer, and a worker can end a run.

verl's ``trainer.v1.sampler.custom_sampler`` would take a subclass, but does not pass it the settings of
``algorithm.filter_groups``, so dynamic filtering would be lost without a word. The interval is therefore set on the buffer that
the trainer has built, whatever its class: filtering, eviction and refill stay verl's.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from verl_entropy.agent.pool import BROKEN

POLL_INTERVAL = 0.1
"""Seconds, on the CPU backend. One poll is one call to the queue's controller, a few milliseconds of the waiting process."""

_patched: set[int] = set()


def poll_interval(sampler_kwargs) -> float | None:
    """``trainer.v1.sampler.sampler_kwargs.poll_interval`` in seconds; without it ``POLL_INTERVAL`` on the CPU backend, else None."""
    default = POLL_INTERVAL if os.environ.get("VERL_PLATFORM", "").lower() == "cpu" else None
    value = sampler_kwargs.get("poll_interval", default) if sampler_kwargs else default
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"trainer.v1.sampler.sampler_kwargs.poll_interval={value!r} must be a positive number of "
            f"seconds; fix: remove it or set, say, 0.1"
        )
    return float(value)


def _watch(buffer: Any) -> None:
    """End the run at the next poll after an agent-loop worker said that its environments cannot be used (``BROKEN``)."""
    sync = buffer._sync_metadata_from_transfer_queue

    @functools.wraps(sync)
    def _sync_metadata_from_transfer_queue():
        sync()
        for tag in buffer.partitions.get(BROKEN, {}).values():
            if "message" in tag:  # the queue may list a key before its tag
                raise RuntimeError(f"verl-entropy: an agent-loop worker cannot go on: {tag['message']}")

    buffer._sync_metadata_from_transfer_queue = _sync_metadata_from_transfer_queue


def patch(trainer_base: ModuleType) -> None:
    """Set the interval on, and watch, every replay buffer that ``PPOTrainer`` of ``verl.trainer.ppo.v1.trainer_base`` builds."""
    if id(trainer_base) in _patched:
        return
    _patched.add(id(trainer_base))
    build = trainer_base.PPOTrainer._build_replay_buffer

    @functools.wraps(build)
    def _build_replay_buffer(self):
        buffer = build(self)
        interval = poll_interval(self.config.trainer.v1.sampler.sampler_kwargs)
        if isinstance(buffer, trainer_base.ReplayBuffer):
            if interval is not None:
                buffer.poll_interval = interval
            _watch(buffer)
        return buffer

    trainer_base.PPOTrainer._build_replay_buffer = _build_replay_buffer
