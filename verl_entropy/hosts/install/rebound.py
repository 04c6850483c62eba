# SPDX-License-Identifier: Apache-2.0
"""Names of a foreign module bound to other values for the time of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def rebound(module: ModuleType, **names: Any) -> Iterator[None]:
    """Bind ``names`` of ``module`` inside the block, for code that looks them up there; then as before, also after an error."""
    before = {name: getattr(module, name) for name in names}
    vars(module).update(names)
    try:
        yield
    finally:
        vars(module).update(before)
