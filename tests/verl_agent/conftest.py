# SPDX-License-Identifier: Apache-2.0
"""Tests of the verl-agent route. What needs verl-agent runs in a process of its own: its package is called verl, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 900


def verl_agent_home() -> Path:
    """The checkout named by VERL_AGENT_HOME, or skip with a line that says so."""
    home = os.environ.get("VERL_AGENT_HOME")
    if not home:
        pytest.skip("VERL_AGENT_HOME is not set (a checkout of verl-agent 796ed31): not run")
    return Path(home)


def environment(home: Path) -> dict[str, str]:
    """verl-agent first on the import path; then ours, then what was there (for its dependencies)."""
    package = Path(__import__("verl_entropy").__file__).parents[1]
    paths = [str(home), str(package), str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


@cache
def _run(script: str) -> dict:
    """What the script reports; {"skip": why} or {"failure": output} otherwise. A failing script runs once, too."""
    home = verl_agent_home()
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=LIMIT_S, cwd=HERE)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        return json.loads(lines[-1].removeprefix("RESULT "))
    missing = [line for line in done.stderr.splitlines() if line.startswith("ModuleNotFoundError")]
    if missing:
        return {"skip": f"verl-agent cannot be imported here ({missing[-1]}): not run"}
    return {"failure": f"{script} gave no result (rc {done.returncode}):\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"}


def _results(script: str) -> dict:
    found = _run(script)
    if "skip" in found:
        pytest.skip(found["skip"])
    assert "failure" not in found, found["failure"]
    return found


@pytest.fixture
def results():
    """Results of a script of this folder that runs with verl-agent; each script runs once."""
    return _results
