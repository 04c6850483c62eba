# SPDX-License-Identifier: Apache-2.0
"""``doctor``: what it finds in an installation, and in a worker of a real Ray."""

import importlib.metadata
import json

import pytest
from packaging.requirements import Requirement

from verl_entropy import cli
from verl_entropy.commands import doctor
from verl_entropy.hosts.install import compat, fingerprint, matrix
from verl_entropy.hosts.verl_engine import wiring
from verl_entropy.methods import registry

pytest.importorskip("verl")


def run(capsys, *argv):
    capsys.readouterr()
    code = cli.main(["doctor", *argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def statuses(out):
    return {(c["section"], c["name"]): c["status"] for c in json.loads(out)["checks"]}


def test_it_is_content_here_and_reads_well(capsys):
    code, out, _ = run(capsys, "--no-ray")
    assert code == 0, out
    assert "FAIL" not in out and "entry point" in out and max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.9.1", "ok"), ("0.9.1+cpu", "ok"), ("0.9.7", "ok"), ("1.0.0", "warn"), ("0.10.0", "warn"), (None, "fail")],
)
def test_versions_against_the_matrix(version, status):
    component = matrix.Component("verl", "verl", ("0.9.1",), True)
    assert matrix.compare(component, version).status == status


def test_the_matrix_holds_what_the_tests_run_with_here():
    assert {v.name: v.status for v in matrix.versions()}["verl"] in ("ok", "warn")
    assert all(v.status != "fail" for v in matrix.versions())


def test_every_wrapped_function_of_a_tested_version_has_a_fingerprint():
    table = fingerprint.tested()
    if compat.verl_version() not in table:
        pytest.skip("another version of verl")
    assert fingerprint.installed() == table[compat.verl_version()], (
        "run python -m verl_entropy.hosts.install.fingerprint, and commit it"
    )


def test_a_local_patch_of_verl_is_seen(capsys, monkeypatch):
    original = compat.source

    def patched(module):
        text = original(module)
        return text.replace("def validate_config(", "def validate_config(  # mine", 1) if module == "verl.utils.config" else text

    monkeypatch.setattr(compat, "source", patched)
    assert fingerprint.changed(fingerprint.installed()) == ["verl.utils.config.validate_config"]
    code, out, _ = run(capsys, "--no-ray", "--json")
    assert code == 0 and statuses(out)[("plugin", "source of verl")] == "warn"


def test_a_name_that_somebody_else_registered_fails(capsys, monkeypatch):
    from verl.trainer.ppo import core_algos

    def foreign():
        raise NotImplementedError

    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "steer", foreign)
    code, out, _ = run(capsys, "--no-ray", "--json")
    assert code == 1 and statuses(out)[("registries", "loss steer")] == "fail"
    assert "foreign" in out


@pytest.mark.parametrize(("name", "value"), [("VERL_USE_EXTERNAL_PLUGINS", "none"), ("VERL_ENGINE_VENDOR", "other")])
def test_an_environment_that_turns_it_off_fails(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    code, out, _ = run(capsys, "--no-ray")
    assert code == 1 and f"{name}={value}" in out


def test_a_verl_that_lacks_a_symbol_fails_before_anything_is_imported(capsys, monkeypatch):
    monkeypatch.setattr(compat, "missing_symbols", lambda modules=None: ["verl.nothing"])
    code, out, _ = run(capsys, "--json", "--config", "gigpo")
    found = statuses(out)
    assert code == 1 and found[("plugin", "symbols of verl")] == "fail"
    assert found[("registries", "names")] == found[("configuration", "run")] == "skip"


def test_a_configuration_is_shown_with_its_risks(capsys):
    words = ["gigpo,aem", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.model.use_fused_kernels=True"]
    code, out, _ = run(capsys, "--no-ray", "--config", *words)
    assert code == 1 and "aem (the paper's settings)" in out and "bf16" in out  # verl: no micro-batch size
    code, out, _ = run(capsys, "--no-ray", "--json", "--config", "gigpo", "actor_rollout_ref.rollout.n=1")
    assert code == 1 and statuses(out)[("configuration", "verl-entropy")] == "fail" and "rollout.n=8" in out
    code, _, err = run(capsys, "--no-ray", "--config", "gigppo")
    assert code == 2 and "Did you mean gigpo?" in err


@pytest.mark.real
def test_the_plugin_is_active_in_a_ray_worker():
    from verl_entropy.hosts.install import seams

    found = seams.ray_worker()
    assert found["active"] and found["pid"] != found["driver_pid"], found
    assert len(found["seams"]) == len(seams.SEAMS) and all(found["seams"].values())


@pytest.mark.real
def test_without_the_plugin_the_worker_says_so(monkeypatch):
    from verl_entropy.hosts.install import seams

    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    found = seams.ray_worker()
    assert not found["active"]


def test_a_ray_that_does_not_answer_is_ended(monkeypatch):
    from verl_entropy.hosts.install import seams

    found = seams.ray_worker(limit_s=0.2)
    assert not found["active"] and "0 s" in found["error"]


def test_a_section_that_breaks_is_a_fail_and_the_others_still_run(capsys, monkeypatch):
    """A module that registers gigpo before verl-entropy does may raise in the registration itself."""
    from verl_entropy.hosts.install import seams

    def clash():
        raise ValueError("Estimator gigpo is registered already by mine.module")

    monkeypatch.setattr(seams, "registries", clash)
    code, out, _ = run(capsys, "--no-ray", "--json")
    found = statuses(out)
    assert code == 1 and found[("registries", "names")] == "fail" and "mine.module" in out and "Fix: " in out
    assert found[("environment", "fused kernels")] == "ok" and ("Ray", "worker") in found


def test_a_missing_pyarrow_and_an_old_hydra_fail_with_the_fix():
    components = {c.name: c for c in matrix.COMPONENTS}
    for name, version in (("pyarrow", None), ("hydra-core", "1.1.2")):
        found = matrix.compare(components[name], version)
        assert found.status == "fail" and "Fix: pip install" in found.note


def test_a_foreign_verl_has_a_fix(monkeypatch):
    monkeypatch.setattr(compat, "verl_version", lambda: "0.4.0")
    monkeypatch.setattr(compat, "missing_symbols", lambda modules=None: ["verl.x"])
    assert "Fix: pip install 'verl==0.9.1'" in compat.unsupported_reason()


@pytest.mark.parametrize(
    ("version", "modules", "status", "said", "unsaid"),
    [
        ("0.7.1", "", "fail", ("use_legacy_worker_impl=disable", "Fix: set VERL_USE_EXTERNAL_MODULES"), "V1"),
        ("0.8.0", "mine,verl_entropy.plugin", "ok", ("RayPPOTrainer, every method but branching", "is set"), "legacy"),
        ("0.9.0", "", "ok", ("V1 trainer; RayPPOTrainer with trainer.use_v1=False, without branching",), "MODULES"),
        (compat.NEO, "", "ok", ("trainer.data_plane=classic", "every method but branching"), "V1"),
    ],
)
def test_the_trainers_of_a_version_and_what_it_needs(monkeypatch, version, modules, status, said, unsaid):
    monkeypatch.setattr(compat, "verl_version", lambda: version)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", modules)
    checks = {c.name: c for c in doctor._plugin()}
    found, names = checks["trainers"], checks["symbols of verl"]
    assert found.status == status and all(words in found.note for words in said) and unsaid not in found.note
    assert checks["entry point"].status == ("skip" if compat.before(0, 9) else "ok")
    every = sum(map(len, compat.SYMBOLS.values()))
    number = int(names.note.split(" names")[0].rsplit(" ", 1)[1])
    assert number < every - 40 if not compat.has_v1() else number <= every  # V1's are not asked for


@pytest.mark.parametrize("extra", ["verl07", "verl08"])
def test_the_extras_of_older_verl_hold_the_pyarrow_that_works_with_its_numpy(extra):
    """pyarrow names no numpy in its metadata, so that pip would pair one that refuses numpy<2 with verl that needs it."""
    wanted = [Requirement(text) for text in importlib.metadata.requires("verl-entropy")]
    found = {r.name: r.specifier for r in wanted if r.marker is not None and r.marker.evaluate({"extra": extra})}
    assert "0.9.1" not in found["verl"] and "22.0" in found["pyarrow"] and "23.0" not in found["pyarrow"]


def test_verls_main_names_the_merges_of_a_chat_otherwise_and_ours_stand_there(monkeypatch):
    def merges():
        return [name for name in compat.symbols()["verl.experimental.agent_loop.agent_loop"] if ".ct_merge" in name]

    assert len(merges()) == 2
    monkeypatch.setattr(compat, "verl_version", lambda: "0.10.0.dev0")
    assert merges() == []
    used = [p for p in wiring.PIECES if p.function.endswith("tokens.wrap") and not compat.before(*p.since)]
    assert [p for p in used if not p.until or compat.before(*p.until)]


def test_where_methods_come_from_and_a_broken_package_of_methods(monkeypatch):
    found = doctor._methods()
    assert found.status == "ok" and "of verl-entropy" in found.note
    entry = importlib.metadata.EntryPoint("x", "no_such_package:X", "verl_entropy.methods")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    registry._live.cache_clear()
    registry._cheap.cache_clear()
    try:
        broken = doctor._methods()
    finally:
        registry._live.cache_clear()
        registry._cheap.cache_clear()
    assert broken.status == "fail" and "no_such_package:X" in broken.note and "uninstall" in broken.note
