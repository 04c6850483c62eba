# SPDX-License-Identifier: Apache-2.0
"""Rows of verl-agent to turns. One row is one turn; some rows are copies, and the balancing has shuffled them.

verl-agent fills a batch up by copying random rows and keeps no step index. So every row is tagged where rows are still in
order (``tag``), and a copy is a row whose tag was seen before. Copies enter no statistics: values are computed on the unique rows
and then given to the copies too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns, build_turns

ROW, TURN, SUCCESS = "verl_entropy_row", "verl_entropy_turn", "verl_entropy_success"
"""Tags of a row: its number in the rollout, its position in its trajectory, success of its trajectory."""


def tag(traj_uid_R: np.ndarray, success: Mapping[str, float] | None) -> dict[str, np.ndarray]:
    """Tags of rows in the order of the rollout: the rows of a trajectory follow each other in time."""
    rows = len(traj_uid_R)
    number_R = np.arange(rows)
    new_R = np.ones(rows, dtype=bool)
    new_R[1:] = traj_uid_R[1:] != traj_uid_R[:-1]
    if int(new_R.sum()) != len(set(traj_uid_R.tolist())):
        raise RuntimeError("verl-entropy: the rows of a trajectory do not follow each other in verl-agent's rollout batch.")
    turn_R = number_R - np.maximum.accumulate(np.where(new_R, number_R, 0))
    tags = {ROW: number_R, TURN: turn_R}
    if success is not None:
        tags[SUCCESS] = np.fromiter((success[uid] for uid in traj_uid_R), dtype=np.float64, count=rows)
    return {name: values.astype(object) for name, values in tags.items()}


@dataclass(frozen=True)
class Rows:
    """The unique rows of a batch and how all rows come from them; ``_U`` marks unique rows, in the order of the rollout."""

    first_U: Tensor
    """long; where the row stands in the batch (a copy's twin, when a row occurs more than once)"""
    origin_R: Tensor
    """long; number of the unique row that each row of the batch is or copies"""

    @property
    def copies(self) -> int:
        return len(self.origin_R) - len(self.first_U)

    def unique(self, x_R: Tensor | np.ndarray) -> Any:
        """Values of the unique rows."""
        return x_R[self.first_U.numpy()] if isinstance(x_R, np.ndarray) else x_R[self.first_U]

    def all(self, x_U: Tensor) -> Tensor:
        """Values of the unique rows given to every row of the batch, copies included."""
        return x_U[self.origin_R]


def unique_rows(non_tensor: Mapping[str, np.ndarray]) -> Rows:
    """The unique rows of a tagged batch."""
    if ROW not in non_tensor:
        raise RuntimeError(
            "verl-entropy: the rows of this batch carry no tags, so copies and turns cannot be told apart. The rollout did not go "
            "through TrajectoryCollector.gather_rollout_data of this trainer."
        )
    first, origin = np.unique(non_tensor[ROW].astype(np.int64), return_index=True, return_inverse=True)[1:]
    return Rows(torch.from_numpy(first), torch.from_numpy(origin))


@dataclass(frozen=True)
class Fields:
    """Per unique row what verl-agent knows about the turn."""

    group_U: np.ndarray
    trajectory_U: np.ndarray
    turn_U: np.ndarray
    reward_U: Tensor
    penalty_U: Tensor
    valid_U: Tensor
    anchor_U: np.ndarray | None
    score_U: Tensor
    """score of the row's trajectory"""
    success_U: np.ndarray | None
    mask_UT: Tensor

    def without_tokens(self) -> Fields:
        """The same with one token per turn, for what reads no tokens."""
        return dataclasses.replace(self, mask_UT=torch.ones(len(self.turn_U), 1, dtype=torch.bool))

    def turns(self, mask_UT: Tensor, threshold: float) -> Turns:
        """Turns with the trained tokens of ``mask_UT``; a turn whose tokens all went keeps its place."""
        turns = build_turns(
            mask_UT,
            group_R=self.group_U,
            trajectory_R=self.trajectory_U,
            position_R=self.turn_U,
            padding_R=torch.zeros(len(self.turn_U), dtype=torch.bool),
            score_R=self.score_U,
            success_R=None if self.success_U is None else (self.success_U > 0).tolist(),
            success_threshold=threshold,
            spans_mask_RT=self.mask_UT,
        )
        row_K = turns.row_K
        return dataclasses.replace(
            turns,
            reward_K=self.reward_U[row_K],
            penalty_K=self.penalty_U[row_K],
            valid_K=self.valid_U[row_K],
            anchor_K=None if self.anchor_U is None else self.anchor_U[row_K.numpy()],
        )


def read(data: Any, rows: Rows, penalty: float) -> Fields:
    """Fields of the unique rows of a DataProto.

    The score of a trajectory is the environment's return less the penalties (and KL terms) of all its turns; verl-agent's rows
    hold the return less the penalty of the row's own turn.
    """
    plain = {k: rows.unique(v) for k, v in data.non_tensor_batch.items()}
    return_U = torch.from_numpy(plain["episode_rewards"].astype(np.float64))
    own_U = rows.unique(data.batch["token_level_rewards"]).double().sum(-1) - return_U
    trajectory_U = np.unique(plain["traj_uid"].astype(str), return_inverse=True)[1]
    index_U = torch.from_numpy(trajectory_U)
    shaped_J = torch.zeros(int(index_U.max()) + 1, dtype=torch.float64).index_add_(0, index_U, own_U)
    valid_U = torch.from_numpy(plain["is_action_valid"].astype(bool))
    anchor = plain.get("anchor_obs")
    return Fields(
        group_U=plain["uid"],
        trajectory_U=trajectory_U,
        turn_U=plain[TURN].astype(np.int64),
        reward_U=torch.from_numpy(plain["rewards"].astype(np.float32)),
        penalty_U=penalty * (~valid_U).float(),
        valid_U=valid_U,
        anchor_U=None if anchor is None or anchor[0] is None else anchor,
        score_U=(return_U + shaped_J[index_U]).float(),
        success_U=plain[SUCCESS].astype(np.float64) if SUCCESS in plain else None,
        mask_UT=rows.unique(data.batch["response_mask"]).bool(),
    )


def row_turns(data: Any, return_R: Tensor) -> Turns:
    """Every row, copies included, as a trajectory of its own with the reward ``return_R``: verl-agent's view of a batch.

    Turn k is row k, and has one token: nothing that runs over rows reads more.
    """
    number = len(return_R)
    turns = build_turns(
        torch.ones(number, 1),
        group_R=data.non_tensor_batch["uid"],
        trajectory_R=range(number),
        position_R=torch.zeros(number, dtype=torch.long),
        padding_R=torch.zeros(number, dtype=torch.bool),
        score_R=data.batch["token_level_rewards"].float().sum(-1),
    )
    anchor = data.non_tensor_batch.get("anchor_obs")
    return dataclasses.replace(turns, reward_K=return_R, anchor_K=None if anchor is None or anchor[0] is None else anchor)
