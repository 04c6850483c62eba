# SPDX-License-Identifier: Apache-2.0
"""Rows, turns and tokens: one view of a training batch for both layouts.

A *turn* is a maximal run of ones in the response mask of a row. In a step-wise batch each turn has a row of
its own; in verl's tool loop a row holds a whole trajectory with several runs. Everything else in this package
works on turns and does not know which of the two it was given.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from verl_entropy.batch.foreign import read_bools, read_numbers
from verl_entropy.batch.packed import pack, positions, row_lengths, unpack

FIELDS = ("reward", "penalty", "valid", "anchor")


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of a batch, sorted by trajectory (in order of first appearance) and position in it."""

    mask_RT: Tensor
    """bool; trained tokens, all False in padding rows"""
    turn_RT: Tensor
    """long; id in [0, K) of the turn that holds the token, -1 outside"""
    row_K: Tensor
    """long; row of the turn"""
    index_K: Tensor
    """long; position of the turn in its trajectory, from 0"""
    trajectory_K: Tensor
    """long; dense trajectory id in [0, J), not decreasing"""
    group_J: Tensor
    """long; dense prompt-group id of the trajectory in [0, P)"""
    score_J: Tensor
    """fp32; score of the trajectory: token-level rewards of its last row, penalties included"""
    success_J: Tensor
    """bool; the trajectory reached its goal"""
    reward_K: Tensor | None = None
    """fp32; environment reward of the turn, None where the environment gives none per turn"""
    penalty_K: Tensor | None = None
    """fp32 >= 0; penalty of the turn for its format or an inadmissible action"""
    valid_K: Tensor | None = None
    """bool; tags right and action admissible"""
    anchor_K: np.ndarray | None = None
    """object array; observation the turn acted on"""

    @property
    def device(self) -> torch.device:
        return self.turn_RT.device

    @property
    def num_turns(self) -> int:
        return self.row_K.shape[0]

    @property
    def num_trajectories(self) -> int:
        return self.group_J.shape[0]

    @cached_property
    def num_groups(self) -> int:
        return int(self.group_J.max()) + 1 if self.num_trajectories else 0

    @cached_property
    def group_K(self) -> Tensor:
        """Prompt-group id of the turn."""
        return self.group_J[self.trajectory_K]

    @property
    def lengths_K(self) -> Tensor:
        """Tokens of the turn, at least 1."""
        return self.segments[1]

    @cached_property
    def segments(self) -> tuple[Tensor, Tensor]:
        """Flat position of the first token, and number of tokens, of each turn."""
        row, first, length = _runs(self.turn_RT >= 0)
        start = row * self.turn_RT.shape[1] + first
        turn = self.turn_RT.reshape(-1)[start]
        return torch.empty_like(start).index_copy_(0, turn, start), torch.empty_like(length).index_copy_(0, turn, length)

    @cached_property
    def _tokens_N(self) -> Tensor:
        """Flat positions of all tokens in turns, turn by turn."""
        return _positions(*self.segments)

    @cached_property
    def _slot_RT(self) -> Tensor:
        """Turn of the token, or K outside: an index into a vector of turns with one more entry."""
        return self.turn_RT.masked_fill(self.turn_RT < 0, self.num_turns)

    @cached_property
    def _packed(self) -> WeakIdKeyDictionary:
        """Vectors of tensors seen before, as long as those live: the transforms of a step share their inputs."""
        return WeakIdKeyDictionary()

    @cached_property
    def _position_N(self) -> Tensor:
        return positions(self.mask_RT)

    @cached_property
    def tokens_R(self) -> Tensor:
        """Trained tokens of each row, long."""
        return row_lengths(self.mask_RT)

    @cached_property
    def trained_K(self) -> Tensor:
        """Turns with a trained token left, bool: a transform or a rejection may have taken all of a turn's."""
        return self.sum(self.mask_RT) > 0 if self._thinned else torch.ones_like(self.row_K, dtype=torch.bool)

    @cached_property
    def _thinned(self) -> bool:
        """Whether some tokens of turns are not trained."""
        return int(self.tokens_R.sum()) != len(self._tokens_N)

    def pack(self, x_RT: Tensor | Packed) -> Tensor:
        """The trained tokens of (R, T) row by row, fp32 (N,), without gradient; kept for the next call, so never write into it."""
        if isinstance(x_RT, Packed):
            if x_RT.turns is not self:
                raise ValueError("these tokens were packed with other turns; call padded() first.")
            return x_RT.x_N
        if x_RT.is_inference():  # has no version, so a later change in place could not be seen
            return pack(x_RT, self.mask_RT)
        version, x_N = self._packed.get(x_RT, (None, None))
        if version != x_RT._version:
            x_N = pack(x_RT, self.mask_RT)
            self._packed[x_RT] = (x_RT._version, x_N)
        return x_N

    def unpack(self, x_N: Tensor) -> Tensor:
        """(N,) back to (R, T) in its dtype, 0 (False) outside the mask."""
        return unpack(x_N, self._position_N, self.mask_RT.shape)

    def sum(self, x_RT: Tensor) -> Tensor:
        """Sum over the tokens of each turn; (R, T) -> (K,), fp32. Positions outside turns are never read."""
        dtype = torch.promote_types(x_RT.dtype, torch.float32)
        if not self.num_turns:
            return x_RT.new_zeros(0, dtype=dtype)
        # fp64 accumulation from left to right: the same sum in every layout and at every padding length
        x_N = x_RT.reshape(-1).index_select(0, self._tokens_N).double()
        return torch.segment_reduce(x_N, "sum", lengths=self.lengths_K).to(dtype)

    def mean(self, x_RT: Tensor) -> Tensor:
        """Mean over the tokens of each turn; (R, T) -> (K,), fp32. Positions outside turns are never read."""
        return self.sum(x_RT) / self.lengths_K

    def trained_mean(self, x_RT: Tensor) -> Tensor:
        """Mean over the trained tokens of each turn; (R, T) -> (K,), fp32, NaN for a turn without one."""
        if not self._thinned:
            return self.mean(x_RT)
        return self.sum(torch.where(self.mask_RT, x_RT, 0.0)) / self.sum(self.mask_RT)

    def scale(self, x_RT: Tensor, v_K: Tensor) -> Tensor:
        """Tokens times the number of their turn; (R, T). Positions outside turns come out with no meaning."""
        v_K = v_K.to(x_RT.dtype)
        if self._one_turn_per_row:
            return x_RT * x_RT.new_ones(len(x_RT)).index_copy_(0, self.row_K, v_K)[:, None]
        return x_RT * self.to_tokens(v_K, fill=1.0)

    @cached_property
    def _one_turn_per_row(self) -> bool:
        return len(self.row_K) == len(torch.unique(self.row_K))

    def to_tokens(self, v_K: Tensor, fill: float = 0.0) -> Tensor:
        """One number per turn spread over its tokens; (K,) -> (R, T), ``fill`` outside turns."""
        padded = torch.cat([v_K, v_K.new_full((1,), fill)])
        return padded.index_select(0, self._slot_RT.reshape(-1)).view(self.turn_RT.shape)


@dataclass(frozen=True, eq=False)
class Packed:
    """The trained tokens of a padded matrix as a vector; a chain of transforms hands on this and pads once, at its end."""

    x_N: Tensor
    """fp32 (N,), row by row"""
    turns: Turns

    def padded(self) -> Tensor:
        """(R, T), 0 outside the mask."""
        return self.turns.unpack(self.x_N)


def padded(x: Tensor | Packed) -> Tensor:
    """(R, T), whether packed or not."""
    return x.padded() if isinstance(x, Packed) else x


def build_turns(
    mask_RT: Tensor,
    group_R: Sequence[Hashable],
    trajectory_R: Sequence[Hashable],
    position_R: Sequence[int],
    padding_R: Sequence[bool],
    score_R: Tensor,
    turn_fields: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    success_R: Sequence[bool] | None = None,
    success_threshold: float = 0.0,
    spans_mask_RT: Tensor | None = None,
) -> Turns:
    """Find the turns of a batch; values do not depend on the order of the rows.

    Args:
        mask_RT: response mask (bool or 0/1).
        group_R: prompt group of the row (verl's ``uid``).
        trajectory_R: session of the row; sessions of different prompt groups are different trajectories.
        position_R: position of the row inside its session.
        padding_R: rows that only fill up the batch; nothing of them is read.
        score_R: ``token_level_rewards.sum(-1)``; the last row of a trajectory gives its score.
        turn_fields: for each row one mapping per turn with any of ``reward``, ``penalty``, ``valid``,
            ``anchor``.
        success_R: the trajectory reached its goal, read at its last row; default: score above
            ``success_threshold``.
        spans_mask_RT: mask that defines the runs where ``mask_RT`` lost tokens later (rollout correction).
    """
    num_rows, device = mask_RT.shape[0], mask_RT.device
    _check_lengths(
        num_rows,
        group_R=group_R,
        trajectory_R=trajectory_R,
        position_R=position_R,
        padding_R=padding_R,
        score_R=score_R,
        turn_fields=turn_fields,
        success_R=success_R,
        spans_mask_RT=spans_mask_RT,
    )
    filler_R = torch.as_tensor(padding_R, device=device).bool()
    mask_RT = mask_RT.bool() & ~filler_R[:, None]
    span_RT = mask_RT if spans_mask_RT is None else spans_mask_RT.bool() & ~filler_R[:, None]
    if spans_mask_RT is not None and bool((mask_RT & ~span_RT).any()):
        raise ValueError("spans_mask_RT leaves out tokens of mask_RT; pass the response mask before any token was removed.")

    sessions = _sort_rows(group_R, trajectory_R, position_R, filler_R.tolist())
    row_K, trajectory_K, index_K, turn_RT = _sort_turns(span_RT, sessions)
    last_row_J = torch.as_tensor(sessions.last_row_J, device=device)
    score_J = torch.as_tensor(score_R, device=device).float()[last_row_J]
    _check_finite(score_J, "score_R", lambda j: f"row {sessions.last_row_J[j]}")
    success_J = score_J > success_threshold
    if success_R is not None:
        if not isinstance(success_R, Tensor):
            success_R = read_bools(success_R, lambda row: f"success_R of row {row}")
        success_J = torch.as_tensor(success_R, device=device).bool()[last_row_J]
    return Turns(
        mask_RT=mask_RT,
        turn_RT=turn_RT,
        row_K=row_K,
        index_K=index_K,
        trajectory_K=trajectory_K,
        group_J=torch.as_tensor(sessions.group_J, dtype=torch.long, device=device),
        score_J=score_J,
        success_J=success_J,
        **_fields(turn_fields, row_K.tolist(), filler_R.tolist(), device),
    )


def nested_token_weight(turns: Turns) -> Tensor:
    """Weights that make a token mean the mean over trajectories of turns of tokens; (R, T), fp32.

        weight_t = N / (J K_j L_k)                                            Eq. 4 of EPO, arXiv 2509.22576

    for each of the L_k trained tokens of a turn, K_j turns with trained tokens in its trajectory, J such
    trajectories and N trained tokens in all. The weights average to 1 over the trained tokens, so that
    ``aggregate(x_RT, ..., "nested-mean", weight=weight_RT)`` keeps its scale in a mini-batch.
    """
    tokens_K = turns.sum(turns.mask_RT)
    trained_K = tokens_K > 0
    turns_J = torch.bincount(turns.trajectory_K[trained_K], minlength=turns.num_trajectories).double()
    share_K = (turns_J > 0).sum() * turns_J[turns.trajectory_K] * tokens_K
    weight_K = tokens_K.double().sum() / share_K  # inf for a turn that lost all its tokens: the mask drops it
    return torch.where(turns.mask_RT, turns.to_tokens(weight_K.float()), 0.0)


@dataclass(frozen=True)
class _Sessions:
    """Rows of the trajectories in order; padding rows are left out."""

    rank_R: np.ndarray
    """place of the row among the sorted rows, -1 for padding"""
    trajectory_R: np.ndarray
    """dense trajectory id, -1 for padding"""
    group_J: np.ndarray
    last_row_J: np.ndarray


def _sort_rows(group_R: Sequence, trajectory_R: Sequence, position_R: Sequence, padding_R: list[bool]) -> _Sessions:
    groups: dict[Hashable, int] = {}
    sessions: dict[tuple[int, Hashable], int] = {}
    trajectory = np.full(len(padding_R), -1, dtype=np.int64)
    for row, (group, key) in enumerate(zip(_keys(group_R), _keys(trajectory_R), strict=True)):
        if not padding_R[row]:
            group_id = groups.setdefault(group, len(groups))
            trajectory[row] = sessions.setdefault((group_id, key), len(sessions))
    position = torch.as_tensor(position_R).cpu().numpy().astype(np.int64)
    rows = np.flatnonzero(trajectory >= 0)
    rows = rows[np.lexsort((position[rows], trajectory[rows]))]
    twice = (np.diff(trajectory[rows]) == 0) & (np.diff(position[rows]) == 0)
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        raise ValueError(
            f"rows {rows[at]} and {rows[at + 1]} hold position {position[rows[at]]} of the same trajectory; "
            "number the rows of a session (position_R) from 0 without repeats."
        )
    rank = np.full(len(padding_R), -1, dtype=np.int64)
    rank[rows] = np.arange(len(rows))
    last = np.cumsum(np.bincount(trajectory[rows], minlength=len(sessions))) - 1
    group_J = np.fromiter((group for group, _ in sessions), dtype=np.int64, count=len(sessions))
    return _Sessions(rank, trajectory, group_J, rows[last] if len(rows) else rows)


def _sort_turns(span_RT: Tensor, sessions: _Sessions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs of ``span_RT`` in the order of turns: row_K, trajectory_K, index_K, turn_RT."""
    device = span_RT.device
    row = _runs(span_RT)[0]
    order = torch.argsort(torch.as_tensor(sessions.rank_R, device=device)[row], stable=True)
    row_K = row[order]
    trajectory_K = torch.as_tensor(sessions.trajectory_R, device=device)[row_K]
    turns_J = torch.bincount(trajectory_K, minlength=len(sessions.group_J))
    turn_K = torch.arange(len(order), device=device)
    index_K = turn_K - (turns_J.cumsum(0) - turns_J)[trajectory_K]
    # number of the run in row order, from 1; 0 outside
    run_N = _starts(span_RT).view(-1).cumsum(0, dtype=torch.int32).mul_(span_RT.reshape(-1))
    turn_of_run = torch.full((len(order) + 1,), -1, dtype=torch.long, device=device)
    turn_of_run[order + 1] = turn_K
    return row_K, trajectory_K, index_K, turn_of_run.index_select(0, run_N).view(span_RT.shape)


def _runs(span_RT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, first column and length of every maximal run of True, row by row from left to right."""
    ends_RT = span_RT.clone()
    ends_RT[:, :-1] &= ~span_RT[:, 1:]
    row, first = _starts(span_RT).nonzero(as_tuple=True)
    return row, first, ends_RT.nonzero(as_tuple=True)[1] - first + 1


def _starts(span_RT: Tensor) -> Tensor:
    """First token of every run."""
    starts_RT = span_RT.clone(memory_format=torch.contiguous_format)
    starts_RT[:, 1:] &= ~span_RT[:, :-1]
    return starts_RT


def _positions(start: Tensor, length: Tensor) -> Tensor:
    """start, start + 1, ..., start + length - 1 of every segment, joined."""
    offset = start - (length.cumsum(0) - length)
    joined = offset.repeat_interleave(length)
    return joined.add_(torch.arange(len(joined), device=joined.device))


def _fields(
    turn_fields: Sequence[Sequence[Mapping[str, Any]]] | None,
    row_K: list[int],
    padding_R: list[bool],
    device: torch.device,
) -> dict[str, Any]:
    """The per-turn fields in the order of turns; a field that no turn has is None."""
    if turn_fields is None:
        return {}
    counts = np.bincount(row_K, minlength=len(padding_R))
    for row, (fields, padding) in enumerate(zip(turn_fields, padding_R, strict=True)):
        if not padding and len(fields or ()) != counts[row]:
            raise ValueError(
                f"turn_fields[{row}] has {len(fields or ())} entries, expected {counts[row]}: one for each "
                f"run of ones in the response mask of row {row}. Give every turn an entry and keep at least "
                "one untrained token between turns."
            )
    turns = [fields for row in dict.fromkeys(row_K) for fields in turn_fields[row]]
    columns = {name: [fields.get(name) for fields in turns] for name in FIELDS}
    for name, column in columns.items():
        missing = [k for k, value in enumerate(column) if value is None]
        if missing and len(missing) < len(column):
            raise ValueError(
                f"turn_fields: {name!r} is missing for a turn of row {row_K[missing[0]]} but set for others; "
                "set it for every turn of the batch or for none."
            )
    given = {name: column for name, column in columns.items() if column and column[0] is not None}
    return {f"{name}_K": _column(name, column, row_K, device) for name, column in given.items()}


def _column(name: str, column: list, row_K: list[int], device: torch.device) -> Tensor | np.ndarray:
    if name == "anchor":
        anchor_K = np.empty(len(column), dtype=object)
        for k, anchor in enumerate(column):  # numpy would unpack an observation that is an array
            anchor_K[k] = anchor
        return anchor_K
    if name == "valid":
        return torch.tensor(read_bools(column, lambda k: f"turn_fields: 'valid' of a turn of row {row_K[k]}"), device=device)
    values = read_numbers(column, lambda k: f"turn_fields: {name!r} of a turn of row {row_K[k]}")
    values_K = torch.tensor(values, dtype=torch.float32, device=device)
    _check_finite(values_K, f"turn_fields: {name!r}", lambda k: f"a turn of row {row_K[k]}")
    if name == "penalty" and bool((values_K < 0).any()):
        raise ValueError(f"turn_fields: 'penalty' is {float(values_K.min())}; it must be >= 0 and is subtracted.")
    return values_K


def _keys(keys: Sequence[Hashable] | Tensor) -> Sequence[Hashable]:
    return keys.tolist() if isinstance(keys, Tensor | np.ndarray) else keys


def _check_lengths(num_rows: int, **columns: Any) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != num_rows:
            raise ValueError(f"{name} has {len(column)} rows, mask_RT has {num_rows}; pass one entry per row.")


def _check_finite(values: Tensor, name: str, where: Any) -> None:
    bad = (~torch.isfinite(values)).nonzero()
    if len(bad):
        at = int(bad[0])
        raise ValueError(f"{name} of {where(at)} is {float(values[at])}; it must be finite. Check the reward function.")
