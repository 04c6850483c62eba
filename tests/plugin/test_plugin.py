# SPDX-License-Identifier: Apache-2.0
"""The plugin loads everywhere, cheaply, once, never over somebody's name, and never fails in silence."""

import os
import subprocess
import sys
import types

import pytest

from verl_entropy.hosts.install import activate, compat, hooks


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=600, check=False
    )


def test_importing_the_plugin_imports_nothing_heavy():
    out = run(
        "import sys, verl_entropy.plugin; print(sorted({'torch', 'ray', 'verl', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    assert out.stdout.strip() == "[]", out.stdout + out.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("told", "installed"), [("", "set()"), ("methods", "{'methods'}")])
def test_import_verl_does_not_pull_in_the_trainer(told, installed):
    pytest.importorskip("verl")
    code = (
        "import sys, verl; from verl_entropy.hosts.install import activate; "
        "late = ('verl.trainer', 'verl.workers', 'verl_entropy.hosts.verl_engine.eng'); "
        "print(activate.INSTALLED, [m for m in sys.modules if m.startswith(late)])"
    )
    out = run(code, VERL_ENTROPY_CHOSEN=told)
    assert out.stdout.strip() == f"{installed} []", out.stdout + out.stderr[-2000:]


@pytest.mark.slow
def test_a_failure_stops_a_process_of_a_run_that_has_chosen_something_although_verl_swallows_it():
    pytest.importorskip("verl")
    code = (
        "from verl_entropy.hosts.install import compat\ndef boom(read): raise OSError('disk on fire')\n"
        "compat.unsupported_reason = boom\nimport verl\nprint('verl is there')"
    )
    out = run(code, VERL_ENTROPY_CHOSEN="methods")
    assert out.returncode == 1 and not out.stdout
    assert "the plugin failed to load: OSError: disk on fire" in out.stderr
    assert "VERL_ENTROPY_CHOSEN=methods asks for verl-entropy" in out.stderr and "Fix:" in out.stderr
    out = run(code)  # nothing chosen: verl goes on, and nobody is told
    assert out.returncode == 0 and out.stdout == "verl is there\n" and "verl-entropy" not in out.stderr
    out = run("import verl", VERL_ENTROPY_CHOSEN="methods,magic")
    assert out.returncode == 1 and "VERL_ENTROPY_CHOSEN=magic: no such group. Allowed: methods" in out.stderr


def test_another_version_is_left_as_it_is_and_the_missing_symbol_named(monkeypatch, capsys):
    pytest.importorskip("verl")
    monkeypatch.setattr(compat, "verl_version", lambda: "0.10.0")
    monkeypatch.setitem(compat.SYMBOLS, "verl.utils.config", {"validate_everything": ("config",)})
    monkeypatch.setattr(activate, "INSTALLED", set())
    assert activate.install() is False
    said = capsys.readouterr().err
    assert "verl.utils.config.validate_everything" in said and "left as it is" in said


def test_every_symbol_is_in_the_installed_verl():
    pytest.importorskip("verl")
    assert compat.missing_symbols() == []


def test_a_missing_parameter_is_named(monkeypatch):
    pytest.importorskip("verl")
    monkeypatch.setattr(compat, "SYMBOLS", {"verl.utils.config": {"validate_config": ("config", "moon_phase")}})
    assert compat.missing_symbols() == ["verl.utils.config.validate_config (parameter moon_phase)"]


def test_install_twice_changes_nothing(monkeypatch):
    pytest.importorskip("verl")
    import verl.utils.config

    assert activate.install() is True
    before = verl.utils.config.validate_config
    assert before.__wrapped__ is not None and verl.utils.validate_config is before  # imported there by name
    assert activate.install() is True and activate.install(["methods"]) is True
    monkeypatch.setattr(activate, "INSTALLED", set())
    assert activate.install() is True
    assert verl.utils.config.validate_config is before


def test_a_taken_name_is_not_overwritten(capsys):
    pytest.importorskip("torch")
    from verl_entropy.hosts.verl_engine import registration

    def theirs():
        pass

    fake = types.SimpleNamespace(ADV_ESTIMATOR_REGISTRY={"gigpo": theirs}, POLICY_LOSS_REGISTRY={})
    fake.register_adv_est = lambda name: lambda f: fake.ADV_ESTIMATOR_REGISTRY.__setitem__(name, f)
    fake.register_policy_loss = lambda name: lambda f: fake.POLICY_LOSS_REGISTRY.__setitem__(name, f)
    try:
        registration.register(fake)
        assert fake.ADV_ESTIMATOR_REGISTRY["gigpo"] is theirs
        assert "loop" in fake.ADV_ESTIMATOR_REGISTRY
        assert "gigpo is already registered by" in capsys.readouterr().err
        assert "theirs" in registration.REFUSED["gigpo"]
    finally:
        registration.REFUSED.clear()


def test_after_import_runs_once_right_after_the_module(tmp_path, monkeypatch):
    (tmp_path / "hooked_module_x.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    hooks.after_import("hooked_module_x", lambda m: seen.append(m.value))
    assert "hooked_module_x" in hooks.pending()
    import hooked_module_x

    assert seen == [1] and hooked_module_x.__loader__.__class__.__module__.startswith(("importlib", "_frozen_importlib"))
    assert "hooked_module_x" not in hooks.pending()
    hooks.after_import("hooked_module_x", lambda m: seen.append(2))
    assert seen == [1, 2]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_no_trainer_of_verl_overrides_a_seam(mode):
    """The seams are on the base class, so every mode of the V1 trainer passes through them."""
    pytest.importorskip("verl")
    names = compat._names(compat.ast.parse(compat.source(f"verl.trainer.ppo.v1.trainer_{mode}")))
    seams = ("_compute_advantage", "_update_actor", "_save_checkpoint", "_load_checkpoint")
    assert not [n for n in names if n.endswith(tuple(f".{seam}" for seam in seams))]


def test_every_piece_that_waits_for_a_module_is_there():
    pytest.importorskip("verl")
    from verl_entropy.hosts.verl_engine import wiring

    assert all(callable(piece.load()) and set(piece.groups) <= set(activate.GROUPS) for piece in wiring.PIECES)
    assert set().union(*(piece.groups for piece in wiring.PIECES)) == set(activate.GROUPS)
