# SPDX-License-Identifier: Apache-2.0
"""What hosts/ and upstream/ touch of verl and its queue, read from their source: (module, name, file:line) of every use.

Followed are imports, modules under another name, the module that a piece of ``wiring`` gets, classes and modules that are assigned or
handed to a function of the same file, methods put into a class, ``super()`` in a class over one of verl's, and the names in ``OBJECTS``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import verl_entropy
from verl_entropy.hosts.install import compat
from verl_entropy.hosts.verl_engine import wiring

PACKAGE = Path(verl_entropy.__file__).parent
FOLDERS = ("hosts/common", "hosts/install", "hosts/verl_engine", "hosts/verl_v1", "hosts/verl_ray", "upstream")
ROOTS = ("verl", "transfer_queue")
TRAINER = ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer")
OBJECTS = {
    "trainer": TRAINER,
    "buffer": ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer"),
    "batch": ("transfer_queue.metadata", "KVBatchMeta"),
    "engine_config": ("verl.workers.config.engine", "FSDPEngineConfig"),
}
"""Variables, and attributes of ``self`` and ``call``, that hold an object of verl in these files."""
OURS = ("trainer_active",)
"""Attributes of our classes over verl's, read in other functions."""
OBJECT_FILES = ("hosts.verl_v1.trainer", "hosts.verl_engine.engine", "hosts.common.diagnostics_side", "upstream.polling")
ENGINE = ("verl.workers.engine.fsdp.transformer_impl", "FSDPEngineWithLMHead")
MIXINS = {"EntropyEngineMixin": ENGINE}
"""Classes of ours that are mixed into one of verl's."""

Alias = tuple[str, str]
"""A module of verl, and the name of a class in it or ''."""


@functools.cache
def is_module(name: str) -> bool:
    return compat.source(name) is not None


class Scan(ast.NodeVisitor):
    """One function or module; ``names`` are the variables that hold something of verl."""

    def __init__(self, file: File, names: dict[str, Alias], found: list, outer: str = "", own: frozenset[str] = frozenset()):
        self.file, self.names, self.found, self.outer, self.own = file, dict(names), found, outer, own

    def note(self, alias: Alias, node: ast.AST) -> None:
        if alias[1]:
            self.found.append((*alias, f"{self.file.path.relative_to(PACKAGE)}:{node.lineno}"))

    def alias(self, node: ast.AST) -> Alias | None:
        """What of verl an expression is, as far as names tell."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.alias(node.value)
            if base is None:
                held = isinstance(node.value, ast.Name) and node.value.id in ("self", "call")
                return self.file.objects.get(node.attr) if held else None
            module, name = base
            return (module, f"{name}.{node.attr}") if name else self.file.member(module, node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return self.names.get("self")
        return None

    def visit_Import(self, node: ast.Import) -> None:
        for item in node.names:
            if item.name.split(".")[0] in ROOTS:
                self.names[item.asname or item.name.split(".")[0]] = (item.name if item.asname else item.name.split(".")[0], "")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level and node.module.split(".")[0] in ROOTS:
            for item in node.names:
                alias = self.file.member(node.module, item.name)
                self.names[item.asname or item.name] = alias
                self.note(alias, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        alias = self.alias(node)
        # the method of a method, the attribute of a value: verl's names end at a class's member
        base = self.alias(node.value)
        if alias is not None and base is not None and alias[1].count(".") < 2 and not base[1].isupper():
            ours = isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in self.own
            ours = ours or "verl_entropy" in node.attr or node.attr in OURS
            if not ours and (node.attr == "__init__" or not node.attr.startswith("__")):
                self.note(alias, node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        pairs = []
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs += zip(target.elts, node.value.elts, strict=True)
            else:
                pairs.append((target, node.value))
        for target, value in pairs:
            alias = self.alias(value)
            if isinstance(target, ast.Name) and alias is not None and alias[1].count(".") < 1:
                self.names[target.id] = alias
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        names = {k: v for k, v in self.names.items() if k not in {a.arg for a in node.args.args}}
        names |= {a.arg: self.file.objects[a.arg] for a in node.args.args if a.arg in self.file.objects}
        if node.args.args and node.args.args[0].arg == "self":
            holder = self.file.methods.get((self.outer, node.name)) or self.names.get("self")
            if holder:
                names["self"] = holder
        names |= self.file.arguments.get(node.name, {})
        inner = Scan(self.file, names, self.found, node.name, self.own)
        for child in node.body:
            inner.visit(child)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self.alias(base) for base in node.bases if self.alias(base)]
        holder = MIXINS.get(node.name) or (bases[0] if bases else None)
        own = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        own |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
        inner = Scan(self.file, {**self.names, **({"self": holder} if holder else {})}, self.found, node.name, frozenset(own))
        for child in node.body:
            inner.visit(child)

    def visit_Call(self, node: ast.Call) -> None:
        # a function of this file that is handed a module or a class
        if isinstance(node.func, ast.Name) and node.func.id in self.file.functions:
            for parameter, value in zip(self.file.functions[node.func.id].args.args, node.args, strict=False):
                alias = self.alias(value)
                if alias is not None and alias[1].count(".") < 1:
                    self.file.arguments.setdefault(node.func.id, {})[parameter.arg] = alias
        self.generic_visit(node)


class File:
    """A file of ours: its functions, what they are given, and which of them become methods of verl's classes."""

    def __init__(self, path: Path):
        self.path, self.tree = path, ast.parse(path.read_text(encoding="utf-8"))
        relative = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        self.objects = OBJECTS if relative in OBJECT_FILES else {}
        self.functions = {n.name: n for n in self.tree.body if isinstance(n, ast.FunctionDef)}
        self.arguments: dict[str, dict[str, Alias]] = {}
        for piece in wiring.PIECES:
            file, _, name = piece.function.rpartition(".")
            if file == relative and piece.module.split(".")[0] in ROOTS:
                self.arguments[name] = {self.functions[name].args.args[0].arg: (piece.module, "")}
        self.methods: dict[tuple[str, str], Alias] = {}

    def member(self, module: str, name: str) -> Alias:
        inner = f"{module}.{name}"
        return (inner, "") if is_module(inner) else (module, name)

    def uses(self) -> list:
        """Scanned until nothing new is handed from function to function."""
        while True:
            before = str((self.arguments, self.methods))
            found: list = []
            scan = Scan(self, {}, found)
            for node in self.tree.body:
                scan.visit(node)
            self._methods()
            if str((self.arguments, self.methods)) == before:
                return found

    def _methods(self) -> None:
        """``trainer_cls.step = step`` makes the function a method of that class."""
        for function in (n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)):
            names = dict(self.arguments.get(function.name, {}))
            scan = Scan(self, names, [])
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    scan.visit_Assign(node)
            for node in ast.walk(function):
                for target, value in _pairs(node):
                    holder = scan.alias(target.value) if isinstance(target, ast.Attribute) else None
                    if holder is not None and holder[1] and "." not in holder[1] and isinstance(value, ast.Name):
                        self.methods[function.name, value.id] = holder


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def uses() -> list[tuple[str, str, str]]:
    """Every use, in the order of files."""
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    return [use for path in paths for use in File(path).uses()]


if __name__ == "__main__":
    print("\n".join(f"{m}  {n}  {w}" for m, n, w in sorted(set(uses()))))
