# SPDX-License-Identifier: Apache-2.0
"""Rows in a repeatable order under ``rollout.full_determinism``.

verl's V1 trainer takes trajectories in the order in which they were finished, under keys that are random, so two equal runs sum
the same numbers in different orders and part in the last bits. With ``actor_rollout_ref.rollout.full_determinism=True`` (which
makes the rollouts themselves repeatable) the rows of a batch are sorted by the data set's index, session and turn instead.
"""

from __future__ import annotations

import functools
from types import ModuleType


def row_order(indices, keys: list[str]) -> list[int]:
    """Positions of the rows sorted by (data set index, session, position in the session)."""
    parts = [key.rsplit("_", 2) for key in keys]
    return sorted(range(len(keys)), key=lambda i: (int(indices[i]), int(parts[i][1]), int(parts[i][2])))


def patch(trainer_base: ModuleType) -> None:
    """Sort each batch of ``PPOTrainer`` before it is balanced, where determinism is asked for."""
    original = trainer_base.PPOTrainer._balance_batch

    @functools.wraps(original)
    def _balance_batch(self, batch, *args, **kwargs):
        if self.config.actor_rollout_ref.rollout.full_determinism:
            rows = trainer_base.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
            batch.reorder(row_order(list(rows["index"]), batch.keys))
        return original(self, batch, *args, **kwargs)

    trainer_base.PPOTrainer._balance_batch = _balance_batch
