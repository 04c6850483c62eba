# SPDX-License-Identifier: Apache-2.0
"""The import hook beside another one of the same design, with functions that raise, and for tools that look before they import."""

import importlib
import importlib.abc
import importlib.util
import sys

import pytest

from verl_entropy.hosts.install import hooks

_NUMBER = iter(range(1000))


@pytest.fixture
def module_name(tmp_path, monkeypatch):
    """A fresh module on the import path, with a function, a class and a registry."""
    name = f"waited_for_{next(_NUMBER)}"
    (tmp_path / f"{name}.py").write_text("TABLE = {'a': 1}\n\n\ndef step():\n    return 1\n\n\nclass Trainer:\n    x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setattr(hooks, "FAILED", {})
    monkeypatch.setattr(hooks, "_required", False)
    monkeypatch.delenv(hooks.CHOSEN, raising=False)
    yield name
    sys.modules.pop(name, None)
    hooks._callbacks.pop(name, None)


class OtherLoader(importlib.abc.Loader):
    def __init__(self, inner, seen):
        self.inner, self.seen = inner, seen

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        self.seen.append(module.__name__)


class OtherFinder(importlib.abc.MetaPathFinder):
    """Another plugin's finder: it too asks every finder but itself, without a guard of its own."""

    def __init__(self, name):
        self.name, self.seen = name, []

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    spec.loader = OtherLoader(spec.loader, self.seen)
                    return spec
        return None


@pytest.mark.parametrize("first", [True, False])
def test_two_finders_of_one_design_do_not_ask_each_other_for_ever(module_name, monkeypatch, first):
    seen, other = [], OtherFinder(module_name)
    hooks.after_import(module_name, lambda m: seen.append(m.__name__))
    rest = [f for f in sys.meta_path if f is not hooks._finder]
    ours = [other, hooks._finder] if first else [hooks._finder, other]
    monkeypatch.setattr(sys, "meta_path", [*ours, *rest])
    module = importlib.import_module(module_name)
    assert module.step() == 1 and seen == [module_name] and set(other.seen) == {module_name}


def test_a_waited_for_module_shows_its_source_and_code_before_it_is_imported(module_name):
    seen = []
    hooks.after_import(module_name, seen.append)
    loader = importlib.util.find_spec(module_name).loader
    assert "class Trainer" in loader.get_source(module_name)
    assert loader.get_code(module_name).co_filename == loader.get_filename(module_name) == loader.path
    assert not seen and module_name in hooks.pending()
    assert importlib.import_module(module_name) is seen[0]


def test_a_function_that_raises_leaves_the_module_as_it_was_and_the_others_run(module_name, capsys):
    def breaks(module):
        module.step, module.new, module.Trainer.x, module.Trainer.y = None, 1, 2, 3
        module.TABLE["b"] = 2
        del module.TABLE["a"]
        raise AttributeError("Trainer has no _update_actor")

    def works(module):
        module.mark = module.step()

    hooks.after_import(module_name, works)
    hooks.after_import(module_name, breaks)
    hooks.after_import(module_name, lambda module: setattr(module, "late", True))
    module = importlib.import_module(module_name)
    assert module.mark == 1 and module.late and module.step() == 1 and not hasattr(module, "new")
    assert module.Trainer.x == 1 and not hasattr(module.Trainer, "y") and module.TABLE == {"a": 1}
    assert "no _update_actor" in hooks.FAILED[module_name]
    said = capsys.readouterr().err
    assert f"{module_name} is left as it was" in said and "no _update_actor" in said and "Fix:" in said


def _raise(module):
    raise KeyError("gone")


def test_a_failed_piece_stops_a_run_that_has_chosen_something_whichever_comes_first(module_name, monkeypatch):
    hooks.after_import(module_name, _raise)
    importlib.import_module(module_name)  # nothing chosen: verl goes on
    with pytest.raises(hooks.HookError, match=rf"{module_name}.*gone.*Fix:"):
        hooks.require()
    sys.modules.pop(module_name)
    hooks.FAILED.clear()
    hooks.require()
    hooks.after_import(module_name, _raise)
    with pytest.raises(hooks.HookError, match="gone"):
        importlib.import_module(module_name)


def test_a_failed_piece_stops_a_worker_whose_driver_has_chosen_something(module_name, monkeypatch):
    monkeypatch.setenv(hooks.CHOSEN, "methods")
    hooks.after_import(module_name, _raise)
    with pytest.raises(hooks.HookError, match="gone"):
        importlib.import_module(module_name)


def test_a_module_whose_import_fails_is_still_waited_for(module_name, tmp_path):
    good, seen = (tmp_path / f"{module_name}.py").read_text(), []
    (tmp_path / f"{module_name}.py").write_text("raise ImportError('not yet')\n")
    hooks.after_import(module_name, seen.append)
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(module_name)
    (tmp_path / f"{module_name}.py").write_text(good)
    importlib.invalidate_caches()
    assert [importlib.import_module(module_name)] == seen


def test_what_others_imported_by_name_is_replaced_there_too(module_name, tmp_path):
    (tmp_path / f"{module_name}_user.py").write_text(
        f"from {module_name} import step\nfrom {module_name} import Trainer as step_of\n"
    )
    module, user = importlib.import_module(module_name), importlib.import_module(f"{module_name}_user")
    before, kept = module.step, user.step_of

    def new():
        return 2

    def breaks(m):
        m.step = new
        raise KeyError("gone")

    try:
        hooks.after_import(module_name, breaks, ("step",))
        assert module.step is before is user.step  # undone, and never handed on
        hooks.after_import(module_name, lambda m: setattr(m, "step", new))
        assert module.step is new and user.step is before  # others only hold what is named
        module.step = before
        hooks.after_import(module_name, lambda m: setattr(m, "step", new), ("step",))
        assert module.step is new is user.step and user.step_of is kept
        hooks.after_import(module_name, lambda m: None, ("stride",))
        assert "stride" in hooks.FAILED[module_name]  # a name that verl no longer has
    finally:
        sys.modules.pop(f"{module_name}_user")
