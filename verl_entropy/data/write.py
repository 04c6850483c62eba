# SPDX-License-Identifier: Apache-2.0
"""Parquet files that are there completely or not at all."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_entropy.files import replacing


def write_parquet(rows: Sequence[dict], path: Path) -> None:
    """Write ``rows`` to ``path``; a file of that name is replaced only by a complete one."""
    write_parquets({path: rows})


def write_parquets(files: Mapping[Path, Sequence[dict]]) -> None:
    """Write the rows of every path; no file takes its name before all of them are complete."""
    try:
        with replacing(*files) as partials:
            for (path, rows), partial in zip(files.items(), partials, strict=True):
                _write(rows, path, partial)
    except OSError as error:
        raise ValueError(
            f"--out: {path} cannot be written: {_reason(error)}. Free some space or choose another --out."
        ) from error


def _write(rows: Sequence[dict], path: Path, partial: Path) -> None:
    import pandas as pd

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder has this name")
    pd.DataFrame(list(rows)).to_parquet(partial)


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
