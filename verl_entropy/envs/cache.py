# SPDX-License-Identifier: Apache-2.0
"""Files that environments make once: in ``$VERL_ENTROPY_CACHE``, else the user's cache folder; written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from verl_entropy.files import write_atomic


def folder() -> Path:
    """The root of the cache (not created yet)."""
    base = os.environ.get("VERL_ENTROPY_CACHE")
    if base:
        return Path(base).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl_entropy"


def write(path: Path, text: str) -> None:
    """Write ``text`` so that a reader, or a crash, finds the old file or the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), flush=False)
    except OSError as error:
        message = f"{error.strerror}; free space there, or set VERL_ENTROPY_CACHE to another folder"
        raise OSError(error.errno, message, str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """``write`` as JSON."""
    write(path, json.dumps(value))


def read_json(path: Path) -> Any:
    """What ``write`` left there, or None if there is nothing readable."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
