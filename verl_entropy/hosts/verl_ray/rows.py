# SPDX-License-Identifier: Apache-2.0
"""Rows of RayPPOTrainer to turns: verl's agent-loop worker spreads an episode's record over columns of Python objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl_entropy.batch.turns import Turns, build_turns
from verl_entropy.hosts.common import agent_rows
from verl_entropy.hosts.common.trainer_keys import PAD_UID

SESSION, POSITION = "verl_entropy_session", "verl_entropy_position"
"""Columns of objects where an episode has several rows: the number of its episode in the step, and the row's place in it."""
RECORD = ("turns", "success", "ended", "task_type", "task", "env_error")
"""What ``agent/loop.py`` stores with a row."""
SPANS = "spans_mask"
"""Column with the response mask before rollout correction rejected tokens."""


def extra_fields(data: Any) -> list[dict[str, Any]]:
    """Per row what the agent loop stored with it, without what it left out."""
    columns = {name: data.non_tensor_batch[name] for name in RECORD if name in data.non_tensor_batch}
    return [{name: column[row] for name, column in columns.items() if column[row] is not None} for row in range(len(data))]


def keys(data: Any) -> list[str]:
    """``<uid>_<session>_<position>`` of the rows, as the queue of verl's V1 trainer has them."""
    objects, number = data.non_tensor_batch, range(len(data))
    session_R = objects.get(SESSION, number)
    position_R = objects.get(POSITION, [0] * len(data))
    return [f"{uid}_{session}_{position}" for uid, session, position in zip(objects["uid"], session_R, position_R, strict=True)]


def padding(data: Any) -> np.ndarray:
    """Of each row whether it only fills up the batch."""
    return np.array([str(uid).startswith(PAD_UID) for uid in data.non_tensor_batch["uid"]])


def turns(data: Any, keys_R: list[str], extra: list[dict[str, Any]], threshold: float) -> Turns:
    """The turns of a batch with ``token_level_rewards``."""
    padding_R = padding(data)
    sessions, positions = zip(*((key.rsplit("_", 1)[0], int(key.rsplit("_", 1)[1])) for key in keys_R), strict=True)
    mask_RT = data.batch["response_mask"].bool()
    return build_turns(
        mask_RT,
        group_R=list(data.non_tensor_batch["uid"]),
        trajectory_R=list(sessions),
        position_R=list(positions),
        padding_R=torch.as_tensor(padding_R),
        score_R=data.batch["token_level_rewards"].float().sum(-1),
        turn_fields=agent_rows.turn_fields(extra, padding_R),
        # before a KL penalty, whose estimate can be of either sign
        success_R=agent_rows.success(extra, data.batch["token_level_scores"].float().sum(-1), threshold),
        spans_mask_RT=data.batch[SPANS].bool() if SPANS in data.batch.keys() else mask_RT,
    )
