# SPDX-License-Identifier: Apache-2.0
"""Small repositories with a bug each: eight Python packages of this project, three bugs in each, or a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

SPLITS = ("train", "dev", "test")
BUNDLED = Path(__file__).with_name("data") / "swe"


@dataclass(frozen=True)
class Edit:
    """Replace ``old`` by ``new`` in a file, where it stands exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Repair:
    """A repository whose tests fail, and the edit that repairs it."""

    name: str
    repository: str
    issue: str
    files: dict[str, str]
    tests: frozenset[str]
    fix: Edit


@lru_cache(maxsize=8)
def repairs(folder: str | None) -> dict[str, tuple[Repair, ...]]:
    """The tasks of every split of a folder of .json files (None: the bundled ones)."""
    place = BUNDLED if folder is None else Path(folder).expanduser()
    files = sorted(place.glob("*.json")) if place.is_dir() else []
    if not files:
        raise ValueError(f"repositories={str(place)!r}: no such folder, or no .json file in it")
    found: dict[str, list[Repair]] = {split: [] for split in SPLITS}
    for file in files:
        try:
            split, tasks = _read(json.loads(file.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"repositories: {str(file)!r}, line {error.lineno}: not JSON ({error.msg})") from error
        except (OSError, ValueError) as error:
            raise ValueError(f"repositories: {str(file)!r}: {error}") from error
        found[split].extend(tasks)
    return {split: tuple(tasks) for split, tasks in found.items()}


def _read(data: Any) -> tuple[str, list[Repair]]:
    """One file: ``{name, summary, split, files: {path: [lines]}, tests: [ids], bugs: [{name, issue, file, right, wrong}]}``."""
    missing = [key for key in ("name", "summary", "split", "files", "tests", "bugs") if not data.get(key)]
    if missing:
        raise ValueError(f"needs {', '.join(missing)}")
    if data["split"] not in SPLITS:
        raise ValueError(f"split={data['split']!r}: choose from {', '.join(SPLITS)}")
    files = {_inside(path): _text(lines) for path, lines in data["files"].items()}
    return data["split"], [_repair(data, files, bug) for bug in data["bugs"]]


def _repair(data: Mapping[str, Any], files: dict[str, str], bug: Mapping[str, Any]) -> Repair:
    missing = [key for key in ("name", "issue", "file", "right", "wrong") if key not in bug]
    if missing:
        raise ValueError(f"bug {bug.get('name')!r} needs {', '.join(missing)}")
    path, right, wrong = bug["file"], _text(bug["right"]), _text(bug["wrong"])
    if files.get(path, "").count(right) != 1:
        raise ValueError(f"bug {bug['name']!r}: 'right' must stand exactly once in {path!r}")
    broken = files[path].replace(right, wrong)
    if broken.count(wrong) != 1:
        raise ValueError(f"bug {bug['name']!r}: 'wrong' must stand exactly once in {path!r} once it is there")
    issue = f"The Python package {data['name']} {data['summary']}. {bug['issue']}"
    name = f"{data['name']}/{bug['name']}"
    return Repair(name, data["name"], issue, {**files, path: broken}, frozenset(data["tests"]), Edit(path, wrong, right))


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError(f"file {path!r} must lie inside the repository")
    return str(pure)


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
