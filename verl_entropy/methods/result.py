# SPDX-License-Identifier: Apache-2.0
"""What methods take and give beyond tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from verl_entropy.batch.turns import Packed, Turns, padded


@dataclass(frozen=True)
class TransformResult:
    """Advantages after a transform, the tokens that stay in the loss, and metrics."""

    advantages: Tensor | Packed
    """Changed ones packed; a transform that only drops tokens returns what it was given."""
    mask_RT: Tensor | None = None
    """bool [R, T] if the transform drops tokens, which leave the numerator and the denominator of the loss; None: no change."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Scalars by short name; reported as ``verl_entropy/<algorithm>/<name>``."""

    @property
    def advantages_RT(self) -> Tensor:
        """[R, T]. Changed advantages are fp32 and 0 outside the mask."""
        return padded(self.advantages)


@dataclass(frozen=True)
class RowScores:
    """A batch in which each row has a score of its own, as verl-agent's code scores it."""

    trajectories: Callable[[], Turns]
    """The turns of the trajectories, without tokens."""
    scored: Callable[[Tensor | None], Turns]
    """Rows as turns whose trajectories are one turn long; given (K,) values replace the rewards of the turns (GiGPO's returns)."""
