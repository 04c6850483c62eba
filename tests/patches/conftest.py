# SPDX-License-Identifier: Apache-2.0
"""Each patch series in turn, and a tree to apply it to."""

from __future__ import annotations

from pathlib import Path

import pytest
from patch_tools import SERIES, copy_tree


@pytest.fixture(params=sorted(SERIES))
def series(request) -> str:
    """Each series in turn."""
    return request.param


@pytest.fixture
def tree(series, tmp_path) -> Path:
    """A clean copy of the files of a series, no git checkout."""
    return copy_tree(series, tmp_path / "site-packages")
