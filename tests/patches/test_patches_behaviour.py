# SPDX-License-Identifier: Apache-2.0
"""With a series applied the real functions hand out what they promise, and whoever does not ask gets what they got, bit for bit.

A process with the patched copy on its path runs verl's own functions beside the stock ones (``verl_facts.py``,
``agent_facts.py``) and says which promises hold; a test each here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patch_tools import VERL, VERL_AGENT, apply_sh, stock_root

HERE = Path(__file__).parent


def copy_package(series: str, to: Path) -> Path:
    """Everything that is imported, patched."""
    root = stock_root(series)
    for package in ["verl"] if series == VERL else ["verl", "gigpo", "agent_system"]:
        shutil.copytree(root / package, to / package, ignore=shutil.ignore_patterns("env_package"))
    done = apply_sh(to)
    assert done.returncode == 0, done.stderr
    return to


def run(script: str, argument: Path, *path: Path, plugins: str = "none") -> tuple[dict, str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "VERL_USE_EXTERNAL_PLUGINS": plugins}
    command = [sys.executable, str(HERE / script), str(argument)]
    out = subprocess.run(command, env=env, cwd=path[0], capture_output=True, text=True, timeout=300, check=False)
    assert out.returncode == 0, out.stderr[-4000:]
    result = json.loads(out.stdout.splitlines()[-1])
    assert result["file"].startswith(str(path[0]))  # the patched copy ran
    return result, out.stderr


@pytest.fixture(scope="module")
def verl(tmp_path_factory):
    root = copy_package(VERL, tmp_path_factory.mktemp("verl"))
    return run("verl_facts.py", stock_root(VERL) / "verl", root)[0]


@pytest.mark.parametrize(
    "fact", ["estimators", "estimator_arguments", "trainer", "policy_losses", "loss_arguments", "plain_path"]
)
@pytest.mark.slow
def test_verl(verl, fact):
    assert len(verl[fact]) >= 4
    assert [name for name, holds in verl[fact].items() if holds is not True] == []


def entry_point(folder: Path, name: str, body: str) -> None:
    """An installed distribution with one entry point for verl."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[verl.plugins]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(body)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    root = copy_package(VERL_AGENT, tmp_path_factory.mktemp("verl_agent"))
    plugins = tmp_path_factory.mktemp("plugins")
    for name, body in {"probe_works": "", "probe_breaks": "raise OSError('no disk')", "probe_other": ""}.items():
        entry_point(plugins, name, body)
    return run("agent_facts.py", stock_root(VERL_AGENT), root, plugins, plugins="probe_works,probe_breaks")


@pytest.mark.parametrize(
    "fact", ["entropy_order", "built_in_losses", "registered_loss", "built_in_estimators", "row_ids", "plugins", "plain_path"]
)
def test_verl_agent(agent, fact):
    found = agent[0][fact]
    assert len(found) >= 2
    assert [name for name, holds in found.items() if holds is not True] == []


def test_verl_agent_estimators_by_name(agent):
    found = dict(agent[0]["registered_estimator"])
    assert found.pop("critic") == {"probe": False, "with_critic": True, "gae": True, "grpo": False}
    assert found.pop("unknown name") == "NotImplementedError"
    assert [name for name, holds in found.items() if holds is not True] == []


def test_verl_agent_reports_a_plugin_that_fails_and_goes_on(agent):
    assert "plugin probe_breaks failed to load: OSError('no disk')" in agent[1]
