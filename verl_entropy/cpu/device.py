# SPDX-License-Identifier: Apache-2.0
"""The device module of the CPU platform: ``torch.cpu`` plus the calls of ``torch.cuda`` that verl makes.

Memory is that of the process (resident set) and of the machine, in bytes, so that
``perf/max_memory_allocated_gb`` means something. Names that are not defined here come from ``torch.cpu``.
"""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import torch

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""getrusage counts bytes on macOS and KiB on Linux."""


class CpuDeviceId(str):
    """What ``get_device_id()`` returns on a CPU.

    verl passes a device id to ``tensor.to``, where an integer would mean an accelerator, and formats it into
    ``f"{device_name}:{device_id}"``, where "cpu" would not parse: so this is the string "cpu" that formats as
    "0".
    """

    def __format__(self, spec: str) -> str:
        return format(0, spec)

    def __int__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0


def is_available() -> bool:
    """False: verl asks this before it empties the caches of an accelerator, and there is none."""
    return False


def get_device_name(device: Any = None) -> str:
    return "CPU"


def empty_cache() -> None:
    pass


def memory_allocated(device: Any = None) -> int:
    return psutil.Process().memory_info().rss


def memory_reserved(device: Any = None) -> int:
    return memory_allocated()


def max_memory_allocated(device: Any = None) -> int:
    # The kernel updates the peak now and then, so it can be behind the present.
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT, memory_allocated())


def max_memory_reserved(device: Any = None) -> int:
    return max_memory_allocated()


def reset_peak_memory_stats(device: Any = None) -> None:
    """The kernel keeps the peak of a process for its whole life."""


def reset_accumulated_memory_stats(device: Any = None) -> None:
    pass


def mem_get_info(device: Any = None) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def get_device_properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(name="CPU", total_memory=psutil.virtual_memory().total)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    pass


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


def __getattr__(name: str) -> Any:
    return getattr(torch.cpu, name)
