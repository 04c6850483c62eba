# SPDX-License-Identifier: Apache-2.0
"""Words to the user. Needs neither torch nor verl."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print to stderr: visible whatever verl's log level is."""
    print(f"[verl-entropy] {message}", file=sys.stderr, flush=True)
