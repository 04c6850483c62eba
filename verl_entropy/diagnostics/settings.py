# SPDX-License-Identifier: Apache-2.0
"""Settings of the diagnostics; imports neither torch nor verl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verl_entropy.config.settings import ALGORITHM_PATH, ConfigError, parse, setting
from verl_entropy.diagnostics.phases import Phases
from verl_entropy.runs.runfile import RunSettings

PATH = f"{ALGORITHM_PATH}.diagnostics"
ACTIONS = ("none", "warn", "checkpoint", "stop")
"""The weakest first."""
ACTING = ("eruption", "runaway", "collapse", "template_collapse", "dead", "non_finite")
"""Events that have a setting ``on_<event>``."""
PROFILES = ("full", "compact")


@dataclass(frozen=True)
class RunFile(RunSettings):
    """Where the run file is written, and how much of it."""

    folder: str | None = setting(None, "folder of the run file; null: none is written")


@dataclass(frozen=True)
class Live:
    """Settings of the diagnostics (``algorithm.entropy.diagnostics``)."""

    enabled: bool = setting(
        True, "false: no diagnostics; setting any key of this section switches them on for a plain run of verl"
    )
    profile: str = setting(
        "full",
        "which metrics verl's loggers get: full: all; compact: some twenty of them, and flags only while they are not 0; the run file "
        "has all in both",
        choices=PROFILES,
    )
    costly_every: int = setting(
        10,
        "steps between two computations of the costly metrics (repeated sentences, representations, interference); the first "
        "step has them too; 0: never",
        ge=0,
    )
    sample_trajectories: int = setting(
        32, "trajectories, in whole prompt groups, whose representations and gradients are compared", ge=2, le=512
    )
    sample_tokens: int = setting(
        8, "tokens of each of them that enter the gradients (memory: all of them x vocabulary x 10 bytes)", ge=1, le=256
    )
    early_late: int = setting(10, "turns and tokens at each end of an episode that count as early and late (EPO, B.4.1)", ge=1)
    agreement_window: int = setting(50, "steps over which the signs of prediction and change are compared", ge=1)
    max_texts: int = setting(256, "responses per step that are searched for repeated sentences", ge=1)
    on_eruption: str = setting(
        "none",
        "what to do when an eruption is seen: warn; checkpoint: warn and save one after the step; stop: end the training after "
        "the step, with a checkpoint where trainer.save_freq is positive",
        choices=ACTIONS,
    )
    on_runaway: str = setting("none", "the same, when an eruption does not return or entropy rises steadily", choices=ACTIONS)
    on_collapse: str = setting("none", "the same, when entropy collapses", choices=ACTIONS)
    on_template_collapse: str = setting(
        "none",
        "the same, when responses repeat one another while entropy stands (duplication above template_share)",
        choices=ACTIONS,
    )
    on_dead: str = setting(
        "none", "the same, when a run stops learning: no gradient, or every group with equal returns", choices=ACTIONS
    )
    on_non_finite: str = setting("warn", "the same, when entropy, loss or gradient norm is not finite", choices=ACTIONS)
    template_share: float = setting(0.7, "duplication from which a run has collapsed to templates", gt=0.0, le=1.0)
    detector: Phases = field(default_factory=Phases, metadata={"doc": "settings of the detector of phases"})
    run_file: RunFile = field(default_factory=RunFile, metadata={"doc": "the run file"})

    def action_on(self, event: str) -> str:
        """What the settings ask for when ``event`` is seen; "none" for events without a setting."""
        return getattr(self, f"on_{event}") if event in ACTING else "none"

    def costly_at(self, step: int) -> bool:
        """Whether this step computes the costly metrics."""
        return self.enabled and self.costly_every > 0 and (step == 1 or step % self.costly_every == 0)


def _group(values: dict[str, Any], name: str, path: str, example: str) -> Mapping[str, Any] | None:
    section = values.pop(name, None)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{path}.{name}={section!r}: expected a group of settings, for example {path}.{name}.{example}.")
    return section


def read_live(values: Mapping[str, Any] | None, path: str = PATH) -> Live:
    """Settings from a plain mapping with the sections ``detector`` and ``run_file``; a wrong one raises ConfigError."""
    values = dict(values or {})
    detector = parse(Phases, _group(values, "detector", path, "window=30"), f"{path}.detector")
    run_file = parse(RunFile, _group(values, "run_file", path, "folder=run"), f"{path}.run_file")
    if detector.smooth % 2 == 0:
        raise ConfigError(f"{path}.detector.smooth={detector.smooth}: must be odd. Set it to {detector.smooth + 1}.")
    return replace(parse(Live, values, path), detector=detector, run_file=run_file)
