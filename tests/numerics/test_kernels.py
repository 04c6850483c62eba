# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels against fp64: on a GPU where there is one, else in Triton's interpreter (tests/run.sh installs it aside)."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def facts():
    aside = os.environ.get("VERL_ENTROPY_TRITON")
    if importlib.util.find_spec("triton") is None and not aside:
        pytest.skip("Triton is not installed")
    env = dict(os.environ)
    if not torch.cuda.is_available():
        env["TRITON_INTERPRET"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), aside]))
    command = [sys.executable, str(Path(__file__).with_name("kernel_facts.py"))]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_values_are_within_1e4_nats_of_fp64(facts):
    assert len(facts) == 6
    for fact in facts:
        assert fact["log_prob"] < 1e-4 and fact["entropy"] < 1e-4, fact


def test_the_gradient_is_right_to_the_rounding_of_its_dtype(facts):
    for fact in facts:
        assert fact["gradient"] < 1.0 and fact["finite"], fact


def test_a_row_without_a_distribution_has_no_entropy_and_no_gradient(facts):
    for fact in facts:
        assert fact["no_distribution"] == [-math.inf, 0.0, 0.0]
