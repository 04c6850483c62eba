# SPDX-License-Identifier: Apache-2.0
"""Whether the code of verl that this package wraps is the code that it was tested with: hashes of its source text.

A changed body is no error (``compat`` checks that names and parameters are there), but it explains a surprise: a local patch, or a
version of the same number. ``python -m verl_entropy.hosts.install.fingerprint`` writes the table for the installed verl.
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

from verl_entropy.hosts.install import compat

TABLE = Path(__file__).with_name("fingerprints.json")
"""version -> symbol -> hash."""


def _nodes(tree: ast.Module) -> dict[str, ast.AST]:
    """Functions by name and methods by ``Class.method``; later definitions win, as in Python."""
    found: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.update({f"{node.name}.{n.name}": n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)})
    found.update({n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)})
    return found


def _hash(lines: list[str], node: ast.AST) -> str:
    # Text, not syntax trees: those differ between versions of Python.
    text = "\n".join(line.rstrip() for line in lines[node.lineno - 1 : node.end_lineno])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def installed() -> dict[str, str]:
    """Hash of every function and method in ``compat.SYMBOLS``; names that verl only imports or assigns have none."""
    found = {}
    for module, symbols in compat.SYMBOLS.items():
        text = compat.source(module)
        if text is None:
            continue
        nodes, lines = _nodes(ast.parse(text)), text.splitlines()
        found.update({f"{module}.{name}": _hash(lines, nodes[name]) for name in symbols if name in nodes})
    return found


def total(hashes: dict[str, str]) -> str:
    """One hash of them all, to compare two machines by eye."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:12]


def tested() -> dict[str, dict[str, str]]:
    """The hashes of the tested versions."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def changed(hashes: dict[str, str]) -> list[str]:
    """Symbols that the tested versions have, with another source text."""
    known: dict[str, set[str]] = {}
    for version in tested().values():
        for name, value in version.items():
            known.setdefault(name, set()).add(value)
    return [name for name, value in hashes.items() if name in known and value not in known[name]]


if __name__ == "__main__":
    table = {**(tested() if TABLE.is_file() else {}), str(compat.verl_version()): installed()}
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
