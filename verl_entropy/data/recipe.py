# SPDX-License-Identifier: Apache-2.0
"""Compose a recipe as ``python -m verl.trainer.main_ppo --config-dir RECIPES OVERRIDES`` would, without starting anything."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from verl_entropy import compose as composer
from verl_entropy.config import ConfigError

TRAINERS = {"ppo": "ppo_trainer", "sft": "sft_trainer_engine"}
"""verl's primary configurations: of ``verl.trainer.main_ppo`` and of ``verl.trainer.sft_trainer``."""


def compose(overrides: Sequence[str], recipes: str | Path | None = None, trainer: str = "ppo") -> Any:
    """The composed configuration; ConfigError with the reason for an override that does not fit."""
    folders = [] if recipes is None else [Path(recipes)]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"--recipes={folder}: no such folder. It is the folder recipes/ of the checkout.")
    return composer.compose(overrides, folders=folders, name=TRAINERS[trainer])


def validate(config: Any) -> list[str]:
    """Run verl's own checks and ours on ``config`` as ``main_ppo`` does before Ray starts; lines about what it will do.

    ``config`` is changed as the run would change it. ConfigError says what is wrong.
    """
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils import config as verl_config

    from verl_entropy.glue import driver

    printed, notes = io.StringIO(), []
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verl_config.validate_config(
                config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
            )
    except SystemExit as stop:  # ours: "[verl-entropy] configuration error: ..."
        raise ConfigError(str(stop.code)) from None
    except (AssertionError, ValueError, TypeError, ImportError, OmegaConfBaseException, HydraException) as error:  # verl's
        notes.append(_not_here(config, error))
    chosen = driver.read_plan(config)
    return [*(driver.banner(chosen, config) if chosen.active else ["nothing of verl-entropy is chosen"]), *notes]


def _not_here(config: Any, error: Exception) -> str:
    """What verl's last checks could not look at on this machine; ConfigError for every other error."""
    rollout, path = config.actor_rollout_ref.rollout.name, config.critic.model.path
    if rollout == "vllm" and importlib.util.find_spec("vllm") is None and "vllm" in str(error):
        return "note: vLLM is not installed here, so that verl could not ask it for its largest LoRA rank"
    if isinstance(error.__cause__, OSError) and "critic.model" in str(error):
        return f"note: {path} is not on this machine, so that verl could not look at the critic's model"
    raise ConfigError(f"verl refuses the configuration: {error}") from error


def names(recipes: str | Path) -> list[str]:
    """Every experiment of a recipes folder, as its override: ``seal/alfworld=grpo``."""
    found = []
    for path in sorted(Path(recipes).glob("*/*/*.yaml")):
        group = path.parent.relative_to(recipes).as_posix()
        if not group.startswith("parts/"):
            found.append(f"{group}={path.stem}")
    return found
