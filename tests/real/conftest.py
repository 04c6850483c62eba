# SPDX-License-Identifier: Apache-2.0
"""One folder of assets for all real runs."""

import pytest

pytest.importorskip("verl")
from runs import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("real"))
