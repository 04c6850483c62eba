# SPDX-License-Identifier: Apache-2.0
"""The CPU in the place of an accelerator for verl before 0.9, which has no platforms: functions of ``verl.utils.device``, and those
of flash-attn that take padding away."""

from __future__ import annotations

from types import ModuleType

import torch

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


def _index_first_axis(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return values[indices]


def _pad_input(values: torch.Tensor, indices: torch.Tensor, batch: int, width: int) -> torch.Tensor:
    padded = values.new_zeros(batch * width, *values.shape[1:])
    padded[indices] = values
    return padded.view(batch, width, *values.shape[1:])


def _unpad_input(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    length_R = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(length_R.cumsum(0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[indices], indices, starts, int(length_R.max()), length_R


def patch_attention(module: ModuleType) -> None:
    """Replace what ``verl.utils.attention_utils`` takes from flash-attn, which no CPU has, by the same in torch."""
    module._get_attention_functions = lambda: (_index_first_axis, _pad_input, None, _unpad_input)
