# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests of a folder and prints a report. Its text is sent to where the tests run: standard library only."""

import contextlib
import io
import json
import os
import re
import signal
import sys
import unittest

OUTPUT_CHARS = 4000
NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Recorder(unittest.TextTestResult):
    """Remembers which tests passed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id())


def limit(cpu_s, memory_mb, file_mb, wall_s):
    """Bounds of this process and of what it starts."""
    import resource

    mega = 1 << 20
    bounds = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_mb * mega,
        resource.RLIMIT_FSIZE: file_mb * mega,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for which, most in bounds.items():
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (value, value))
    signal.alarm(wall_s + 5)  # even if the parent that would kill this process is gone


def cut_network():
    """No network: a name space without one where the system allows it, else a hook on Python's sockets."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if libc.unshare(NEW_USER_AND_NETWORK) == 0:
        return "namespace"

    def refuse(event, arguments):
        if event.startswith("socket.") and event != "socket.gethostname":
            raise PermissionError("no network here")

    sys.addaudithook(refuse)
    return "hook"


def main(settings):
    """Run every test under ``tests`` and print the report after the marker."""
    if settings.get("limits"):
        limit(**settings["limits"])
    network = cut_network() if settings.get("cut_network") else "as the service has it"
    os.chdir(settings["repository"])
    sys.path.insert(0, os.getcwd())
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        suite = unittest.TestLoader().discover("tests", top_level_dir=".")
        result = unittest.TextTestRunner(stream=stream, resultclass=Recorder).run(suite)
    # The same run prints the same: no temporary folder, no seconds.
    output = re.sub(r" in \d+\.\d+s\b", "", stream.getvalue().replace(os.getcwd() + os.sep, ""))
    report = {
        "passed": result.passed,
        "ran": result.testsRun,
        "network": network,
        "output": output[-OUTPUT_CHARS:],
    }
    sys.stdout.write(f"\n{settings['marker']}{json.dumps(report)}\n")
    sys.stdout.flush()
