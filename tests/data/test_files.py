# SPDX-License-Identifier: Apache-2.0
"""Files and folders are there completely or not at all, whoever else writes and wherever an error comes."""

from __future__ import annotations

import threading

import pytest

from verl_entropy.files import new_folder, replacing, write_atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_error_leaves_the_old_files_and_no_part(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(a, b) as (part_a, part_b):
        part_a.write_text("new")
        part_b.write_text("ha")
        raise OSError("full")
    assert names(tmp_path) == ["a"] and a.read_text() == "old"


def test_no_file_takes_its_name_before_all_are_complete(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a", tmp_path / "b") as (part_a, _):
        part_a.write_text("new")  # and nothing for b
    assert names(tmp_path) == []


def test_threads_that_write_one_file_do_not_mix(tmp_path):
    def write(letter):
        for _ in range(20):
            write_atomic(tmp_path / "a", letter * 5000, flush=False)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["a"] and len(set((tmp_path / "a").read_bytes())) == 1


def test_a_folder_appears_when_it_is_filled(tmp_path):
    target = tmp_path / "model"
    (tmp_path / "model.partial").mkdir()  # of a process that was killed
    (tmp_path / "model.partial" / "half").touch()
    with pytest.raises(RuntimeError), new_folder(target) as partial:
        partial.mkdir()
        raise RuntimeError
    assert names(tmp_path) == []
    with new_folder(target) as partial:
        partial.mkdir()
        (partial / "whole").touch()
        assert not target.exists()
    assert names(tmp_path) == ["model"] and names(target) == ["whole"]
