# SPDX-License-Identifier: Apache-2.0
"""What verl's trainers do alike with our state: it is saved and loaded with their checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.common import state


def wrap(trainer_cls: type, run_of: Callable[[Any], state.Run]) -> None:
    """Wrap ``_save_checkpoint`` and ``_load_checkpoint``; ``run_of(trainer)`` is its plan and state."""
    original_save, original_load = trainer_cls._save_checkpoint, trainer_cls._load_checkpoint  # type: ignore[attr-defined]

    @functools.wraps(original_save)
    def _save_checkpoint(self):
        run = run_of(self)
        if run.plan.active:
            folder = state.step_folder(self.config.trainer.default_local_dir, self.global_steps)
            state.save(run, folder, int(self.global_steps))
        return original_save(self)

    @functools.wraps(original_load)
    def _load_checkpoint(self):
        run = run_of(self)
        try:
            folder = state.resume_folder(OmegaConf.to_container(self.config.trainer, resolve=True))
            if folder is not None:
                state.load(run, folder)
            if run.diagnostics is not None:
                run.diagnostics.open(self.config, resumed=folder is not None)
        except ConfigError as error:
            raise SystemExit(f"[verl-entropy] configuration error: {error}") from None
        return original_load(self)

    trainer_cls._save_checkpoint, trainer_cls._load_checkpoint = _save_checkpoint, _load_checkpoint  # type: ignore[attr-defined]
