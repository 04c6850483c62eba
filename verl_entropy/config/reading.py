# SPDX-License-Identifier: Apache-2.0
"""Whether a configuration is composed only to be read, as ``verl-entropy validate`` does, and not to train."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

ACTIVE = False


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Inside, what is composed is only read: the guard against an absent plugin says nothing."""
    global ACTIVE
    before, ACTIVE = ACTIVE, True
    try:
        yield
    finally:
        ACTIVE = before
