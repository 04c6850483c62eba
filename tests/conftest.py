# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the import path, so that tests of every promise can share ``math_batches``."""

from pathlib import Path

import pytest

SLOW = ("engine", "cpu/test_cpu_engine.py", "env/test_conformance.py", "env/test_alfworld.py", "env/test_scienceworld.py")
"""Under this folder: what builds engines or starts simulators."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        path = Path(item.path).relative_to(here).as_posix()
        if path.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
