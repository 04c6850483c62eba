# SPDX-License-Identifier: Apache-2.0
"""The methods there are: what the kinds' folders hold, what other packages offer, and what a configuration names as pkg.mod:NAME.

Nothing is listed by hand. A module-level ``Method`` in a file of ``estimators/``, ``transforms/``, ``losses/``, ``clips/``,
``regularizers/``, ``heads/`` or ``rollouts/`` is ours; one under an entry point of the group ``verl_entropy.methods`` is its package's.

A method's file imports torch. Commands that only print or check read ``index.json`` instead, the texts and settings of the files
with their hash; where the hash is not that of the files, these are imported. ``python -m verl_entropy.methods.registry`` writes it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import pkgutil
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_entropy.methods.method import KINDS, ConfigError, Method, Metric, setting

GROUP = "verl_entropy.methods"
"""Entry-point group of other packages' methods: ``name = "package.module:NAME"``, or a module with several."""
FOLDERS = {
    "estimator": "estimators",
    "transform": "transforms",
    "loss": "losses",
    "clip": "clips",
    "regularizer": "regularizers",
    "head": "heads",
    "rollout": "rollouts",
}
ROOT = Path(__file__).parent
INDEX = ROOT / "index.json"
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DESCRIBED = ("settings", "metrics", "origin", "chosen_as")
"""Fields of a method that the index holds in a form of their own, or not at all."""


# ----------------------------------------------------------------------------- what there is


def methods(kind: str | None = None, name: str | None = None) -> list[Method]:
    """All methods, or those of a kind or a name, by kind, order of application and name."""
    return [m for m in _all() if kind in (None, m.kind) and name in (None, m.name)]


def names(kind: str) -> list[str]:
    """Names of all methods of one kind."""
    return [m.name for m in methods(kind)]


def get(kind: str, word: str) -> Method:
    """The method that ``word``, a name or pkg.mod:NAME, means on the axis ``kind``; ConfigError with what there is otherwise."""
    for method in methods(kind, word):
        return method
    if is_reference(word):
        return _outside(kind, word)
    raise ConfigError(
        f"{kind} {word!r} is unknown. Known: {', '.join(names(kind)) or 'none'}; or a method of your own as package.module:NAME."
    )


def doubts(method: Method, settings: Any, raw: Mapping[str, Any]) -> list[str]:
    """What the method warns of at start, with the method's file loaded for it."""
    if method.doubts is _not_loaded:
        method = next(m for m in _live() if (m.kind, m.name) == (method.kind, method.name))
    return [] if method.doubts is None else list(method.doubts(settings, raw))


def is_reference(word: str) -> bool:
    """Whether ``word`` has the form pkg.mod:NAME."""
    return bool(_REFERENCE.fullmatch(word))


def find(word: str) -> Method:
    """The object that pkg.mod:NAME names, whatever its kind; ConfigError where it is none."""
    module, _, name = word.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"{word}: {module} does not import ({error}). Install its package, or set PYTHONPATH for every process."
        ) from error
    except AttributeError:
        raise ConfigError(f"{word}: {module} has no {name}. Name a module-level method, for example {module}:METHOD.") from None
    if not isinstance(found, Method):
        raise ConfigError(
            f"{word}: is a {type(found).__name__}, not a method. Make it one of {', '.join(c.__name__ for c in KINDS.values())} of "
            "verl_entropy.methods.method."
        )
    return found


@functools.cache
def _outside(kind: str, word: str) -> Method:
    method = find(word)
    if method.kind != kind:
        raise ConfigError(f"{word}: is a {method.kind}, and this key takes a {kind}. Select it with {method.key}.")
    method = _from(method, word.partition(":")[0].partition(".")[0], word)
    _refuse_twice([*methods(kind), method])
    return method


def _from(method: Method, origin: str, word: str = "") -> Method:
    return dataclasses.replace(method, origin=origin, chosen_as=word)


def _all() -> tuple[Method, ...]:
    """Live objects where torch is loaded anyway; else the index, if it is of these files."""
    return _live() if "torch" in sys.modules else _cheap()


@functools.cache
def _live() -> tuple[Method, ...]:
    return _with_others(_import_ours())


@functools.cache
def _cheap() -> tuple[Method, ...]:
    described = _read_index()
    return _with_others(_import_ours() if described is None else described)


def _import_ours() -> list[Method]:
    found = []
    for kind, folder in FOLDERS.items():
        package = importlib.import_module(f"{__package__}.{folder}")
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            loaded = importlib.import_module(f"{package.__name__}.{module.name}")
            found += [m for m in vars(loaded).values() if isinstance(m, Method) and m.kind == kind]
    return found


def _with_others(ours: list[Method]) -> tuple[Method, ...]:
    found = list(ours)
    for entry in importlib.metadata.entry_points(group=GROUP):
        found += _entry(entry)
    _refuse_twice(found)
    place = list(KINDS)
    return tuple(sorted(found, key=lambda m: (place.index(m.kind), getattr(m, "order", 0), m.name)))


def _entry(entry: importlib.metadata.EntryPoint) -> list[Method]:
    origin = entry.dist.name if entry.dist is not None else entry.value
    try:
        loaded = entry.load()
    except Exception as error:
        raise ConfigError(
            f"the methods of {origin} do not load: entry point {entry.name} = {entry.value} raises {type(error).__name__}: {error}. "
            f"Mend or uninstall {origin}."
        ) from error
    found = [loaded] if isinstance(loaded, Method) else [m for m in vars(loaded).values() if isinstance(m, Method)]
    if not found:
        raise ConfigError(f"entry point {entry.name} = {entry.value} of {origin}: holds no method. Mend or uninstall {origin}.")
    return [_from(method, origin) for method in found]


def _refuse_twice(found: list[Method]) -> None:
    """A name twice on an axis, or a state or section twice over the axes."""
    taken: dict[tuple[str, str], Method] = {}
    for method in found:
        keys = [(method.kind, method.name), (method.path, "settings")]
        if method.state is not None:
            keys.append(("state", method.name))
        for key in keys:
            other = taken.setdefault(key, method)
            if other is not method:
                raise ConfigError(
                    f"{method.kind} {method.name} of {method.origin}: {other.origin} has {other.kind} {other.name} already. Rename one "
                    "of them, or uninstall its package."
                )


# ----------------------------------------------------------------------------- the index


def _hash() -> str:
    """Of every file that a method's description can come from."""
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def write_index() -> None:
    """Write ``index.json`` from the files."""
    content = {"hash": _hash(), "methods": [_describe(m) for m in _import_ours()]}
    INDEX.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_index() -> list[Method] | None:
    """The methods as the index describes them; None where it is of other files."""
    try:
        content = json.loads(INDEX.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return [_described(entry) for entry in content["methods"]] if content["hash"] == _hash() else None


def _describe(method: Method) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": method.kind}
    for f in dataclasses.fields(method):
        value = getattr(method, f.name)
        if f.name in _DESCRIBED:
            continue
        if callable(value):
            entry[f.name] = {"function": True}
        elif isinstance(value, frozenset):
            entry[f.name] = sorted(value)
        elif value not in (None, (), "", {}):
            entry[f.name] = dict(value) if isinstance(value, Mapping) else value
    entry["metrics"] = {name: dataclasses.asdict(metric) for name, metric in method.metrics.items()}
    entry["settings"] = {
        "name": method.settings.__name__,
        "doc": method.settings.__doc__,
        "fields": [
            {"name": f.name, "type": f.type, "default": f.default, **_given(f.metadata)}
            for f in dataclasses.fields(method.settings)
        ],
    }
    return entry


def _given(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if value is not None}


def _not_loaded(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this method is described, not loaded: import torch before the registry is asked for it.")


def _described(entry: dict[str, Any]) -> Method:
    fields = dict(entry)
    cls, section = KINDS[fields.pop("kind")], fields.pop("settings")
    metrics = {name: Metric(**values) for name, values in fields.pop("metrics").items()}
    values = {name: _value(name, value) for name, value in fields.items()}
    return cls(settings=_settings(section), metrics=metrics, **values)


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict) and value.get("function") is True:
        return _not_loaded
    if name == "needs":
        return frozenset(value)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _settings(section: dict[str, Any]) -> type:
    fields = []
    for f in section["fields"]:
        meta = {key: _tuples(value) for key, value in f.items()}
        name, kind, default, doc = (meta.pop(key) for key in ("name", "type", "default", "doc"))
        fields.append((name, kind, setting(default, doc, **meta)))
    return dataclasses.make_dataclass(section["name"], fields, frozen=True, namespace={"__doc__": section["doc"]})


if __name__ == "__main__":
    write_index()
