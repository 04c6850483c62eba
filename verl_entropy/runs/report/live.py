# SPDX-License-Identifier: Apache-2.0
"""The page while the runs go on: a server on this machine's loopback that reads what the runs append and writes nothing.

A request that finds nothing new costs a look at the files' sizes. A new step costs its own line, the detector, and the figures'
numbers (a line has at most 900 points, however long the run); no image is drawn here.
"""

from __future__ import annotations

import http.server
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_entropy.diagnostics.phases import Phases
from verl_entropy.runs.report import figures
from verl_entropy.runs.report.page import document, page_model
from verl_entropy.runs.report.plot import Panel
from verl_entropy.runs.report.runs import Run, group, named, read_run
from verl_entropy.runs.report.success import success_rates
from verl_entropy.runs.runfile import JUDGED, SAMPLES, STEPS, RunFileError

HOST = "127.0.0.1"
SLOW = ("turn_heat", "interference", "separation")
"""Figures that read arrays or trajectories of many steps; they are made anew at most every SLOW_SECONDS."""
SLOW_SECONDS = 20.0


class Watched:
    """Runs that are read as they grow."""

    def __init__(self, paths: Sequence[str | Path], settings: Phases | None = None, *, wait: bool = False):
        """``wait``: a path without a run is one that has not begun; otherwise that is an error, unless another has one."""
        self._paths = list(dict.fromkeys(map(Path, paths)))
        self._settings, self._wait = settings, wait
        self._runs: dict[Path, Run] = {}
        self._seen: dict[Path, Any] = {}
        self._slow: dict[str, tuple[float, Any, Panel]] = {}
        self._lock = threading.Lock()
        self._model: dict[str, Any] | None = None
        self.version = 0
        problems = self._update()
        if not self._runs and not wait:
            raise RunFileError("\n".join(problems))

    def _update(self) -> list[str]:
        """Read what is new; what cannot be read, a line each."""
        problems = []
        for path in self._paths:
            now = _state_of(path)
            if path in self._runs and now == self._seen.get(path):
                continue
            try:
                old = self._runs.get(path)
                if old is None or not old.reader.refresh():
                    self._runs[path] = read_run(path, self._settings)
                else:
                    self._runs[path] = Run(old.reader, old.settings, earlier=old)
                if self._seen.get(path) != now or old is None:
                    self.version += 1
                self._seen[path] = now
            except (RunFileError, OSError) as error:
                problems.append(str(error))
        return problems

    def model(self, known: int | str = "") -> dict[str, Any] | None:
        """What the page shows; None where version ``known`` is the present one."""
        with self._lock:
            problems = self._update()
            if str(known) == str(self.version):
                return None
            if self._model is None or self._model["version"] != self.version:
                self._model = self._make(problems)
            return self._model

    def _make(self, problems: list[str]) -> dict[str, Any]:
        runs = named([self._runs[path] for path in self._paths if path in self._runs])
        if not runs:
            waiting = [f"waiting for {path}: nothing there yet" for path in self._paths]
            return {**EMPTY, "version": self.version, "head": _waiting(waiting)}
        groups = group(runs)
        panels = [self._panel(draw, groups) for draw in figures.PANELS]
        return {**page_model(groups, panels, success_rates(groups), problems), "version": self.version}

    def _panel(self, draw: Any, groups: list[Any]) -> Panel:
        if draw.__name__ not in SLOW:
            return draw(groups)
        now = time.monotonic()
        eruptions = tuple(len(run.spans) for g in groups for run in g.runs)
        had = self._slow.get(draw.__name__)
        if had is None or now - had[0] > SLOW_SECONDS or had[1] != eruptions:
            had = self._slow[draw.__name__] = (now, eruptions, draw(groups))
        return had[2]


EMPTY: dict[str, Any] = {
    "title": "waiting",
    "runs": [],
    "steps": [],
    "figures": [],
    "trajectories": {"items": [], "pairs": [], "note": ""},
}


def _waiting(lines: list[str]) -> str:
    from verl_entropy.runs.report.page import templates

    return (
        templates()
        .from_string("<h1>Entropy report</h1>{% for line in lines %}<p>{{ line|spelled }}</p>{% endfor %}")
        .render(lines=lines)
    )


def _state_of(path: Path) -> Any:
    """What changes when a run does: sizes of its files of lines, the newest of its trajectories."""
    found = []
    files = [path / STEPS, path / JUDGED, path / SAMPLES, *sorted(path.glob("*.jsonl"))] if path.is_dir() else [path]
    for file in files:
        try:
            status = file.stat()
            found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            continue
    return tuple(found)


class _Handler(http.server.BaseHTTPRequestHandler):
    """``/``: the page; ``/model.json?v=N``: what it shows, or 204 where N is the present version."""

    server: Server

    def do_GET(self) -> None:
        # Another site's page that made its name point to this machine is not served.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._send(403, b"this server answers to 127.0.0.1 and localhost only\n", "text/plain")
        path, _, query = self.path.partition("?")
        if path == "/":
            text = document(self.server.watched.model(), live=True)
            return self._send(200, text.encode("utf-8", errors="replace"), "text/html; charset=utf-8")
        if path == "/model.json":
            model = self.server.watched.model(query.removeprefix("v="))
            if model is None:
                return self._send(204, b"", "application/json")
            body = json.dumps(model, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
            return self._send(200, body, "application/json")
        return self._send(404, b"not found\n", "text/plain")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        headers |= {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged: there is one every two seconds."""


class Server(http.server.ThreadingHTTPServer):
    """Serves ``watched`` on this machine only; ``port`` 0: any free one."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int):
        self.watched = watched
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OSError(f"--port {port}: {os.strerror(error.errno or 0)}. Give another port, or 0 for any free one.") from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
