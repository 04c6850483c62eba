# SPDX-License-Identifier: Apache-2.0
"""``watch``: runs that grow, end, are resumed, begin anew; what a request costs; who is answered; that nothing is written."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from synthetic_runs import P, entropy_curve, metrics_of, sample_of, turns_of, write_run

from verl_entropy.cli import main
from verl_entropy.runs.report.live import Server, Watched
from verl_entropy.runs.report.runs import load
from verl_entropy.runs.runfile import RunFileError, RunReader, RunSettings, RunWriter

QUICK = RunSettings(flush=False, samples_every=10)


def last_step(model, figure="entropy"):
    trace = next(f for f in model["figures"] if f["name"] == figure)["facets"][0]["traces"][0]
    return model["steps"][trace["x"]][-1]


def test_new_steps_come_and_an_old_version_is_told_apart(tmp_path):
    folder = write_run(tmp_path / "run", steps=30)
    watched = Watched([folder])
    first = watched.model()
    assert last_step(first) == 30 and watched.model(first["version"]) is None
    with RunWriter(folder, QUICK) as writer:
        writer.step(31, {P + "entropy": 0.5})
        second = watched.model(first["version"])
        assert last_step(second) == 31 and second["version"] > first["version"]
        rng = np.random.default_rng(0)
        writer.step(40, {P + "entropy": 0.5}, None, [sample_of(0.5, rng)])
        third = watched.model(second["version"])
    assert len(third["trajectories"]["items"]) == len(second["trajectories"]["items"]) + 1


def test_a_resume_and_another_run_in_the_folder_are_read(tmp_path):
    folder = write_run(tmp_path / "run", steps=30)
    watched = Watched([folder])
    watched.model()
    with RunWriter(folder, QUICK) as writer:
        writer.step(21, {P + "entropy": 0.5})
    assert last_step(watched.model()) == 21
    with RunWriter(folder, QUICK, fresh=True) as writer:
        writer.step(1, {P + "entropy": 0.5})
        writer.step(2, {P + "entropy": 0.5})
    assert last_step(watched.model()) == 2


def test_reading_on_gives_what_reading_anew_gives(tmp_path):
    """Events, phases and numbers, whatever was read in which piece: half lines, a resume, an eruption that begins in between."""
    whole = write_run(tmp_path / "whole", steps=120, full=False, seed=3)
    lines = (whole / "steps.jsonl").read_bytes().splitlines(True)
    lines[90:90] = [b'{"v":1,"resume":88}\n', *lines[87:90], b"garbage\n"]
    text = b"".join(lines)
    growing = tmp_path / "growing"
    growing.mkdir()
    (growing / "steps.jsonl").write_bytes(text[:50])
    watched = Watched([growing], wait=True)
    for end in (4_000, 6_001, 6_002, len(text)):
        with open(growing / "steps.jsonl", "ab") as file:
            file.write(text[file.tell() : end])
        model = watched.model()
    run, anew = watched._runs[growing], load([growing])[0]
    assert run.reader.steps.tolist() == anew.reader.steps.tolist() and run.reader.problems == anew.reader.problems
    assert run.reader.series(P + "entropy")[1].tolist() == anew.reader.series(P + "entropy")[1].tolist()
    assert run.detector.events == anew.detector.events and run.spans == anew.spans
    assert "eruption" in [e.name for e in anew.detector.events] and "eruption at step" in model["head"]


def test_a_long_run_is_cheap_to_follow(tmp_path):
    """5,000 steps: a request without news looks at files; a new step reads its line, and not the 5,000 before."""
    rng, curve = np.random.default_rng(0), entropy_curve(5000, erupts=True, seed=0)
    with RunWriter(tmp_path / "run", RunSettings(flush=False, samples_every=500, turns_every=0)) as writer:
        for i, h in enumerate(curve[:4990]):
            samples = [sample_of(h, rng)] if writer.wants_samples(i + 1) else None
            writer.step(i + 1, metrics_of(i + 1, h, i / 5000, rng), None, samples)
        watched = Watched([tmp_path / "run"])
        version = watched.model()["version"]
        reader = watched._runs[tmp_path / "run"].reader
        start = time.process_time()
        for _ in range(100):
            assert watched.model(version) is None
        assert (time.process_time() - start) / 100 < 0.01
        parsed = []
        reader._load = lambda data, where, load=reader._load: parsed.append(where) or load(data, where)
        start = time.process_time()
        writer.step(4991, metrics_of(4991, 0.5, 1.0, rng), turns_of(0.5, True, rng))
        model = watched.model(version)
        assert time.process_time() - start < 3.0  # .3 s on a quiet core
    assert parsed == ["steps.jsonl:4991"] and len(json.dumps(model)) < 1.5e6 and last_step(model) > 4985


@pytest.fixture
def served(tmp_path):
    """A server with a run of ten steps."""
    folder = write_run(tmp_path / "run", steps=10)
    with Server(Watched([folder]), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, folder
        server.shutdown()


def ask(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


def test_it_answers_this_machine_only(served):
    server, _ = served
    assert server.server_address[0] == "127.0.0.1"
    answer, body = ask(server, "/")
    assert answer.status == 200 and b"connect-src 'self'" in body and b'"live":true' in body
    assert (answer.headers["X-Frame-Options"], answer.headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert ask(server, "/", Host=f"localhost:{server.server_address[1]}")[0].status == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", ""):
        assert ask(server, "/model.json", Host=host)[0].status == 403
    assert [ask(server, path)[0].status for path in ("/../etc/passwd", "/run.json", "/favicon.ico")] == [404] * 3
    version = json.loads(ask(server, "/model.json?v=x")[1])["version"]
    assert ask(server, f"/model.json?v={version}")[0].status == 204 and ask(server, f"/model.json?v={'9' * 5000}")[0].status < 500


def test_nothing_is_written_and_a_damaged_run_is_said(served):
    server, folder = served
    before = sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*"))
    ask(server, "/"), ask(server, "/model.json")
    assert sorted((p, p.stat().st_mtime_ns) for p in folder.rglob("*")) == before
    with open(folder / "steps.jsonl", "ab") as file:
        file.write(b"\x00 garbage\n")
    assert b"not JSON" in ask(server, "/model.json")[1]
    (folder / "steps.jsonl").unlink()
    assert ask(server, "/")[0].status == 200


def test_a_run_that_has_not_begun(tmp_path):
    with pytest.raises(RunFileError, match="no such file"):
        Watched([tmp_path / "soon"])
    watched = Watched([tmp_path / "soon"], wait=True)
    assert "waiting for" in watched.model()["head"] and watched.model()["figures"] == []
    write_run(tmp_path / "soon", steps=5, full=False)
    assert last_step(watched.model()) == 5


def test_the_command_serves_until_it_is_stopped(tmp_path, capsys):
    """Its own process, on a run in progress: the address on stdout, then Ctrl-C; a second one on the port is told so; exit codes."""
    folder = write_run(tmp_path / "run", steps=5, full=False)
    command = [sys.executable, "-m", "verl_entropy.cli", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A suite in the background of a shell ignores it, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        timer = threading.Timer(240, process.kill)
        timer.start()
        address = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline()).group()
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"Entropy report: run" in page.read()
        assert main(["watch", str(folder), "--port", address.rstrip("/").rsplit(":", 1)[1]]) == 2
        assert "Address already in use. Give another port" in capsys.readouterr().err
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        timer.cancel()
    assert process.returncode == 0 and "stopped" in out and err == ""
    assert main(["watch", str(tmp_path / "gone")]) == 2 and main(["watch", str(folder), "--port", "70000"]) == 2
    assert len(RunReader(folder)) == 5
