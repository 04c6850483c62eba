# SPDX-License-Identifier: Apache-2.0
"""Where the tests of a repository run: a restricted local subprocess, verl's sandbox service, or a user's class.

The local runner is a guard against accidents, not against malice. It has its own folder, limits on time, processor, memory
and file size, an environment without the user's variables, no network where the system lets an ordinary user make a name
space (else Python's sockets are blocked), and its process group is killed. It is not a container: code that it runs has
the user's rights, can read the user's files, and can escape by leaving its process group. Train models that write hostile
code with ``runner: sandbox_fusion`` or a container service.

Who says which tests passed is another process than the one that runs the code under test (``swe_driver``), and only its report
counts: not exit codes, and not what the code prints, which does not know the marker.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verl_entropy import http_client
from verl_entropy.envs.tasks import at_least

DRIVER = Path(__file__).with_name("swe_driver.py")
_slots = threading.BoundedSemaphore(max(2, (os.cpu_count() or 1) // 4))
"""Test runs of this process at once: many episodes that submit together must not slow each other down to the time limit."""
FILE_MB = 16  # written by one test run, its printed output included
SERVICE_SECONDS = 10.0  # what a service may take on top of the run itself, as in verl's client


class RunnerError(RuntimeError):
    """The tests could not be run at all; says nothing about the code under test."""


@dataclass(frozen=True)
class TestReport:
    """What a test run gave."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    passed: frozenset[str]
    output: str
    network: str = ""


class Runner(Protocol):
    """Runs the unit tests of a repository."""

    def run(self, files: Mapping[str, str]) -> TestReport:
        """Write the files (path -> text) to a fresh folder, run the tests under ``tests/`` there, forget the folder."""
        ...


class LocalRunner:
    """A subprocess of this machine with limits; see the module's text for what it is not."""

    def __init__(self, timeout_s: float = 10.0, memory_mb: int = 512, folder: str | None = None) -> None:
        self._timeout_s = at_least("timeout_s", timeout_s, 0.1, whole=False)
        self._memory_mb = at_least("memory_mb", memory_mb, 128)
        if folder is not None and not Path(folder).expanduser().is_dir():
            raise ValueError(f"folder={folder!r}: no such folder; make it, or leave it out for the system's temporary one")
        self._folder = None if folder is None else str(Path(folder).expanduser())

    def run(self, files: Mapping[str, str]) -> TestReport:
        try:
            with tempfile.TemporaryDirectory(prefix="swe-", dir=self._folder, ignore_cleanup_errors=True) as folder:
                repository = Path(folder, "repository")
                _write(repository, files)
                return self._run(Path(folder), repository)
        except OSError as error:
            where = error.filename or self._folder or tempfile.gettempdir()
            raise RunnerError(
                f"the repository cannot be written or run at {where} ({error.strerror or error}): free space there, or set "
                "runner_kwargs.folder (or TMPDIR) to a folder with space"
            ) from error

    def _run(self, folder: Path, repository: Path) -> TestReport:
        seconds = int(self._timeout_s) + 1
        marker = secrets.token_hex(16)
        limits = {"cpu_s": seconds, "memory_mb": self._memory_mb, "file_mb": FILE_MB, "wall_s": seconds}
        settings = {"repository": str(repository), "limits": limits, "cut_network": True}
        (folder / "main.py").write_text(_program(settings), encoding="utf-8")
        environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
        with _slots:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(folder / "main.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
            try:
                said, _ = process.communicate(f"{marker}\n".encode(), self._timeout_s)
                ending = f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                said, ending = b"", f"stopped after {self._timeout_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError):  # nothing of the group is left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    pipe.close()
        return read_report(said.decode("utf-8", "replace"), marker, ending)


class SandboxFusionRunner:
    """verl's sandbox service (``sandbox_fusion``): the repository travels with the call, the service isolates the run."""

    def __init__(self, url: str, timeout_s: float = 10.0, memory_mb: int = 512) -> None:
        if not http_client.is_url(str(url)):
            raise ValueError(f"url={url!r}: must be the service's run_code URL, such as http://127.0.0.1:8080/run_code")
        self._url, self._timeout_s = url, at_least("timeout_s", timeout_s, 0.1, whole=False)
        self._memory_mb = at_least("memory_mb", memory_mb, 128)

    def run(self, files: Mapping[str, str]) -> TestReport:
        marker = secrets.token_hex(16)
        body = {
            "compile_timeout": self._timeout_s,
            "run_timeout": self._timeout_s,
            "code": _program({"repository": "."}),
            "stdin": f"{marker}\n",
            "memory_limit_MB": self._memory_mb,
            "language": "python",
            "files": {path: base64.b64encode(text.encode()).decode() for path, text in files.items()},
            "fetch_files": [],
        }
        answer = self._post(body)
        result = answer.get("run_result") or {}
        output = f"{result.get('stdout') or ''}{result.get('stderr') or ''}"
        if answer.get("status") == "SandboxError":
            raise RunnerError(f"url={self._url!r}: the service could not run the tests: {str(answer.get('message'))[:200]}")
        return read_report(output, marker, f"{result.get('status')}, exit code {result.get('return_code')}")

    def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = json.loads(http_client.send(self._url, body, timeout_s=2 * self._timeout_s + SERVICE_SECONDS))
        except http_client.BadStatus as error:
            raise RunnerError(f"url={self._url!r}: the sandbox service answered {error.code} {error.reason}: {error}") from error
        except (http_client.NoAnswer, ValueError) as error:
            raise RunnerError(
                f"url={self._url!r}: the sandbox service does not answer ({error}); start it, or check url"
            ) from error
        if not isinstance(answer, dict):
            raise RunnerError(f"url={self._url!r}: the sandbox service answered {str(answer)[:80]!r}; is this its run_code URL?")
        return answer


def make_runner(runner: str, settings: Mapping[str, Any]) -> Runner:
    """``local``, ``sandbox_fusion`` (needs url) or ``package.module:Class``, built with ``settings``."""
    known = {"local": LocalRunner, "sandbox_fusion": SandboxFusionRunner}
    maker = known.get(runner)
    if maker is None:
        module, _, name = runner.partition(":")
        try:
            maker = vars(importlib.import_module(module))[name]
        except (ImportError, KeyError, ValueError) as error:
            raise ValueError(
                f"runner={runner!r}: choose local, sandbox_fusion or a class 'package.module:Class' ({error})"
            ) from error
    try:
        return maker(**settings)
    except TypeError as error:
        raise ValueError(f"runner_kwargs={dict(settings)!r} do not fit runner {runner!r}: {error}") from error


def read_report(output: str, marker: str, ending: str) -> TestReport:
    """The driver's report; without one (a crash, a time-out, ``os._exit``) nothing has passed."""
    _, found, after = output.rpartition(f"\n{marker}")
    try:
        report = json.loads(after.split("\n")[0]) if found else None
    except ValueError:
        report = None
    if not isinstance(report, dict):
        return TestReport(frozenset(), f"{output[-2000:]}\nThe test run gave no result: {ending}.".strip())
    return TestReport(frozenset(report["passed"]), str(report["output"]), str(report["network"]))


def _program(settings: dict[str, Any]) -> str:
    return f"{DRIVER.read_text(encoding='utf-8')}\n\nmain({settings!r})\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir()
    for path, text in files.items():
        target = Path(os.path.normpath(folder / path))
        if folder not in target.parents:
            raise ValueError(f"files[{path!r}]: leaves the folder of the repository; give a path inside it")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
