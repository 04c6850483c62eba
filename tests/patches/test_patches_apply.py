# SPDX-License-Identifier: Apache-2.0
"""patches/apply.sh finds what it was given, applies a series whole or not at all, and takes it back to the last byte."""

from __future__ import annotations

import os
import shutil

import pytest
from patch_tools import CLEAN_ENV, SERIES, VERL, apply_sh, checkout, contents, copy_tree, git, touched


def test_apply_and_reverse(tree, series):
    before = contents(tree)
    done = apply_sh(tree)
    assert done.returncode == 0 and f"{series}: apply done" in done.stdout, done.stderr
    after = contents(tree)
    assert {f for f in before if before[f] != after[f]} == set(touched(series)) and before.keys() == after.keys()
    again = apply_sh(tree)
    assert again.returncode == 0 and "applied already" in again.stdout and contents(tree) == after
    back = apply_sh(tree, "--reverse")
    assert back.returncode == 0 and contents(tree) == before, back.stderr
    none = apply_sh("-R", tree)
    assert none.returncode == 0 and "is not applied" in none.stdout and contents(tree) == before


def test_check_writes_nothing(tree, series):
    before = contents(tree)
    assert "would apply cleanly" in apply_sh(tree, "--check").stdout and contents(tree) == before
    apply_sh(tree)
    after = contents(tree)
    assert "would reverse cleanly" in apply_sh(tree, "--reverse", "--check").stdout and contents(tree) == after


def test_the_package_folder_itself_is_a_target(tree, series):
    assert apply_sh(tree / "verl").returncode == 0
    assert f"{series} is applied already" in apply_sh(tree).stdout


def test_a_git_checkout_is_a_target_and_its_index_is_left_alone(tree, series):
    checkout(tree)
    assert apply_sh(tree).returncode == 0
    status = git(tree, "status", "--porcelain").stdout.splitlines()
    assert sorted(line[3:] for line in status) == touched(series) and all(line.startswith(" M") for line in status)
    assert apply_sh(tree, "--reverse").returncode == 0
    assert git(tree, "status", "--porcelain").stdout == ""


@pytest.mark.parametrize("kind", ["checkout", "installed"])
def test_a_dirty_target_is_refused(tree, series, kind):
    if kind == "checkout":
        checkout(tree)
    file = touched(series)[0]
    with (tree / file).open("a") as f:
        f.write("# mine\n")
    before = contents(tree)
    for flags in ([], ["--check"]):
        refused = apply_sh(tree, *flags)
        assert refused.returncode == 1 and file in refused.stderr and "Nothing changed" in refused.stderr
    assert contents(tree) == before


def test_committed_work_elsewhere_in_a_file_is_kept(tree, series):
    file = touched(series)[-1]
    (tree / file).write_text("# a line of a fork\n" + (tree / file).read_text())
    checkout(tree)
    before = contents(tree)
    done = apply_sh(tree)
    assert done.returncode == 0 and f"note: {file}" in done.stdout, done.stderr
    assert contents(tree)[file].startswith(b"# a line of a fork\n")
    assert apply_sh(tree, "--reverse").returncode == 0 and contents(tree) == before


def test_a_series_that_does_not_fit_to_its_last_hunk_changes_nothing(tree, series):
    """The first patches fit, the last one does not."""
    last = SERIES[series][-1].read_text()
    file = last.rsplit("+++ b/", 1)[1].split("\n", 1)[0]
    context = next(line[1:] for line in reversed(last.splitlines()) if line.startswith(" ") and line.strip())
    text = (tree / file).read_text()
    assert context in text
    (tree / file).write_text(text.replace(context, context + "  # changed"))
    checkout(tree)
    before = contents(tree)
    refused = apply_sh(tree)
    assert refused.returncode == 1 and SERIES[series][-1].name in refused.stderr and "Nothing changed" in refused.stderr
    assert contents(tree) == before


def test_a_partly_applied_series_is_refused_and_left(tree, series):
    git(tree, "apply", str(SERIES[series][0]))
    before = contents(tree)
    for flags in ([], ["--reverse"]):
        refused = apply_sh(tree, *flags)
        assert refused.returncode == 1 and "Nothing changed" in refused.stderr
    assert contents(tree) == before


@pytest.mark.parametrize("direction", [[], ["--reverse"]], ids=["apply", "reverse"])
def test_a_failure_while_writing_is_undone(tree, series, tmp_path, direction):
    """The second rename fails, as on a full or lost disk."""
    if direction:
        apply_sh(tree)
    real, count = shutil.which("mv"), tmp_path / "count"
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "mv"
    shim.write_text(f'#!/bin/sh\necho >>"{count}"\n[ "$(wc -l <"{count}")" -ne 2 ] && exec {real} "$@"\nexit 1\n')
    shim.chmod(0o755)
    before = contents(tree)
    failed = apply_sh(tree, *direction, env=CLEAN_ENV | {"PATH": f"{shim.parent}{os.pathsep}{CLEAN_ENV['PATH']}"})
    assert failed.returncode != 0 and "every file is as it was" in failed.stderr and count.read_text().count("\n") > 2
    assert contents(tree) == before


def test_files_shared_with_a_package_cache_are_replaced_not_written_through(tree, series, tmp_path):
    """uv and conda install hard links into their cache."""
    file = touched(series)[0]
    (tree / file).chmod(0o640)
    os.link(tree / file, tmp_path / "cached")
    cached = (tmp_path / "cached").read_bytes()
    assert apply_sh(tree).returncode == 0
    assert (tmp_path / "cached").read_bytes() == cached != (tree / file).read_bytes()
    assert (tree / file).stat().st_mode & 0o777 == 0o640


def test_an_environment_inside_somebody_elses_checkout_is_an_installed_package(tree, series):
    """git apply run in such a folder skips every file without a word."""
    (tree.parent / ".gitignore").write_text("site-packages/\n")
    checkout(tree.parent)
    before = contents(tree)
    assert apply_sh(tree).returncode == 0 and contents(tree) != before
    assert apply_sh(tree, "--reverse").returncode == 0 and contents(tree) == before


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0.dev", "0.3.1.dev"])
def test_another_version_is_refused(tmp_path, version):
    tree = copy_tree(VERL, tmp_path)
    (tree / "verl/version/version").write_text(version + "\n")
    before = contents(tree)
    refused = apply_sh(tree)
    assert refused.returncode == 1 and f"verl {version}" in refused.stderr and "796ed31" in refused.stderr
    assert contents(tree) == before


def test_a_target_without_verl_is_refused(tmp_path):
    for target in (tmp_path, tmp_path / "absent"):
        refused = apply_sh(target)
        assert refused.returncode == 1 and str(target) in refused.stderr


@pytest.mark.parametrize("arguments", [[], ["--force", "x"], ["x", "y"]], ids=["none", "unknown option", "two targets"])
def test_wrong_usage(arguments):
    wrong = apply_sh(*arguments)
    assert wrong.returncode == 2 and "apply.sh TARGET" in wrong.stderr
