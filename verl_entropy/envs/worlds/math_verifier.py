# SPDX-License-Identifier: Apache-2.0
"""Compares an answer with the right one by math-verify, in a process of its own that can be killed.

A hostile or unlucky expression (say a tower of powers) keeps the computer algebra busy for hours or fills the memory,
and math-verify's own time limit works in a main thread only. ``serve`` is that process: a line ``[right, answer]`` in
JSON in, a line ``true``, ``false`` or ``null`` (cannot be read) out.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
import time

MEMORY_BYTES = 2 << 30
"""Address space of the process: sympy needs about 300 MB of it."""
START_SECONDS = 60.0
"""For the first answer, which waits for the import of sympy (1 to 2 s on an idle machine)."""
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from verl_entropy.envs.worlds.math_verifier import serve; serve()"
)
MAX_CHARS = 1000
"""A longer answer is wrong: no final answer needs it, and parsing time grows faster than the length."""


class Verifier:
    """One process, used by one caller at a time; started at the first comparison and again after a kill."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.kills = 0

    def equal(self, right: str, answer: str, timeout_s: float) -> bool:
        """Whether the answers are equal; False if that is not found out within ``timeout_s``."""
        if len(answer) > MAX_CHARS:
            return False
        with self._lock:
            try:
                process = self._alive()
                process.stdin.write(json.dumps([right, answer]).encode() + b"\n")
                process.stdin.flush()
                line = _read_line(process, timeout_s)
            except OSError:
                line = b""
            if not line:
                self._kill()
            return line.strip() == b"true"

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        with self._lock:
            self._kill()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():  # a fork must not share the pipes
            self._process = None
        if self._process is None or self._process.poll() is not None:
            require()
            command, pipe = [sys.executable, "-c", _START, json.dumps(sys.path)], subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            self._owner = os.getpid()
            if _read_line(self._process, START_SECONDS).strip() != b"ready":
                self._kill()
                raise RuntimeError("the process of math-verify does not start; see `python -c 'import math_verify'`")
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        self.kills += 1
        process.kill()
        process.wait()
        process.stdin = _closed(process.stdin)
        process.stdout = _closed(process.stdout)


def require() -> None:
    """ValueError if math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ValueError("environment 'math' needs 'math_verify', which is not installed: pip install 'verl-entropy[math]'")


def _read_line(process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """One line, or b"" if the process ends or the time is over."""
    deadline, line = time.monotonic() + timeout_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return b""
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                return b""
            line += piece
    return line


def _closed(pipe):
    with contextlib.suppress(OSError):  # unsent bytes to a dead process
        pipe.close()


_shared = Verifier()
atexit.register(_shared.close)


def equal(right: str, answer: str, timeout_s: float) -> bool:
    """``Verifier.equal`` of this process's verifier."""
    return _shared.equal(right, answer, timeout_s)


def serve() -> None:
    """Answer comparisons until standard input ends."""
    import resource
    import signal

    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    kinds = [LatexExtractionConfig(), ExprExtractionConfig()]

    def read(answer: str) -> list:
        return parse(f"\\boxed{{{answer}}}", kinds, parsing_timeout=None)

    out = sys.stdout
    sys.stdout = sys.stderr  # nothing but answers on the pipe
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        right, answer = json.loads(line)
        try:
            result = bool(verify(read(right), read(answer), timeout_seconds=None))
        except (Exception, MemoryError, RecursionError):
            result = None
        print(json.dumps(result), file=out, flush=True)
