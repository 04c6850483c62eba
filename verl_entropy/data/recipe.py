# SPDX-License-Identifier: Apache-2.0
"""Compose a recipe as ``python -m verl.trainer.main_ppo --config-dir RECIPES OVERRIDES`` would, without starting anything."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from verl_entropy.config import compose as composer
from verl_entropy.config.settings import ConfigError

TRAINERS = {"ppo": "ppo_trainer", "sft": "sft_trainer_engine"}
"""verl's primary configurations: of ``verl.trainer.main_ppo`` and of ``verl.trainer.sft_trainer``."""


def compose(overrides: Sequence[str], recipes: str | Path | None = None, trainer: str = "ppo") -> Any:
    """The composed configuration; ConfigError with the reason for an override that does not fit."""
    folders = [] if recipes is None else [_folder(recipes)]
    return composer.compose(overrides, folders=folders, name=TRAINERS[trainer])


def check(recipe: str, recipes: str | Path) -> None:
    """ConfigError unless ``recipe`` (group=name) is a file of the folder; Hydra would add a group unknown to it as a plain key."""
    folder, (group, _, name) = _folder(recipes), recipe.partition("=")
    file = folder / group / f"{name}.yaml"
    if group and name and file.is_file():
        return
    known = names(folder)
    close = difflib.get_close_matches(recipe, known, n=3)
    groups = ", ".join(dict.fromkeys(item.partition("=")[0] for item in known))
    fix = f"Did you mean {' or '.join(close)}?" if close else f"Give GROUP=NAME, with a group of these: {groups or 'none'}."
    raise ConfigError(f"--recipe={recipe}: no file {file}. {fix}")


def _folder(recipes: str | Path) -> Path:
    if not Path(recipes).is_dir():
        raise ConfigError(f"--recipes={recipes}: no such folder. It is the folder recipes/ of the checkout.")
    return Path(recipes)


def validate(config: Any) -> list[str]:
    """Run verl's own checks and ours on ``config`` as ``main_ppo`` does before Ray starts; lines about what it will do.

    ``config`` is changed as the run would change it. ConfigError says what is wrong.
    """
    from verl_entropy.hosts.verl_engine import driver, resolved

    found = resolved.check(config)
    if found.verl is not None:
        raise ConfigError(f"verl refuses the configuration: {found.verl}")
    lines = driver.banner(found.plan, config) if found.plan.active else ["nothing of verl-entropy is chosen"]
    return [*lines, *(text for text in found.warnings if text.startswith("note: "))]


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Look for models on this machine alone: the hub's retries take a minute and a half where it cannot be reached."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def not_here(config: Any, error: Exception) -> str | None:
    """What verl's last checks could not look at on this machine; None for every other error."""
    rollout, path = (OmegaConf.select(config, key) for key in ("actor_rollout_ref.rollout.name", "critic.model.path"))
    if rollout == "vllm" and importlib.util.find_spec("vllm") is None and "vllm" in str(error):
        return "note: vLLM is not installed here, so that verl could not ask it for its largest LoRA rank"
    if isinstance(error.__cause__, OSError) and "critic.model" in str(error):
        return f"note: {path} is not on this machine, so that verl could not look at the critic's model"
    return None


def names(recipes: str | Path) -> list[str]:
    """Every experiment of a recipes folder, as its override: ``seal/alfworld=grpo``."""
    found = []
    for path in sorted(Path(recipes).glob("*/*/*.yaml")):
        group = path.parent.relative_to(recipes).as_posix()
        if not group.startswith("parts/"):
            found.append(f"{group}={path.stem}")
    return found
