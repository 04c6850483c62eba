# SPDX-License-Identifier: Apache-2.0
"""The run file: whole steps after any kill, tolerant reading, bounded size."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from verl_entropy.runs.runfile import RunFileError, RunReader, RunSettings, RunWriter

FAST = RunSettings(flush=False, samples_every=2, join_every=4)


def write(folder, steps, settings=FAST, **more):
    with RunWriter(folder, settings, config={"a": {"b": 1}}) as writer:
        for step in steps:
            turns = {"turn": [0, 1], "entropy": [step + 0.5, step + 0.25]}
            writer.step(step, {"x": step / 3, "y": -step, **more}, turns, [{"turns": [{"text": f"s{step}"}], "score": 1.0}])
    return folder


def test_what_is_written_is_read(tmp_path):
    run = RunReader(write(tmp_path / "run", range(1, 11), nan=math.nan, word="text"))
    assert run.steps.tolist() == list(range(1, 11)) and run.problems == [] and run.config == {"a": {"b": 1}}
    assert run.series("x")[1].tolist() == [step / 3 for step in range(1, 11)]
    assert np.isnan(run.series("nan")[1]).all() and not run.has("nan") and not run.has("word")
    turns = run.turns()
    assert turns["step"].tolist() == [s for s in range(1, 11) for _ in range(2)]
    assert turns["entropy"].tolist() == [s + d for s in range(1, 11) for d in (0.5, 0.25)]
    assert [step for step, _ in run.samples()] == [2, 4, 6, 8, 10]
    assert run.turns(3, 4)["step"].tolist() == [3, 3, 4, 4]


def test_every_cut_of_the_last_lines_loses_at_most_one_step(tmp_path):
    write(tmp_path, range(1, 6))
    data = (tmp_path / "steps.jsonl").read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(ends[2], len(data) + 1):
        (tmp_path / "steps.jsonl").write_bytes(data[:cut])
        run = RunReader(tmp_path)
        whole = sum(end <= cut for end in ends)
        assert run.steps.tolist() == list(range(1, whole + 1)) and run.problems == []
        assert run.under_way == (cut not in ends)


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_writer_goes_on_after_a_kill(tmp_path, cut):
    write(tmp_path, range(1, 6))
    path = tmp_path / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    (tmp_path / "turns" / ".step-000000005.parquet.1.tmp").write_bytes(b"half")
    write(tmp_path, [5, 6])
    run = RunReader(tmp_path)
    assert run.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.turns()["step"].tolist() == [s for s in range(1, 7) for _ in range(2)]
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_killed_process_loses_at_most_the_last_step(tmp_path):
    program = (
        "import sys; from verl_entropy.runs.runfile import *\n"
        "w = RunWriter(sys.argv[1], RunSettings(samples_every=3, join_every=4))\n"
        "for i in range(1, 10**6):\n"
        "    w.step(i, {'x': i, 'pad': 0.1}, {'e': [i] * 50}, [{'turns': [{'text': 'a' * 999}]}]); print(i, flush=True)\n"
    )
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    )
    for _ in range(30):
        told = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    rest = child.communicate()[0].split()
    told = max([told, *map(int, rest)])
    run = RunReader(tmp_path)
    assert run.steps.tolist() == list(range(1, int(run.steps[-1]) + 1)) and told <= run.steps[-1] <= told + 1
    assert sorted(set(run.turns()["step"].tolist())) == run.steps.tolist() and run.problems == []


def test_a_resumed_run_replaces_its_later_steps(tmp_path):
    write(tmp_path, range(1, 12))
    with RunWriter(tmp_path, FAST) as writer:
        for step in (6, 7):
            writer.step(step, {"x": 100.0 + step}, {"turn": [0], "entropy": [float(step)]})
    run = RunReader(tmp_path)
    assert run.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.series("x")[1][-2:].tolist() == [106.0, 107.0] and "y" in run.keys and len(run.series("y")[0]) == 5
    assert run.turns()["step"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7]
    assert [step for step, _ in run.samples()] == [2, 4]


BAD_LINES = {
    "not JSON": b"\x00\xff{{{",
    "not an object": b"[1, 2]",
    "no step number": b'{"step": "seven", "metrics": {}}',
    "negative": b'{"step": -4, "metrics": {}}',
    "metrics": b'{"step": 3, "metrics": 5}',
    "deep": b"[" * 100_000,
    "huge step": b'{"step": 1e400, "metrics": {}}',
    "newer": b'{"v": 9, "step": 3, "metrics": {"x": 3}}',
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_costs_itself_only(tmp_path, line):
    write(tmp_path, range(1, 6))
    path = tmp_path / "steps.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:], b""]))
    run = RunReader(tmp_path)
    assert run.steps.tolist() == [1, 2, 3, 4, 5] and run.series("x")[1][2] == 1.0 and len(run.problems) == 1


def test_mixed_up_lines_are_sorted_and_told(tmp_path):
    write(tmp_path, range(1, 6))
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(sorted(path.read_bytes().splitlines(keepends=True), reverse=True)))
    run = RunReader(tmp_path)
    assert run.steps.tolist() == [1, 2, 3, 4, 5] and "sorted by step" in run.problems[0]


def test_verl_file_logger_is_read(tmp_path):
    lines = [{"step": s, "data": {"actor/entropy": s / 7, "n": s}} for s in (1, 2)] + [
        {"step": 2, "data": {"val-core/a/acc/mean@1": 1}}
    ]
    (tmp_path / "experiment.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for path in (tmp_path, tmp_path / "experiment.jsonl"):
        run = RunReader(path)
        assert run.name == "experiment" and run.steps.tolist() == [1, 2]
        assert run.keys == ["actor/entropy", "n", "val-core/a/acc/mean@1"]


def test_sessions_of_a_launcher_are_one_run(tmp_path):
    """A second start makes a second metrics file: it goes on from step 4, whose validation it logs again."""

    def session(time, steps, value, end="\n"):
        lines = [json.dumps({"step": s, "data": {"actor/entropy": value, f"of/{time}": s}}) for s in steps]
        (tmp_path / f"metrics-20261128-{time}.jsonl").write_text("\n".join(lines) + end)

    session("120000", range(1, 7), 1.0, end='\n{"step": 7, "da')
    assert RunReader(tmp_path).under_way
    session("120001", [], 0.0)
    session("120002", range(4, 6), 0.5)
    run = RunReader(tmp_path)
    steps, entropy = run.series("actor/entropy")
    assert run.steps.tolist() == steps.tolist() == [1, 2, 3, 4, 5] and entropy.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5]
    assert run.series("of/120000")[0].tolist() == [1, 2, 3, 4] and not run.under_way and not run.problems
    (tmp_path / "other.jsonl").write_text("")
    with pytest.raises(RunFileError, match="Give a run's folder"):
        RunReader(tmp_path)


def test_broken_arrays_and_samples_are_left_out(tmp_path):
    write(tmp_path, range(1, 4))
    (tmp_path / "turns" / "step-000000002.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "samples" / "step-000000002.json").write_text('{"samples": 4}')
    (tmp_path / "run.json").write_text('{"format": 77, "config": []}')
    run = RunReader(tmp_path)
    assert run.turns()["step"].tolist() == [1, 1, 3, 3] and list(run.samples()) == []
    assert [word for word in ("format 77", "unreadable", "no list") if any(word in p for p in run.problems)] == [
        "format 77",
        "unreadable",
        "no list",
    ]


def test_arrays_that_cannot_be_joined_are_an_io_error_to_the_writer_and_left_out_by_the_reader(tmp_path):
    """The trainer gives up a run file on an OSError; any other error would end the training."""
    with RunWriter(tmp_path, RunSettings(flush=False, join_every=3)) as writer:
        for step in (1, 2):
            writer.step(step, {}, {"entropy": [0.5]})
        broken = tmp_path / "turns" / "step-000000001.parquet"
        broken.write_bytes(b"PAR1 not really")
        with pytest.raises(OSError, match="step-000000001"):
            writer.step(3, {}, {"entropy": [0.5]})
        broken.unlink()
    with RunWriter(tmp_path, RunSettings(flush=False, join_every=3)) as writer, pytest.raises(OSError, match="different kinds"):
        for step in (4, 5, 6):
            writer.step(step, {}, {"entropy": ["a word"]})
    run = RunReader(tmp_path)
    assert run.turns()["step"].tolist() == [2] and any("unreadable" in p for p in run.problems)


def test_files_of_others_are_left_alone(tmp_path):
    write(tmp_path, range(1, 4))
    foreign = [tmp_path / "samples" / "step-x.json", tmp_path / "turns" / "rows-a.parquet"]
    for path in foreign:
        path.write_text("mine")
    write(tmp_path, [2])
    assert all(path.read_text() == "mine" for path in foreign) and RunReader(tmp_path).steps.tolist() == [1, 2]


def test_sizes_are_bounded(tmp_path):
    settings = RunSettings(
        flush=False, samples_every=1, max_samples=2, max_tokens=10, max_chars=1000, samples_mb=0.02, max_turns=100
    )
    sample = {"turns": [{"text": "x" * 10**6, "tokens": ["t"] * 8, "entropy": [0.5] * 8}] * 3}
    with RunWriter(tmp_path, settings) as writer:
        for step in range(40):
            writer.step(step, {}, {"e": np.arange(5000.0)}, [sample] * 5)
    files = list((tmp_path / "samples").iterdir())
    run = RunReader(tmp_path)
    stored = [samples for _, samples in run.samples()]
    assert sum(f.stat().st_size for f in files) <= 0.02e6 and {len(s) for s in stored} == {2}
    assert [len(t["tokens"]) for t in stored[0][0]["turns"]] == [8, 2, 0] and stored[0][0]["cut_tokens"] == 14
    assert len(run.turns(3, 3)["e"]) == 100 and run.turns(3, 3)["e"][-1] == 4999.0


def test_hundred_thousand_steps_are_read_in_seconds(tmp_path):
    lines = (f'{{"v":1,"step":{s},"metrics":{{"verl_entropy/entropy":0.5,"b":1,"c":2.5}}}}' for s in range(100_000))
    (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    start = time.perf_counter()
    run = RunReader(tmp_path)
    assert len(run) == 100_000 and len(run.series("b")[0]) == 100_000
    assert time.perf_counter() - start < 30


def test_no_run_there_is_an_error_with_a_hint(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(RunFileError, match="Give a run's folder"):
            RunReader(path)


def test_an_empty_run_is_readable(tmp_path):
    RunWriter(tmp_path, FAST).close()
    run = RunReader(tmp_path)
    assert len(run) == 0 and run.keys == [] and "no step" in run.problems[0]


def test_columns_of_different_length_are_refused(tmp_path):
    with RunWriter(tmp_path, FAST) as writer, pytest.raises(ValueError, match="different length"):
        writer.step(1, {}, {"a": [1], "b": [1, 2]})
