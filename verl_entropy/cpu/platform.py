# SPDX-License-Identifier: Apache-2.0
"""The platform ``cpu`` for verl's ``PlatformRegistry``, selected by ``VERL_PLATFORM=cpu`` only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from verl_entropy.cpu import device as cpu_device
from verl_entropy.cpu.device import CpuDeviceId


class PlatformCPU(PlatformBase):
    """Every method of ``PlatformBase`` for a machine without an accelerator."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return cpu_device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False, so that verl's detection never picks the CPU by itself: a run on a GPU machine stays on the
        GPU.
        """
        return False

    def current_device(self) -> CpuDeviceId:
        return CpuDeviceId("cpu")

    def device_count(self) -> int:
        return cpu_device.device_count()

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        """Resource pools of verl count nothing but GPU and NPU, so a CPU run declares one logical GPU per
        rank.
        """
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def register() -> None:
    """Make ``VERL_PLATFORM=cpu`` known to verl. To be called at plugin load, before anything asks for the
    platform.
    """
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
