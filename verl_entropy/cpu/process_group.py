# SPDX-License-Identifier: Apache-2.0
"""Process groups on a CPU.

verl builds the backend as ``"cpu:gloo,<device>:<backend>"``, which is ``"cpu:gloo,cpu:gloo"`` here; torch
refuses a device that is named twice. The wrappers below say ``"cpu:gloo"`` instead.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from types import ModuleType

BACKEND = "cpu:gloo"

_patched: set[int] = set()


def _ray_initialiser(original):
    @functools.wraps(original)
    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        return original(timeout_second=timeout_second, backend=backend or BACKEND)

    return initialize_global_process_group_ray


def _torchrun_initialiser(original):
    # This function of verl takes no backend, so it is replaced, not called.
    @functools.wraps(original)
    def initialize_global_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
        import torch.distributed

        torch.distributed.init_process_group(
            backend=BACKEND,
            timeout=timedelta(seconds=timeout_second),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )
        return tuple(int(os.environ[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))

    return initialize_global_process_group


def patch(distributed: ModuleType) -> None:
    """Wrap the initialisers of ``verl.utils.distributed``, before ``engine_workers`` imports them by name."""
    if id(distributed) in _patched:
        return
    _patched.add(id(distributed))
    distributed.initialize_global_process_group_ray = _ray_initialiser(distributed.initialize_global_process_group_ray)
    distributed.initialize_global_process_group = _torchrun_initialiser(distributed.initialize_global_process_group)
