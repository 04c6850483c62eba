# SPDX-License-Identifier: Apache-2.0
"""Episodes in plain Python and the batches they become: what the tests of turns and advantages share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from verl_entropy.batch.turns import Turns, build_turns

# ----------------------------------------------------------------------------- two rows, worked out by hand


@dataclass
class TwoRows:
    """Logits, tokens and log ratios of 2 rows, 3 tokens, 4 words; the last token of row 1 is padding."""

    logits: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor
    entropy: torch.Tensor = field(init=False)

    def __post_init__(self):
        log_p = self.logits.double().log_softmax(-1)
        self.entropy = -(log_p.exp() * log_p).sum(-1)


def two_rows() -> TwoRows:
    logits = [[[2, 1, 0, -1], [0.5, 0.5, 0, 0], [3, 0, 0, 0]], [[1, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]
    return TwoRows(
        logits=torch.tensor(logits, dtype=torch.float32),
        tokens=torch.tensor([[0, 2, 0], [1, 3, 0]]),
        mask=torch.tensor([[1, 1, 1], [1, 1, 0]]).bool(),
    )


def scored(pairs: list[tuple[str, float]], turns_each: list[int] | None = None, **fields) -> Turns:
    """Turns of trajectories given by (group, score), each of one turn or of ``turns_each``."""
    turns_each = turns_each or [1] * len(pairs)
    owner = [j for j, n in enumerate(turns_each) for _ in range(n)]
    return build_turns(
        torch.ones(len(owner), 2),
        [pairs[j][0] for j in owner],
        owner,
        [i for n in turns_each for i in range(n)],
        [False] * len(owner),
        torch.tensor([float(pairs[j][1]) for j in owner]),
        **fields,
    )


# ----------------------------------------------------------------------------- random ragged batches


@dataclass
class Episode:
    """A trajectory; ``tokens`` holds one list of entropies per turn."""

    group: str
    key: str
    tokens: list[list[float]]
    reward: list[float]
    penalty: list[float]
    anchor: list[str]
    score: float
    success: bool

    def fields(self, turn: int) -> dict:
        return {
            "reward": self.reward[turn],
            "penalty": self.penalty[turn],
            "valid": self.penalty[turn] == 0,
            "anchor": self.anchor[turn],
        }


@dataclass
class Batch:
    """Rows as verl has them, and what ``build_turns`` takes."""

    entropy: torch.Tensor
    mask: torch.Tensor
    rows: dict
    garbage: torch.Tensor
    """entropies with NaN, inf and 1e30 outside the mask"""

    def turns(self, **changes) -> Turns:
        return build_turns(**{"mask_RT": self.mask, **self.rows, **changes})

    def by_turn(self, turns: Turns, values) -> dict:
        """Values by (group, trajectory, index): what must not depend on the layout."""
        rows, index = turns.row_K.tolist(), turns.index_K.tolist()
        values = values.tolist() if isinstance(values, torch.Tensor) else list(values)
        group, key = self.rows["group_R"], self.rows["trajectory_R"]
        return {(group[r], key[r], i): v for r, i, v in zip(rows, index, values, strict=True)}


def make_episodes(seed: int, groups: int = 4, most_rollouts: int = 5, most_turns: int = 6) -> list[Episode]:
    """Ragged groups of trajectories (the second with equal scores) of up to ``most_turns`` turns."""
    rng = random.Random(seed)
    episodes = []
    for g in range(groups):
        for j in range(rng.randint(1, most_rollouts)):
            turns = rng.randint(1, most_turns)
            penalty = [rng.choice([0.0, 0.0, 0.1]) for _ in range(turns)]
            success = rng.random() < 0.5
            episodes.append(
                Episode(
                    group=f"task{g}",
                    key=f"rollout{j}",  # repeats in other groups
                    tokens=[[rng.uniform(0, 2) for _ in range(rng.randint(1, 7))] for _ in range(turns)],
                    reward=[rng.choice([0.0, 0.0, 1.0, -0.5]) for _ in range(turns)],
                    penalty=penalty,
                    anchor=[f"room {rng.randint(0, 3)} of the house" for _ in range(turns)],
                    score=1.25 if g == 1 else 10.0 * success - sum(penalty),
                    success=success,
                )
            )
    return episodes


def lay_out(
    episodes: list[Episode],
    layout: str,
    *,
    shuffle: int | None = None,
    padding: int = 0,
    extra_width: int = 0,
) -> Batch:
    """Rows of ``episodes``, "step-wise" or "one-row"; at the end ``padding`` copies of rows, as in verl."""
    if layout == "step-wise":
        pieces = [(e, i, [i]) for e in episodes for i in range(len(e.tokens))]
    else:
        pieces = [(e, 0, list(range(len(e.tokens)))) for e in episodes]
    if shuffle is not None:
        random.Random(shuffle).shuffle(pieces)
    real = len(pieces)
    pieces = pieces + pieces[:padding]
    entropy, mask = _tokens(pieces, real, extra_width)
    junk = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30])
    garbage = torch.where(mask, entropy, junk[torch.arange(mask.numel()).view(mask.shape) % 4])
    rows = {
        "group_R": [e.group for e, _, _ in pieces],
        "trajectory_R": [e.key for e, _, _ in pieces],
        "position_R": [position for _, position, _ in pieces],
        "padding_R": [row >= real for row in range(len(pieces))],
        "score_R": torch.tensor([e.score if which[-1] == len(e.tokens) - 1 else 0.0 for e, _, which in pieces]),
        "success_R": [e.success for e, _, _ in pieces],
        "turn_fields": [[e.fields(i) for i in which] for e, _, which in pieces],
    }
    return Batch(entropy, mask, rows, garbage)


def _tokens(pieces: list, real: int, extra_width: int) -> tuple[torch.Tensor, torch.Tensor]:
    gap = 2  # observation tokens after a turn
    width = max(sum(len(e.tokens[i]) + gap for i in which) for e, _, which in pieces) + extra_width
    entropy = torch.zeros(len(pieces), width)
    mask = torch.zeros(len(pieces), width, dtype=torch.bool)
    for row, (episode, _, which) in enumerate(pieces[:real]):
        at = 0
        for i in which:
            values = torch.tensor(episode.tokens[i])
            entropy[row, at : at + len(values)], mask[row, at : at + len(values)] = values, True
            at += len(values) + gap
    return entropy, mask
