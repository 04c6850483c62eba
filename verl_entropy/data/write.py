# SPDX-License-Identifier: Apache-2.0
"""Parquet files that are there completely or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path


def write_parquet(rows: Sequence[dict], path: Path) -> None:
    """Write ``rows`` to ``path``; a file of that name is replaced only by a complete one."""
    import pandas as pd

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(list(rows)).to_parquet(partial)
        with open(partial, "rb+") as file:  # on disk before it takes the name: a full disk shows here
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise ValueError(
            f"--out: {path} cannot be written: {_reason(error)}. Free some space or choose another --out."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
