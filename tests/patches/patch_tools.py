# SPDX-License-Identifier: Apache-2.0
"""Copies of verl (the installed one) and of verl-agent (the checkout in VERL_AGENT_HOME) to patch."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PATCHES = Path(__file__).resolve().parents[2] / "patches"
SERIES = {path.name: sorted(path.glob("*.patch")) for path in sorted(PATCHES.iterdir()) if path.is_dir()}
VERL, VERL_AGENT = "verl-0.9.1", "verl-agent-796ed31"
CLEAN_ENV = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"LC_ALL": "C"}


def stock_root(series: str) -> Path:
    """Folder that holds the unpatched package ``verl`` of a series; skips where it is not there."""
    if series == VERL:
        spec = importlib.util.find_spec("verl")
        root = Path(next(iter(spec.submodule_search_locations))).parent if spec else None
    else:
        home = os.environ.get("VERL_AGENT_HOME")
        root = Path(home) if home else None
    wanted = {VERL: "0.9.1", VERL_AGENT: "0.3.1.dev"}[series]
    version = root / "verl/version/version" if root else None
    if version is None or not version.is_file() or version.read_text().strip() != wanted:
        where = "an installed verl 0.9.1" if series == VERL else "a checkout of verl-agent 796ed31 in VERL_AGENT_HOME"
        pytest.skip(f"needs {where}")
    return root


def touched(series: str) -> list[str]:
    """Files that a series changes."""
    return sorted({f for p in SERIES[series] for f in re.findall(r"^\+\+\+ b/(.*)$", p.read_text(), re.M)})


def copy_tree(series: str, to: Path) -> Path:
    """The files that a series touches and those by which it is recognised."""
    root = stock_root(series)
    marks = ["verl/version/version", "verl/__init__.py"]
    marks += ["gigpo/core_gigpo.py", "agent_system/memory/__init__.py"] if series == VERL_AGENT else []
    for file in {*marks, *touched(series)}:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / file, to / file)
    return to


def git(where: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """git with a name and no settings of the user."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=where, env=CLEAN_ENV, capture_output=True, text=True, check=check)


def checkout(where: Path) -> Path:
    """Make a folder a git checkout with one commit."""
    git(where, "init", "-q")
    git(where, "add", "-A")
    git(where, "commit", "-qm", "base")
    return where


def apply_sh(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """Run ``patches/apply.sh``."""
    command = ["bash", str(PATCHES / "apply.sh"), *map(str, arguments)]
    return subprocess.run(command, env=env or CLEAN_ENV, capture_output=True, text=True, timeout=60, check=False)


def contents(where: Path) -> dict[str, bytes]:
    """Every file below a folder, without git's."""
    files = (p for p in sorted(where.rglob("*")) if p.is_file() and ".git" not in p.relative_to(where).parts)
    return {str(p.relative_to(where)): p.read_bytes() for p in files}
