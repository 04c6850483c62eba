# SPDX-License-Identifier: Apache-2.0
"""The repair loop: every bundled bug fails its tests and every fix passes, tricks do not pay, and the runner's limits hold."""

import errno
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from verl_entropy.agent.parsing import MAX_ACTION_CHARS, format_response, parse_response
from verl_entropy.envs.worlds.swe import SweEnv, format_edit
from verl_entropy.envs.worlds.swe_runner import LocalRunner, RunnerError, SandboxFusionRunner, TestReport, make_runner
from verl_entropy.envs.worlds.swe_tasks import SPLITS, Edit, repairs

TEST = (
    "import unittest\nfrom code_ import f\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(), 1)\n"
)
GOOD = "tests.test_f.T.test_f"


def files(code, test=TEST):
    return {"code_.py": code, "tests/__init__.py": "", "tests/test_f.py": test}


@pytest.mark.parametrize("split", SPLITS)
def test_every_bug_fails_and_every_fix_passes(split):
    env = SweEnv(split=split)
    for number, task in enumerate(repairs(None)[split]):
        options = {"split": split, "task": number}
        env.reset(options=options)
        _, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated, info["won"]) == (0.0, True, False), f"{task.name} is not broken"
        env.reset(options=options)
        actions = env.expert_actions()
        for action in actions:
            assert len(action) <= MAX_ACTION_CHARS
            parsed = parse_response(format_response(action, "thought"))
            assert parsed.valid_format and parsed.action == action.strip()  # it survives the agent loop's format
            _, reward, terminated, _, info = env.step(parsed.action)
        assert (reward, terminated, info["won"]) == (1.0, True, True), f"{task.name} is not repaired"


def test_splits_share_no_repository():
    owners = {split: {task.repository for task in repairs(None)[split]} for split in SPLITS}
    assert sum(map(len, owners.values())) == len(set().union(*owners.values())) == 8


def test_view_run_and_edit():
    env = SweEnv()
    _, info = env.reset(seed=0)
    path, states = env._task.fix.path, {info["anchor"]}
    seen = env.step(f"view {path} 2 3")[0]
    assert seen.splitlines()[0].startswith(f"{path}, lines 2 to 3 of") and len(seen.splitlines()) == 3
    first = env.step("run tests")[0]
    assert "tests pass." in first and "FAIL" in first and "/tmp" not in first
    assert env.step("run tests")[0] == first  # no seconds, no temporary names: equal in a group
    *_, info = env.step(format_edit(Edit(path, env._files[path].splitlines(True)[0], "# changed\n")))
    assert env._files[path].startswith("# changed\n") and info["anchor"] not in states
    assert env.reset(seed=0)[1]["anchor"] in states and not env._files[path].startswith("# changed")


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("view ../../etc/passwd", "no file"),
        ("edit nothing.py\n<<<<<<< old\na\n=======\nb\n>>>>>>> new", "no file"),
        ("edit PATH\n<<<<<<< old\nno such line\n=======\nb\n>>>>>>> new", "stands 0 times"),
        ("edit PATH\n<<<<<<< old\n=======\nb\n>>>>>>> new", "stands 0 times"),
        ("edit TEST\n<<<<<<< old\nimport unittest\n=======\n>>>>>>> new", "tests cannot be edited"),
        ("edit PATH", "no action"),
        ("rm -rf /", "no action"),
    ],
)
def test_what_is_refused_changes_nothing(action, says):
    env = SweEnv()
    env.reset(seed=0)
    before = dict(env._files)
    test = next(path for path in before if path.startswith("tests/test_"))
    observation, reward, terminated, *_ = env.step(action.replace("PATH", env._task.fix.path).replace("TEST", test))
    assert says in observation and (reward, terminated) == (0.0, False) and env._files == before


# ----------------------------------------------------------------------------- the local runner

RUNNER = LocalRunner(timeout_s=5.0, memory_mb=256)


def test_local_report():
    assert RUNNER.run(files("def f():\n    return 1\n")).passed == {GOOD}
    wrong = RUNNER.run(files("def f():\n    return 2\n"))
    assert not wrong.passed and "2 != 1" in wrong.output


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)\n",
        "import sys\nsys.exit(0)\n",
        "raise SystemExit\n",
        f"print({json.dumps({'passed': [GOOD]})!r})\ndef f():\n    return 2\n",
        "def f(:\n",
    ],
)
def test_leaving_early_or_printing_a_report_is_no_pass(code):
    assert GOOD not in RUNNER.run(files(code)).passed


FORGERIES = {
    "the marker of main.py": (
        "import json, os, re, pathlib\n"
        "text = ''.join(p.read_text() for p in pathlib.Path('..').glob('*.py'))\n"
        "marker = re.search(r\"'marker': '(\\w+)'\", text)\n"
        "report = json.dumps({'passed': ['tests.test_f.T.test_f'], 'ran': 1, 'network': '', 'output': ''})\n"
        "os.write(1, f'\\n{marker and marker[1]}{report}\\n'.encode())\nos._exit(0)\n"
    ),
    "its frames": (
        "import gc, json, os, sys\n"
        "frame, found = sys._getframe(), set()\n"
        "while frame:\n"
        "    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
        "        found |= {v for v in (value.values() if type(value) is dict else [value]) if type(v) is str and len(v) == 32}\n"
        "    frame = frame.f_back\n"
        "for marker in found:\n"
        "    report = json.dumps({'passed': ['tests.test_f.T.test_f'], 'ran': 1, 'network': '', 'output': ''})\n"
        "    for end in range(3, 12):\n"
        "        try:\n            os.write(end, f'\\n{marker}{report}\\n'.encode())\n        except OSError:\n            pass\n"
        "os._exit(0)\n"
    ),
    "unittest": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\ndef f():\n    return 2\n",
    "equality": "class Yes:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef f():\n    return Yes()\n",
    "the test's file": (
        "import pathlib\npathlib.Path('tests/test_f.py').write_text('import unittest\\nclass T(unittest.TestCase):\\n"
        "    def test_f(self): pass\\n')\ndef f():\n    return 2\n"
    ),
    "the judge's memory": (
        "import os\n"
        "def f():\n"
        "    for path in (f'/proc/{os.getppid()}/mem', f'/proc/{os.getppid()}/fd/1', f'/proc/{os.getppid()}/fd/0'):\n"
        "        try:\n            open(path, 'r+b')\n            return 1\n"
        "        except OSError:\n            pass\n"
        "    return 2\n"
    ),
    "a skipped test": "import unittest\ndef f():\n    raise unittest.SkipTest('x')\n",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_the_code_under_test_cannot_forge_a_pass(how):
    assert not RUNNER.run(files(FORGERIES[how])).passed


def test_what_crosses_the_two_processes():
    """Values, handles, errors with their class, containers changed in place, callbacks, context managers, iteration."""
    code = (
        "import decimal\nclass Low(ValueError):\n    limit = 3\n"
        "class Box:\n    size = 1\n    def __init__(self, n):\n        self.n = n\n"
        "    def __len__(self):\n        return self.n\n    def __eq__(self, o):\n        return self.n == o.n\n"
        "    def __enter__(self):\n        return self\n    def __exit__(self, *_):\n        self.n = 0\n"
        "    def __iter__(self):\n        return iter(range(self.n))\n    def __getitem__(self, i):\n        return i * 2\n"
        "def sort(items, key):\n    items.sort(key=key)\n"
        "def fail():\n    raise Low('too low', 7)\n"
        "def all_kinds():\n    return [(1, 2.5), {'a': {1}}, None, b'x', frozenset('a'), decimal.Decimal('1.10')]\n"
    )
    test = (
        "import decimal, unittest\nimport code_\nfrom code_ import Box, Low\nclass T(unittest.TestCase):\n    def test_f(self):\n"
        "        box = Box(3)\n        self.assertEqual((len(box), list(box), box[4], box.n), (3, [0, 1, 2], 8, 3))\n"
        "        self.assertEqual(box, Box(3))\n        self.assertNotEqual(box, Box(2))\n        self.assertIsInstance(box, Box)\n"
        "        with box as same:\n            same.n = 5\n        self.assertEqual(box.n, 0)\n"
        "        items = [3, 1, 2]\n        code_.sort(items, lambda x: -x)\n        self.assertEqual(items, [3, 2, 1])\n"
        "        with self.assertRaisesRegex(Low, 'too low') as caught:\n            code_.fail()\n"
        "        self.assertEqual(caught.exception.args, ('too low', 7))\n        self.assertRaises(ValueError, code_.fail)\n"
        "        kinds = [(1, 2.5), {'a': {1}}, None, b'x', frozenset('a'), decimal.Decimal('1.10')]\n"
        "        self.assertEqual(code_.all_kinds(), kinds)\n"
        "        self.assertRaises(AttributeError, lambda: box.nothing)\n"
    )
    report = RUNNER.run(files(code, test))
    assert report.passed == {GOOD}, report.output


@pytest.mark.parametrize("path", ["../out.py", "/tmp/swe-out.py", "tests/../../out.py", "."])
def test_a_path_that_leaves_the_folder_is_refused(path, tmp_path):
    with pytest.raises(ValueError, match="leaves the folder"):
        LocalRunner(folder=str(tmp_path)).run({path: "x = 1"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "code",
    [
        "f = lambda: len(bytearray(1 << 30)) and 1\n",
        "import tempfile\ndef f():\n    with tempfile.TemporaryFile() as t:\n        t.write(bytes(17 << 20))\n    return 1\n",
        "def f():\n    while True:\n        print('x' * 10000)\n",
    ],
)
def test_memory_file_size_and_output_are_bounded(code):
    started = time.monotonic()
    assert not LocalRunner(timeout_s=3.0, memory_mb=256).run(files(code)).passed
    assert time.monotonic() - started < 30.0  # and not for ever; a busy machine takes its time


def test_a_hang_is_killed_with_its_children():
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(77)'])"
    code = f"import subprocess, sys, time\ndef f():\n    {child}\n    time.sleep(60)\n"
    started = time.monotonic()
    report = LocalRunner(timeout_s=1.0).run(files(code))
    assert "stopped after 1 s" in report.output and time.monotonic() - started < 30.0
    for _ in range(100):  # a killed process is gone a moment later
        left = [p for p in psutil.process_iter(["cmdline", "status"]) if "time.sleep(77)" in " ".join(p.info["cmdline"] or ())]
        left = [p for p in left if p.info["status"] != psutil.STATUS_ZOMBIE]
        if not left:
            break
        time.sleep(0.05)
    assert not left


def test_no_network_no_variables_and_nothing_left(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    code = (
        "import os, socket\ndef f():\n    assert 'SECRET_TOKEN' not in os.environ\n"
        "    try:\n        socket.create_connection(('127.0.0.1', PORT), timeout=1)\n"
        "    except OSError:\n        return 1\n"
    )
    listener = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    try:
        report = LocalRunner(folder=str(tmp_path)).run(files(code.replace("PORT", str(listener.server_port))))
    finally:
        listener.server_close()
    assert report.passed == {GOOD}, report.output
    assert report.network in ("namespace", "hook") and not list(tmp_path.iterdir())


def test_disk_full_is_one_message(monkeypatch, tmp_path):
    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunnerError, match=r"No space left on device.*runner_kwargs.folder"):
        LocalRunner(folder=str(tmp_path)).run(files("x = 1\n"))
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------- other runners


class Sandbox(BaseHTTPRequestHandler):
    """The service's protocol, with a local run behind it."""

    def do_POST(self):
        import base64
        import subprocess
        import sys
        import tempfile

        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with tempfile.TemporaryDirectory() as folder:
            for path, data in body["files"].items():
                Path(folder, path).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, path).write_bytes(base64.b64decode(data))
            command = [sys.executable, "-c", body["code"]]
            done = subprocess.run(
                command, cwd=folder, input=body["stdin"], capture_output=True, text=True, timeout=body["run_timeout"]
            )
        result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        self.send_response(200)
        self.end_headers()
        answer = {"status": "Success", "run_result": result} if self.path == "/run_code" else []
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        pass


def test_sandbox_fusion_protocol():
    server = HTTPServer(("127.0.0.1", 0), Sandbox)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        assert SandboxFusionRunner(f"{url}/run_code").run(files("def f():\n    return 1\n")).passed == {GOOD}
        assert not SandboxFusionRunner(f"{url}/run_code").run(files("def f():\n    return 2\n")).passed
        with pytest.raises(RunnerError, match="run_code URL"):
            SandboxFusionRunner(f"{url}/other").run(files("def f():\n    return 1\n"))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(RunnerError, match="does not answer"):
        SandboxFusionRunner(f"{url}/run_code").run(files(""))


class OwnRunner:
    """A user's service."""

    def __init__(self, answer):
        self.answer = answer

    def run(self, files):
        return TestReport(frozenset(self.answer), "own")


def test_a_users_runner_and_wrong_ones():
    env = SweEnv(runner="test_swe:OwnRunner", runner_kwargs={"answer": []})
    env.reset(seed=0)
    assert env.step("run tests")[0].endswith("own")
    for runner, settings, says in (
        ("test_swe:Missing", {}, "choose local"),
        ("local", {"speed": 1}, "runner_kwargs"),
        ("local", {"folder": "/no/folder"}, "no such folder"),
        ("sandbox_fusion", {"url": "here"}, "run_code URL"),
        ("sandbox_fusion", {}, "runner_kwargs"),
    ):
        with pytest.raises(ValueError, match=says):
            make_runner(runner, settings)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tests": []}, "needs tests"),
        ({"split": "mars"}, "split='mars'"),
        ({"files": {"../x.py": []}}, "inside the repository"),
        ({"bugs": [{"name": "b", "issue": "i", "file": "a.py", "right": ["zzz"], "wrong": ["y"]}]}, "exactly once"),
        ({"bugs": [{"name": "b"}]}, "needs issue, file"),
    ],
)
def test_a_bad_task_file_is_named(tmp_path, change, says):
    bug = {"name": "b", "issue": "i", "file": "a.py", "right": ["x = 1"], "wrong": ["x = 2"]}
    task = {"name": "a", "summary": "s", "split": "train", "files": {"a.py": ["x = 1"]}, "tests": ["t"], "bugs": [bug]}
    (tmp_path / "bad.json").write_text(json.dumps({**task, **change}))
    with pytest.raises(ValueError, match=rf"bad\.json.*{says}"):
        SweEnv(repositories=str(tmp_path))


def test_a_bad_line_is_named(tmp_path):
    (tmp_path / "bad.json").write_text('{"name": "a",\n oops}')
    with pytest.raises(ValueError, match=r"bad\.json', line 2: not JSON"):
        SweEnv(repositories=str(tmp_path))
