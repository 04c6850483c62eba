# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are there completely or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(*paths: Path, flush: bool = True) -> Iterator[list[Path]]:
    """A temporary path beside each of ``paths`` to write to; all take their names when the block ends, none after an error.

    ``flush``: wait until the content is on the disk before (survives a power cut; a full disk shows here).
    """
    mark = f"{os.getpid()}-{threading.get_ident()}"
    temporary = [path.with_name(f".{path.name}.{mark}.tmp") for path in paths]
    try:
        yield temporary
        for part in temporary if flush else ():
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
        for part, path in zip(temporary, paths, strict=True):
            os.replace(part, path)
    finally:  # a full disk must not also keep the parts
        for part in temporary:
            part.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes, flush: bool = True) -> None:
    """Write ``data`` so that ``path`` is the old file or the whole new one, never a part."""
    with replacing(path, flush=flush) as (temporary,):
        temporary.write_bytes(data)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to make and fill, beside ``path``, that takes this name when the block ends; after an error it is removed."""
    partial = path.with_name(path.name + ".partial")
    if partial.exists():  # of a process that was killed
        shutil.rmtree(partial)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(path)
