# SPDX-License-Identifier: Apache-2.0
"""What every result file of this folder says of the machine and the software.

``python3 tests/gpu/host.py FILE [COMMAND...]`` writes it as JSON, with the command that it stands for.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

PACKAGES = ("torch", "verl", "vllm", "transformers", "triton", "verl-entropy")
ROOT = Path(__file__).resolve().parents[2]


def describe(command: Sequence[str] | None = None) -> dict:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    cards = torch.cuda.device_count()
    return {
        "device": torch.cuda.get_device_name() if cards else platform.machine(),
        "cards": cards,
        "versions": versions,
        "commit": commit(),
        "command": " ".join(map(_placeless, " ".join(sys.argv if command is None else command).split())),
    }


def _placeless(word: str) -> str:
    """A path of this checkout from its root, any other absolute one by its name: where a machine keeps things says nothing."""
    name, equals, value = word.rpartition("=")
    path = Path(value)
    if not path.is_absolute():
        return word
    return name + equals + (path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name)


def commit() -> str | None:
    """The checkout's commit; the file COMMIT stands for it where the history did not travel."""
    here = Path(__file__).parent
    asked = subprocess.run(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return asked.stdout.strip()
    note = here / "COMMIT"
    return note.read_text().strip() if note.is_file() else None


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(describe(sys.argv[2:]), indent=1) + "\n")
