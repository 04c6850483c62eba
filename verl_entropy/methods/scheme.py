# SPDX-License-Identifier: Apache-2.0
"""What an agent loop asks a rollout method: the rules for one prompt's leaves. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TopLogProbs = Sequence[Sequence[float]]
"""Of each token the log-probs of the most likely words."""


@dataclass(frozen=True)
class Moment:
    """A turn at which a chain of turns may branch."""

    entropy: float
    """What ``Scheme.entropy`` measured of the turn."""
    first: float
    """What it measured of the first turn."""
    streak: int
    """Decisions in a row before this one that branched."""
    draw: float
    """Uniform in [0, 1), seeded by the data row, the step, the session and the turn."""


@dataclass(frozen=True)
class Scheme:
    """The rules of a rollout method for one prompt: how many sessions start as roots, and when a chain branches."""

    roots: Callable[[int], int]
    """n -> sessions that start from the first observation, 1 to n; the others wait for a branch."""
    entropy: Callable[[Sequence[float], TopLogProbs | None], float]
    """Log-probs of a turn's sampled tokens, and those of the most likely words where the sampler gives them -> its entropy."""
    branches: Callable[[Moment], bool]
    beam: int
    """Leaves that go on from a branch point, the chain itself among them."""
    late: bool
    """A branch goes on after the turn that was measured; False: from the state before it, so that the turn itself is sampled anew."""
    streak_of_prompt: bool
    """``Moment.streak`` counts rounds of the prompt; False: decisions of the chain."""
    refill_one: bool
    """When no chain is left, one waiting session starts as a root; False: all of them."""
    top: int
    """Words whose log-probs the sampler is asked for at each token; 0: none."""
    first: float | None
    """Entropy of the first turn for every chain; None: each chain's own."""
    seed: int
