# SPDX-License-Identifier: Apache-2.0
"""Other versions of verl, in short: every symbol there, the run without the plugin stopped, the recorded batch. `tests/matrix.sh` has
the whole."""

import subprocess

import pytest

pytest.importorskip("verl")
import matrix

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["0.7.1", "0.8.0", "0.9.0"])
def older(request, tmp_path_factory):
    """The steps of one version, in an environment over this one; skipped where that cannot be made."""
    try:
        python = matrix.environment(request.param)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no environment for verl {request.param}: {error}")
    folder = tmp_path_factory.getbasetemp() / "matrix"
    folder.mkdir(exist_ok=True)
    return matrix.Matrix(request.param, "RayPPOTrainer", python, folder)


def test_every_symbol_is_there(older):
    assert older.symbols() == "all there"


def test_without_the_plugin_a_run_that_chose_a_method_stops(older):
    assert older.absent() == "stops at start"


def test_the_recorded_batch_gives_the_numbers_of_this_verl(older):
    assert older.numbers().startswith("advantages ")
