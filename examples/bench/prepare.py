# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.prepare WORLD FOLDER SEED``: data and warm start of a seed, once, in a process of its own, with KERNELS as environment.

torch and MKL choose their kernels by the processor and once a process, and these add in another order: a warm start that is trained with
them ends as another policy on another processor. With KERNELS it is the same on all of x86. On a card the process also gives back what
torch took of it, which the runs need.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench.plan import WORLDS

KERNELS = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}

if __name__ == "__main__":
    importlib.import_module(WORLDS[sys.argv[1]].module).prepare(Path(sys.argv[2]), int(sys.argv[3]))
