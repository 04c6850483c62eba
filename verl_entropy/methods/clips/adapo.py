# SPDX-License-Identifier: Apache-2.0
"""ADAPO: the upper clip bound of any clipped loss follows the entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_entropy.methods.common.controllers import controlled
from verl_entropy.methods.common.hold import Hold
from verl_entropy.methods.method import Clip, Metric, setting


@dataclass(frozen=True)
class Adapo:
    """ADAPO: the upper clip bound moves towards the target entropy ("Entropy-Preserving Reinforcement Learning", App. B)."""

    loss: str = setting("vanilla", "loss whose upper bound moves, when selected as loss_mode=adapo")
    eps_high: float = setting(0.28, "first upper bound", gt=0.0)
    eps_min: float = setting(0.2, "lower bound of it", gt=0.0)
    eps_max: float = setting(0.3, "upper bound of it", gt=0.0)
    factor: float = setting(1.01, "factor of the controller's step", gt=1.0)
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)


def _bound(said: Mapping[str, Any]) -> float:
    return float(said["eps_high"])


_BOUNDED = ("eps_high", "eps_min", "eps_max")
_HOLD = Hold(unit=0.01, signed=False)

ADAPO = Clip(
    name="adapo",
    summary="moves the upper clip bound of any loss towards the entropy of the first iteration",
    when="DAPO's clip-higher drives entropy too high or not enough",
    cost="none",
    source="REPO paper, App. B",
    settings=Adapo,
    function="verl_entropy.methods.common.controllers.TargetEntropyController",
    needs=frozenset({"entropy"}),
    bounded=_BOUNDED,
    hold=_HOLD,
    steers=True,
    metrics={"eps_high": Metric("upper clip bound", "number", "REPO paper, App. B")},
    state=controlled("adapo", _BOUNDED, hold=_HOLD),
    apply=_bound,
)
