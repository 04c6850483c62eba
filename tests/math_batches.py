# SPDX-License-Identifier: Apache-2.0
"""Batches for the tests of the maths: a small fixture with known numbers, and random ragged ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns, build_turns


@dataclass(frozen=True)
class Batch:
    """What the advantage side and the losses see of a batch."""

    turns: Turns
    advantages_RT: Tensor
    log_prob_RT: Tensor
    old_log_prob_RT: Tensor
    entropy_RT: Tensor
    centre_RT: Tensor
    logits_RTV: Tensor
    tokens_RT: Tensor

    @property
    def mask_RT(self) -> Tensor:
        return self.turns.mask_RT

    def rows(self, order: Tensor) -> Batch:
        """The same batch with its rows in another order (or some of them)."""
        parts = {k: v[order] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **parts, turns=subset(self.turns, order))

    def garbage(self, value: float) -> Batch:
        """``value`` in every masked place."""
        names = ("advantages_RT", "log_prob_RT", "old_log_prob_RT", "entropy_RT", "centre_RT")
        return replace(self, **{n: torch.where(self.mask_RT, getattr(self, n), value) for n in names})


def subset(turns: Turns, order: Tensor) -> Turns:
    """``turns`` rebuilt for rows in ``order``; one row per turn or per trajectory, padding without a turn."""
    trajectory_R = torch.full((len(turns.mask_RT),), -1)
    position_R = torch.zeros_like(trajectory_R)
    group_R, score_R, success_R = trajectory_R.clone(), torch.zeros(len(trajectory_R)), torch.zeros(len(trajectory_R))
    trajectory_R[turns.row_K] = turns.trajectory_K
    position_R[turns.row_K] = turns.index_K
    group_R[turns.row_K] = turns.group_K
    score_R[turns.row_K] = turns.score_J[turns.trajectory_K]
    success_R[turns.row_K] = turns.success_J[turns.trajectory_K].float()
    # An empty row of its own trajectory would otherwise share key and position with another one.
    trajectory_R = torch.where(trajectory_R < 0, -1 - torch.arange(len(trajectory_R)), trajectory_R)
    padding_R = torch.zeros(len(turns.mask_RT), dtype=torch.bool)
    padding_R[(turns.turn_RT < 0).all(-1)] = True
    return build_turns(
        turns.mask_RT[order],
        group_R[order].tolist(),
        trajectory_R[order].tolist(),
        position_R[order].tolist(),
        padding_R[order].tolist(),
        score_R[order],
        success_R=(success_R[order] > 0).tolist(),
    )


def from_logits(logits_RTV: Tensor, tokens_RT: Tensor, log_ratio_RT: Tensor, advantages_RT: Tensor, turns: Turns) -> Batch:
    """Every per-token tensor of a policy given by its logits, with plain formulas."""
    log_p = torch.log_softmax(logits_RTV.double(), -1)
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    log_prob = log_p.gather(-1, tokens_RT[..., None]).squeeze(-1)
    centre = (p.square() * (entropy[..., None] + log_p)).sum(-1)
    tensors = (advantages_RT, log_prob, log_prob - log_ratio_RT, entropy, centre, logits_RTV)
    return Batch(turns, *(x.float() for x in tensors), tokens_RT)


def fixture_f(advantages: tuple[float, float] = (1.0, -1.0)) -> Batch:
    """Two rows of three and two tokens over four actions, one trajectory each, one prompt group."""
    logits = torch.tensor(
        [[[2, 1, 0, -1], [0.5, 0.5, 0, 0], [3, 0, 0, 0]], [[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]], dtype=torch.float64
    )
    tokens = torch.tensor([[0, 2, 0], [1, 3, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    log_ratio = torch.tensor([[0.10, -0.05, 0.30], [-0.25, 0.02, 0.0]], dtype=torch.float64)
    turns = build_turns(mask, ["g", "g"], ["a", "b"], [0, 0], [False, False], torch.tensor([1.0, 0.0]))
    return from_logits(logits, tokens, log_ratio, torch.tensor(advantages)[:, None].expand(2, 3) * mask, turns)


def random_batch(seed: int, *, trajectories: int = 9, tokens: int = 11, vocab: int = 7, one_row: bool = False) -> Batch:
    """Ragged batch: several turns per trajectory, a padding row, an empty row, groups of different sizes (one of size one)."""
    generator = torch.Generator().manual_seed(seed)

    def randint(high: int, size: tuple[int, ...]) -> Tensor:
        return torch.randint(high, size, generator=generator)

    turns_J = torch.ones(trajectories, dtype=torch.long) if one_row else 1 + randint(4, (trajectories,))
    trajectory_R = torch.arange(trajectories).repeat_interleave(turns_J)
    position_R = torch.cat([torch.arange(int(n)) for n in turns_J])
    rows = len(trajectory_R) + 2
    mask = torch.arange(tokens)[None] < (1 + randint(tokens, (rows,)))[:, None]
    if one_row:
        mask &= torch.rand(rows, tokens, generator=generator) < 0.7
    mask[-2:] = False
    group_J = torch.cat((torch.tensor([3]), randint(3, (trajectories - 1,))))
    score_J = randint(2, (trajectories,)).float() + 0.5 * randint(2, (trajectories,))
    extra = torch.tensor([trajectories, trajectories + 1])
    turns = build_turns(
        mask,
        torch.cat((group_J[trajectory_R], torch.tensor([7, 8]))).tolist(),
        torch.cat((trajectory_R, extra)).tolist(),
        torch.cat((position_R, torch.tensor([0, 0]))).tolist(),
        [False] * (rows - 1) + [True],
        torch.cat((score_J[trajectory_R], torch.zeros(2))),
    )
    logits = 2.0 * torch.randn(rows, tokens, vocab, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, tokens, generator=generator).mul_(mask)
    advantages[0] = 0.0
    log_ratio = 0.3 * torch.randn(rows, tokens, generator=generator, dtype=torch.float64)
    return from_logits(logits, randint(vocab, (rows, tokens)), log_ratio, advantages, turns)
