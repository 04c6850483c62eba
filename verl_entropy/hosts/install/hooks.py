# SPDX-License-Identifier: Apache-2.0
"""Run a function right after a module is imported.

verl imports its trainer, workers and registries late and in different processes. Importing them from the plugin would cost
seconds in every process and would be circular, so each piece of glue waits here for the verl module that it belongs to.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType

Callback = Callable[[ModuleType], None]
_callbacks: dict[str, list[Callback]] = {}


class _Loader(importlib.abc.Loader):
    """Delegates to the real loader, then calls the callbacks of the module."""

    def __init__(self, inner: importlib.abc.Loader, spec: importlib.machinery.ModuleSpec):
        self._inner, self._spec = inner, spec

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Leave no trace of this loader on the module: pickling, reloading and resources see the real one.
        self._spec.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        for callback in _callbacks.pop(module.__name__, []):
            callback(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, spec)
                return spec
        return None


_finder = _Finder()


def after_import(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` once, right after module ``name`` is imported; at once if it is imported already."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    _callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def pending() -> list[str]:
    """Names of the modules that are still waited for."""
    return sorted(_callbacks)
