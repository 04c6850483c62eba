# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.prepare WORLD FOLDER SEED``: data and warm start of a seed, once, in a process of its own.

torch and MKL choose their kernels by the processor and once a process, and these add in another order: a warm start that is trained with
them ends as another policy on another processor. With KERNELS it is the same on all of x86. On a card the process also gives back what
torch took of it, which the runs need.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from bench.plan import WORLDS

KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def prepare(world: str, folder: Path, seed: int) -> None:
    """Run this module; raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "bench.prepare", world, str(folder), str(seed)]
    if status := subprocess.run(command, env=os.environ | KERNELS).returncode:
        raise RuntimeError(f"the data and warm start of seed {seed} in {folder} ended with {status}; what it said is above")


if __name__ == "__main__":
    importlib.import_module(WORLDS[sys.argv[1]].module).prepare(Path(sys.argv[2]), int(sys.argv[3]))
