# SPDX-License-Identifier: Apache-2.0
"""Run a function right after a module is imported.

verl imports its trainer, workers and registries late and in different processes. Importing them from the plugin would cost
seconds in every process and would be circular, so each piece of glue waits here for the verl module that it belongs to.

Nothing waits before a run asks for it, and by then some of verl is imported: a function for a module that is loaded runs at once,
and what other modules have imported of it by name (``spread``) is replaced there too.

A function that raises does not break verl: the module is put back as it was, the cause is printed and kept in ``FAILED``, and
the other functions still run. Where a run has chosen anything of ours, ``require`` makes such a failure stop it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from verl_entropy.log import say

Callback = Callable[[ModuleType], None]
_callbacks: dict[str, list[tuple[Callback, tuple[str, ...]]]] = {}
"""Module -> functions that wait for it, each with the names that other modules import from it."""
_required = False

CHOSEN = "VERL_ENTROPY_CHOSEN"
"""Environment variable that the driver sets for the processes of its run: the groups of pieces that are asked for, by commas."""

FAILED: dict[str, str] = {}
"""Module -> why a function that waited for it raised."""


class HookError(RuntimeError):
    """A run needs a piece of ours that could not be put into verl."""


class _Loader(importlib.abc.Loader):
    """The real loader (its get_source, get_code, get_data ... too), which calls the callbacks of the module at the end."""

    def __init__(self, inner: importlib.abc.Loader, spec: importlib.machinery.ModuleSpec):
        self._inner, self._spec = inner, spec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":  # a copy or a pickle that is not filled yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Leave no trace of this loader on the module: pickling, reloading and resources see the real one.
        self._spec.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        _run(module, _callbacks.pop(module.__name__, []))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _callbacks:
            return None
        busy: set[str] = self._searching.__dict__.setdefault("names", set())
        if fullname in busy:
            # Asked by another finder that goes through sys.meta_path as we do; we would ask each other for ever.
            return None
        busy.add(fullname)
        try:
            for finder in list(sys.meta_path):
                if finder is self:
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _Loader(spec.loader, spec)
                    return spec
            return None
        finally:
            busy.discard(fullname)


_finder = _Finder()


def after_import(name: str, callback: Callback, spread: Sequence[str] = ()) -> None:
    """Call ``callback(module)`` once, right after module ``name`` is imported; at once if it is imported already.

    What it puts in the place of a name in ``spread`` replaces the old object in every other module that holds it by that name.
    """
    module = sys.modules.get(name)
    if module is not None:
        _run(module, [(callback, tuple(spread))])
        return
    _callbacks.setdefault(name, []).append((callback, tuple(spread)))
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def pending() -> list[str]:
    """Names of the modules that are still waited for."""
    return sorted(_callbacks)


def require() -> None:
    """Something of ours is chosen in this process: HookError if a piece is missing, now or at a later import."""
    global _required
    _required = True
    if FAILED:
        raise HookError(_refusal())


def _refusal() -> str:
    causes = "; ".join(f"{name} ({cause})" for name, cause in sorted(FAILED.items()))
    return (
        f"verl-entropy could not extend {causes}, and this run has chosen something that needs the plugin whole. "
        "Fix: run `verl-entropy doctor`, install a verl that it supports, or take the keys of verl-entropy out."
    )


def _run(module: ModuleType, callbacks: list[tuple[Callback, tuple[str, ...]]]) -> None:
    """Every callback, also after one that raised; what a raising one changed in the module is undone."""
    for callback, spread in callbacks:
        before = _state(module)
        try:
            old = {name: vars(module)[name] for name in spread}
            callback(module)
        except Exception as error:
            _restore(before)
            cause = f"{type(error).__name__}: {error}"
            FAILED[module.__name__] = "; ".join(filter(None, (FAILED.get(module.__name__), cause)))
            say(
                f"{module.__name__} is left as it was, for the plugin's piece for it failed: {cause}. A run that has chosen "
                "anything of verl-entropy stops; any other goes on. Fix: run `verl-entropy doctor`."
            )
        else:
            _spread(module, old)
    if module.__name__ in FAILED and (_required or os.environ.get(CHOSEN)):
        raise HookError(_refusal())


def _spread(module: ModuleType, old: dict[str, Any]) -> None:
    """Give the modules that hold an old object of ``module`` by its name the new one."""
    changed = {name: vars(module)[name] for name, was in old.items() if vars(module)[name] is not was}
    for holder in list(sys.modules.values()) if changed else ():
        if isinstance(holder, ModuleType):
            for name, new in changed.items():
                if vars(holder).get(name) is old[name]:
                    setattr(holder, name, new)


def _state(module: ModuleType) -> list[tuple[Any, dict]]:
    """The module's names, the attributes of the classes that it defines, and the entries of its dicts (registries)."""
    owned = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    tables = [v for k, v in vars(module).items() if type(v) is dict and not k.startswith("__")]
    return [(table, dict(table)) for table in tables] + [(owner, dict(vars(owner))) for owner in (*owned, module)]


def _restore(before: list[tuple[Any, dict]]) -> None:
    for owner, names in before:
        if isinstance(owner, dict):
            owner.clear()
            owner.update(names)
            continue
        now = dict(vars(owner))
        for name in now.keys() - names.keys():
            delattr(owner, name)
        for name, value in names.items():
            if now.get(name, owner) is not value:
                setattr(owner, name, value)
