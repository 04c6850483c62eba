# SPDX-License-Identifier: Apache-2.0
"""What every result file of this folder says of the machine and the software."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch

PACKAGES = ("torch", "verl", "vllm", "transformers", "triton", "verl-entropy")


def describe() -> dict:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {"device": torch.cuda.get_device_name(), "versions": versions, "commit": commit(), "command": " ".join(sys.argv)}


def commit() -> str | None:
    """The checkout's commit; the file COMMIT stands for it where the history did not travel."""
    here = Path(__file__).parent
    asked = subprocess.run(["git", "-C", str(here), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        return asked.stdout.strip()
    note = here / "COMMIT"
    return note.read_text().strip() if note.is_file() else None
