# SPDX-License-Identifier: Apache-2.0
"""The CPU in the place of an accelerator for verl before 0.9, which has no platforms: functions of ``verl.utils.device``."""

from __future__ import annotations

from types import ModuleType

from verl_entropy.cpu import device as cpu_device

NAMES = (
    "get_device_name",
    "get_torch_device",
    "get_device_id",
    "get_nccl_backend",
    "get_resource_name",
    "is_torch_npu_available",
)


def patch(module: ModuleType) -> None:
    """Replace them in ``verl.utils.device``; a resource pool of verl counts GPUs, so a CPU run declares one a rank."""
    module.get_device_name = lambda: "cpu"
    module.get_torch_device = lambda: cpu_device
    module.get_device_id = lambda: cpu_device.CpuDeviceId("cpu")
    module.get_nccl_backend = lambda: "gloo"
    module.get_resource_name = lambda: "GPU"
    module.is_torch_npu_available = lambda check_device=True: False
