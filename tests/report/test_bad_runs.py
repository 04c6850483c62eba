# SPDX-License-Identifier: Apache-2.0
"""Damaged, foreign and odd run files: a report on what can be read, and a line about the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_runs import P, sample_of, turns_of, write_run

from verl_entropy.cli import main
from verl_entropy.runs.report import build_report, diff
from verl_entropy.runs.runfile import RunFileError, RunSettings, RunWriter


def small(folder, seed=0, steps=30):
    """A run with few figures, and all kinds of files."""
    rng = np.random.default_rng(seed)
    with RunWriter(folder, RunSettings(flush=False, samples_every=10, join_every=20)) as writer:
        for step in range(1, steps + 1):
            writer.step(step, {P + "entropy": 1.0 / step}, turns_of(1.0, False, rng), [sample_of(1.0, rng) for _ in range(4)])
    return folder


def _truncated(folder):
    path = folder / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def _mixed(folder):
    other = small(folder.with_name("other"), seed=5)
    a, b = ((p / "steps.jsonl").read_bytes().splitlines(True) for p in (folder, other))
    (folder / "steps.jsonl").write_bytes(b"".join(line for pair in zip(a, b, strict=True) for line in pair[::-1]))


def _shuffled(folder):
    path = folder / "steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[::-1]))


def _binary(folder):
    with open(folder / "steps.jsonl", "ab") as file:
        file.write(b"\x00\xff\xfe garbage\n" * 3)


def _newer(folder):
    meta = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**meta, "format": 7, "config": ["no", "mapping"]}))


def _parquet(folder):
    for path in (folder / "turns").glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:100])


def _samples(folder):
    first, *_, last = sorted((folder / "samples").glob("*.json"))
    first.write_text('{"samples": [')
    last.write_text(
        json.dumps({"samples": [{"turns": [{"tokens": [1, None, {}], "entropy": ["x", 1e400, True]}], "success": "?"}]})
    )


def _values(folder):
    with open(folder / "steps.jsonl", "a") as file:
        file.write(f'{{"step":31,"metrics":{{"{P}entropy":NaN,"{P}success":1e999,"{P}turn_entropy/1":"a","x":[1]}}}}\n')


DAMAGE = {
    "truncated": (_truncated, 29, "a step is being written"),
    "mixed": (_mixed, 30, None),
    "shuffled": (_shuffled, 30, "step 29 after step 30"),
    "binary": (_binary, 30, "not JSON"),
    "newer": (_newer, 30, "format 7"),
    "parquet": (_parquet, 30, "unreadable"),
    "samples": (_samples, 30, "not JSON"),
    "values": (_values, 31, None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_can_be_read_is_reported(tmp_path, name):
    damage, steps, said = DAMAGE[name]
    run = small(tmp_path / "run")
    damage(run)
    report = build_report([run], tmp_path / "out.html")
    source = report.html.read_text()
    assert f"<td class=n>{steps} (1 to" in source and "entropy" not in report.missing
    assert said is None or said in source
    diff(run, run).render()


def test_unreadable_runs_do_not_stop_the_others(tmp_path, capsys):
    good = small(tmp_path / "good")
    (tmp_path / "nothing").mkdir()
    report = build_report([tmp_path / "nothing", good, good, tmp_path / "missing"], tmp_path / "out.html")
    assert len(report.problems) == 3 and "given twice" in report.problems[1] and "no such file" in report.problems[2]
    assert "nothing: no steps.jsonl" in report.html.read_text()
    with pytest.raises(RunFileError, match=r"(?s)nothing.*missing"):
        build_report([tmp_path / "nothing", tmp_path / "missing"], tmp_path / "out.html")
    assert main(["report", str(tmp_path / "missing"), "--out", str(tmp_path / "x.html")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_later_report_leaves_no_old_figure(tmp_path):
    build_report([write_run(tmp_path / "full", steps=15)], tmp_path / "out.html")
    assert (tmp_path / "out_clip.png").exists()
    build_report([write_run(tmp_path / "bare", steps=15, full=False)], tmp_path / "out.html")
    assert not (tmp_path / "out_clip.png").exists() and (tmp_path / "out_entropy.png").exists()
