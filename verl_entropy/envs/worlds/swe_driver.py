# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests of a folder and prints a report. Its text is sent to where the tests run: standard library only.

Two processes. The judge loads the tests, from texts that it read before anything else ran, and prints the report behind a marker
that it read from its standard input. The code under test runs in a child of it, which knows no marker and which the judge asks
for every import, attribute and call, in JSON. Builtin values travel as copies (a list, dict or set argument is updated after the
call), everything else stays in the child and is a `Remote` in the judge. A `Remote` is never equal to a plain value, whatever its
``__eq__`` says: what a test compares with a number is a number.

Tests that subclass or patch classes of the code, or change a returned list in place, do not work across the two processes.
"""

import builtins
import contextlib
import datetime
import decimal
import fractions
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import operator
import os
import re
import signal
import sys
import traceback
import types
import unittest

OUTPUT_CHARS = 4000
PRINTED_CHARS = 2000  # of one call
LINE_CHARS = 8_000_000  # of one answer of the child
NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET
DIE_WITH_PARENT, DUMPABLE = 1, 4  # PR_SET_PDEATHSIG, PR_SET_DUMPABLE
COMPARED = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
OPERATIONS = {
    name: getattr(operator, name)
    for name in (*COMPARED, "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__neg__", "__getitem__",
                 "__setitem__", "__delitem__", "__contains__", "__and__", "__or__", "__xor__", "__call__")
    if hasattr(operator, name)
} | {
    "__len__": len, "__iter__": iter, "__next__": next, "__bool__": bool, "__repr__": repr, "__str__": str, "__hash__": hash,
    "__int__": int, "__float__": float, "__abs__": abs,
    "__call__": lambda called, *args, **kwargs: called(*args, **kwargs),
    "__enter__": lambda manager: type(manager).__enter__(manager),
    "__exit__": lambda manager, *_: type(manager).__exit__(manager, None, None, None),
    "__instancecheck__": lambda cls, value: isinstance(value, cls),
    "getattr": getattr, "setattr": setattr, "import": lambda _, name: importlib.import_module(name),
}  # fmt: skip
TEXTS = {
    decimal.Decimal: (str, decimal.Decimal),
    fractions.Fraction: (str, fractions.Fraction),
    datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    bytes: (bytes.hex, bytes.fromhex),
}
"""Values that travel as a text: how they become one, and back."""
GROUPS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Gone(RuntimeError):
    """The process of the code under test is gone."""


class Recorder(unittest.TextTestResult):
    """Remembers which tests passed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id())


class Wire:
    """Values over two pipes: one JSON line each way. ``objects``: what stays on this side, under its number."""

    def __init__(self, read, write):
        self.read, self.write = os.fdopen(read, encoding="utf-8"), os.fdopen(write, "w", encoding="utf-8")
        self.objects, self.numbers = {}, {}

    def send(self, message):
        self.write.write(json.dumps(message) + "\n")
        self.write.flush()

    def receive(self):
        line = self.read.readline(LINE_CHARS)
        if not line.endswith("\n"):
            raise Gone("the process of the code under test has ended, or its answer is too long")
        return json.loads(line)

    def keep(self, value):
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.objects) + 1
            self.objects[number] = value  # kept alive: an id is used once
        return number

    def encode(self, value):
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind.__name__ in GROUPS and kind is GROUPS[kind.__name__]:
            return {"group": kind.__name__, "items": [self.encode(item) for item in value]}
        if kind is dict:
            return {"pairs": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if kind in TEXTS:
            return {"text": TEXTS[kind][0](value), "kind": kind.__name__}
        return self.other(value)

    def decode(self, value):
        if not isinstance(value, dict):
            return value
        if "items" in value:
            return GROUPS[value["group"]](self.decode(item) for item in value["items"])
        if "pairs" in value:
            return {self.decode(key): self.decode(item) for key, item in value["pairs"]}
        if "text" in value:
            return next(back for kind, (_, back) in TEXTS.items() if kind.__name__ == value["kind"])(value["text"])
        return self.remote(value)


# ----------------------------------------------------------------------------- the child: the code under test


class Child(Wire):
    """Does what the judge asks; its objects are handles over there."""

    def other(self, value):
        shown = {"handle": self.keep(value), "name": type(value).__name__}
        if isinstance(value, type) and issubclass(value, BaseException):
            shown |= {"error": value.__name__, "base": base_of(value)}
        return shown

    def remote(self, value):
        if "handle" in value:
            return self.objects[value["handle"]]
        number = value["callback"]

        def callback(*args, **kwargs):
            self.send({"callback": number, "args": self.encode(args), "kwargs": self.encode(kwargs)})
            return self.decode(self.receive()["value"])

        return callback

    def serve(self):
        while True:
            try:
                asked = self.receive()
            except Gone:
                return
            printed, answer = io.StringIO(), {}
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                args, kwargs = self.decode(asked["args"]), self.decode(asked["kwargs"])
                try:
                    answer["value"] = self.encode(OPERATIONS[asked["do"]](*args, **kwargs))
                except BaseException as error:
                    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(os.getcwd())]
                    told = "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])
                    answer["error"] = {**self.other(type(error)), "raised": self.keep(error), "told": told[-PRINTED_CHARS:]}
                    answer["error"]["args"] = self.encode(
                        [a if type(a) in (str, int, float, bool) else str(a) for a in error.args]
                    )
                answer["args"] = [self.encode(a) if type(a) in (list, dict, set) else None for a in args]
            self.send({**answer, "printed": printed.getvalue()[-PRINTED_CHARS:]})


def base_of(error):
    """The nearest builtin exception; what would end a test run early counts as an error of it."""
    found = next(cls for cls in error.__mro__ if vars(builtins).get(cls.__name__) is cls)
    return found.__name__ if issubclass(found, Exception | SystemExit) else "RuntimeError"


# ----------------------------------------------------------------------------- the judge


class Judge(Wire):
    """Asks the child; what the child keeps are `Remote` objects here."""

    def __init__(self, read, write, stream):
        super().__init__(read, write)
        self.stream, self.errors = stream, {}

    def other(self, value):
        if isinstance(value, Remote):
            return {"handle": object.__getattribute__(value, "_handle")}
        remote = getattr(value, "_remote", None)  # an exception of the code, or its class
        if remote is not None:
            return {"handle": remote}
        if callable(value):
            return {"callback": self.keep(value)}
        raise TypeError(f"a test cannot give the code under test a {type(value).__name__}")

    def remote(self, value):
        if "error" not in value:
            return Remote(self, int(value["handle"]), str(value["name"]))
        base = vars(builtins)[value["base"]]
        if value["error"] == value["base"]:
            return base
        if value["handle"] not in self.errors:
            self.errors[value["handle"]] = type(str(value["error"]), (base,), {"_remote": int(value["handle"])})
        return self.errors[value["handle"]]

    def ask(self, do, *args, **kwargs):
        self.send({"do": do, "args": self.encode(list(args)), "kwargs": self.encode(kwargs)})
        answer = self.receive()
        while "callback" in answer:
            called = self.objects[answer["callback"]](*self.decode(answer["args"]), **self.decode(answer["kwargs"]))
            self.send({"value": self.encode(called)})
            answer = self.receive()
        self.stream.write(str(answer["printed"]))
        for given, after in zip(args, answer["args"], strict=False):
            if after is not None:
                update(given, self.decode(after))
        if "error" not in answer:
            return self.decode(answer["value"])
        told = answer["error"]
        error = self.remote(told)(*self.decode(told["args"]))
        error.__dict__["_remote"] = int(told["raised"])
        self.stream.write(str(told["told"]))
        raise error


def update(given, after):
    """Give a container the content that the call left in it."""
    if type(given) is list:
        given[:] = after
    elif type(given) in (dict, set):
        given.clear()
        given.update(after)


class Remote:
    """An object of the code under test."""

    def __init__(self, judge, handle, name):
        for key, value in (("_judge", judge), ("_handle", handle), ("_name", name)):
            object.__setattr__(self, key, value)

    def __getattr__(self, name):
        return self._judge.ask("getattr", self, name)

    def __setattr__(self, name, value):
        self._judge.ask("setattr", self, name, value)


def forwarded(name):
    def method(self, *args, **kwargs):
        if name in COMPARED and not isinstance(args[0], Remote):
            return NotImplemented
        return self._judge.ask(name, self, *(args if name != "__exit__" else ()), **kwargs)

    return method


for _name in OPERATIONS:
    if _name.startswith("__"):
        setattr(Remote, _name, forwarded(_name))


class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The judge's imports from the repository: tests from the texts read at the start, all else from the child."""

    def __init__(self, judge, tests, names):
        self.judge, self.tests, self.names = judge, tests, names

    def find_spec(self, name, path=None, target=None):
        if name in self.tests or name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=name not in self.tests or self.tests[name][1])
        return None

    def create_module(self, spec):
        if spec.name in self.tests:
            return None
        remote = self.judge.ask("import", None, spec.name)
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda attribute: getattr(remote, attribute)
        return module

    def exec_module(self, module):
        if module.__name__ in self.tests:
            source, _, file = self.tests[module.__name__]
            module.__file__ = file
            exec(compile(source, file, "exec"), module.__dict__)


def read_tests(folder):
    """Module name -> (source, is a package, file) of everything below tests/."""
    found = {"tests": ("", True, "tests/__init__.py")}
    for where, _, files in os.walk(os.path.join(folder, "tests")):
        package = os.path.relpath(where, folder).replace(os.sep, ".")
        found.setdefault(package, ("", True, f"{package}/__init__.py"))
        for file in sorted(files):
            if file.endswith(".py"):
                with open(os.path.join(where, file), encoding="utf-8") as stream:
                    whole = file == "__init__.py"
                    found[package if whole else f"{package}.{file[:-3]}"] = (stream.read(), whole, os.path.join(where, file))
    return found


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


def prctl(option, value):
    """A setting of this process; nothing where the system has none."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def cut_network():
    """No network: a name space without one where the system allows it, else a hook on Python's sockets."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER_AND_NETWORK) == 0:
        return "namespace"

    def refuse(event, arguments):
        if event.startswith("socket.") and event != "socket.gethostname":
            raise PermissionError("no network here")

    sys.addaudithook(refuse)
    return "hook"


def start_child(settings):
    """(network of the child, descriptors of its answers and of its questions); the child itself never returns."""
    (asks, to_child), (from_child, answers), (ready, tell) = os.pipe(), os.pipe(), os.pipe()
    if os.fork():
        for end in (asks, answers, tell):
            os.close(end)
        with os.fdopen(ready) as line:
            return line.readline().strip(), from_child, to_child
    code = 1
    try:
        # The marker waits in the judge's standard input, and reports go to its standard output: the child has neither.
        nothing = os.open(os.devnull, os.O_RDWR)
        for end in (0, 1, 2):
            os.dup2(nothing, end)
        for end in (to_child, from_child, ready):
            os.close(end)
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if settings.get("limits"):
            limit(**settings["limits"])
        network = cut_network() if settings.get("cut_network") else "as the service has it"
        os.write(tell, f"{network}\n".encode())
        os.close(tell)
        sys.path.insert(0, os.getcwd())
        Child(asks, answers).serve()
        code = 0
    finally:
        os._exit(code)


def main(settings):
    """Run every test under ``tests`` and print the report after the marker, the first line of standard input."""
    os.chdir(settings["repository"])
    sys.path[:] = [path for path in sys.path if path not in ("", ".", os.getcwd())]  # nothing of the repository is imported here
    tests = read_tests(os.getcwd())
    names = {entry.removesuffix(".py") for entry in os.listdir() if entry != "tests"}
    network, read, write = start_child(settings)
    prctl(DUMPABLE, 0)  # the child has this user's rights: it must neither trace the judge nor open its files
    marker = sys.stdin.readline().strip()
    stream = io.StringIO()
    sys.meta_path.insert(0, Modules(Judge(read, write, stream), tests, names))
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        loader, suite = unittest.TestLoader(), unittest.TestSuite()
        for name in sorted(tests):
            if name.rpartition(".")[2].startswith("test") and not tests[name][1]:
                suite.addTests(loader.loadTestsFromName(name))
        result = unittest.TextTestRunner(stream=stream, resultclass=Recorder).run(suite)
    # The same run prints the same: no temporary folder, no seconds.
    output = re.sub(r" in \d+\.\d+s\b", "", stream.getvalue())
    for folder in (os.getcwd(), os.path.dirname(os.getcwd())):
        output = output.replace(folder + os.sep, "")
    report = {
        "passed": result.passed,
        "ran": result.testsRun,
        "network": network,
        "output": output[-OUTPUT_CHARS:],
    }
    sys.stdout.write(f"\n{marker}{json.dumps(report)}\n")
    sys.stdout.flush()
