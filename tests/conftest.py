# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the import path, so that tests of every promise can share ``math_batches``."""

import os
from pathlib import Path

import pytest

SLOW = ("engine", "cpu/test_cpu_engine.py", "env/test_conformance.py", "env/test_alfworld.py", "env/test_scienceworld.py")
"""Under this folder: what builds engines or starts simulators."""


@pytest.fixture(autouse=True)
def _choices_end_with_their_test():
    """A configuration of verl that is composed in a test tells the processes of its run what it chose, and no later ones."""
    before = os.environ.get("VERL_ENTROPY_CHOSEN")
    yield
    if before is None:
        os.environ.pop("VERL_ENTROPY_CHOSEN", None)
    else:
        os.environ["VERL_ENTROPY_CHOSEN"] = before


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        path = Path(item.path).relative_to(here).as_posix()
        if path.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
