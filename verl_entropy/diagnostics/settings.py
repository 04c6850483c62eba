# SPDX-License-Identifier: Apache-2.0
"""Settings of the diagnostics; imports neither torch nor verl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verl_entropy.config import ConfigError, parse, setting
from verl_entropy.diagnostics.phases import Phases

ACTIONS = ("none", "warn", "checkpoint", "stop")


@dataclass(frozen=True)
class Live:
    """Settings of the diagnostics of every step."""

    early_late: int = setting(10, "turns and tokens at each end of an episode that count as early and late (EPO, B.4.1)", ge=1)
    agreement_window: int = setting(50, "steps over which the signs of prediction and change are compared", ge=1)
    max_texts: int = setting(256, "responses per step that are searched for repeated sentences", ge=1)
    on_eruption: str = setting("none", "what to do when an eruption is seen", choices=ACTIONS)
    detector: Phases = field(default_factory=Phases, metadata={"doc": "settings of the detector of phases"})


def read_live(values: Mapping[str, Any] | None, path: str) -> Live:
    """Settings from a plain mapping with the section ``detector`` in it; a wrong one raises ConfigError."""
    values = dict(values or {})
    section = values.pop("detector", None)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{path}.detector={section!r}: expected a group of settings, for example {path}.detector.window=30.")
    detector = parse(Phases, section, f"{path}.detector")
    if detector.smooth % 2 == 0:
        raise ConfigError(f"{path}.detector.smooth={detector.smooth}: must be odd. Set it to {detector.smooth + 1}.")
    return replace(parse(Live, values, path), detector=detector)
