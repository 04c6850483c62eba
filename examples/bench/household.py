# SPDX-License-Identifier: Apache-2.0
"""The quickstart's household: its model, warm start, data and settings, without its checkpoints and run file."""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS
from verl_entropy.quickstart import __main__ as quickstart

TASK_STEPS = 200
"""Steps for which there are training tasks."""


def prepare(folder: Path, seed: int) -> None:
    """Data and warm-started model of a seed, made once."""
    quickstart.prepare(folder, seed, TASK_STEPS)


def words(folder: Path, seed: int, run: Path, steps: int, presets: tuple[str, ...]) -> list[str]:
    """Overrides for verl's trainer."""
    args = argparse.Namespace(preset=",".join(presets) or "none", steps=steps, seed=seed, overrides=[])
    return [
        *filter(None, quickstart.overrides(args, folder / f"assets-seed{seed}", run)),
        f"++{DIAGNOSTICS}.run_file.folder=null",
        f"++{DIAGNOSTICS}.costly_every=0",
    ]
