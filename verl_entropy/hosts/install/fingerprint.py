# SPDX-License-Identifier: Apache-2.0
"""Whether the code that this package wraps or subclasses is the code that it was tested with: hashes of its source text.

A fingerprint is the SHA-256 of a function's source without comments, blank lines and indentation of the whole; nothing is imported.
Text, not syntax trees: those differ between versions of Python. Used for verl here and for verl-agent in
``hosts.verl_agent.fingerprints``. A changed body of verl is no error (``compat`` checks that names and parameters are there), but it
explains a surprise: a local patch, or a version of the same number. ``python -m verl_entropy.hosts.install.fingerprint`` writes the
table for the installed verl.
"""

from __future__ import annotations

import ast
import hashlib
import json
import textwrap
from pathlib import Path

from verl_entropy.hosts.install import compat

TABLE = Path(__file__).with_name("fingerprints.json")
"""version -> symbol -> hash."""


def functions(source: str) -> dict[str, str]:
    """Fingerprints of the functions and methods of a source text, by qualified name; later definitions win, as in Python."""
    lines, found = source.splitlines(), {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found[prefix + node.name] = _digest(lines[start - 1 : node.end_lineno])

    visit(ast.parse(source).body, "")
    return found


def _digest(lines: list[str]) -> str:
    code = [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return hashlib.sha256(textwrap.dedent("\n".join(code)).encode()).hexdigest()[:16]


def installed() -> dict[str, str]:
    """Hash of every function and method in ``compat.SYMBOLS``; names that verl only imports or assigns have none."""
    found = {}
    for module, symbols in compat.SYMBOLS.items():
        text = compat.source(module)
        if text is None:
            continue
        known = functions(text)
        found.update({f"{module}.{name}": known[name] for name in symbols if name in known})
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
