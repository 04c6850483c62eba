# SPDX-License-Identifier: Apache-2.0
"""The import contracts of ``.importlinter`` find what they are for; tests/run.sh checks that the package keeps them."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = {
    "methods know batches": ("methods/transforms/ea.py", "from verl_entropy.config import plan  # noqa: F401"),
    "no room outside methods knows a method by name": (
        "hosts/common/loss_side.py",
        "from verl_entropy.methods.losses import steer  # noqa: F401",
    ),
    "a configuration is read without torch": ("config/plan.py", "import torch  # noqa: F401"),
    "what hosts share knows none of them": (
        "hosts/common/state.py",
        "from verl_entropy.hosts.verl_engine import loss  # noqa: F401",
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="import-linter is not installed")
@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_import_breaks_its_contract(tmp_path, contract):
    shutil.copytree(ROOT / "verl_entropy", tmp_path / "verl_entropy", ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    file, line = PLANTED[contract]
    path = tmp_path / "verl_entropy" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    broken = [text for text in done.stdout.splitlines() if text.endswith("BROKEN")]
    assert done.returncode != 0 and any(text.startswith(contract) for text in broken), done.stdout[-2000:] + done.stderr[-1000:]
