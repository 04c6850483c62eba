# SPDX-License-Identifier: Apache-2.0
"""Methods are found and not listed; methods from outside are known like ours, and a name taken twice is refused with both origins."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

from verl_entropy.config import plan
from verl_entropy.methods import registry
from verl_entropy.methods.method import KINDS, ConfigError


def test_the_index_is_of_these_files():
    """``python -m verl_entropy.methods.registry`` writes it anew."""
    described = registry._read_index()
    assert described is not None, "index.json is of other files: run python -m verl_entropy.methods.registry"
    assert [registry._describe(m) for m in described] == [registry._describe(m) for m in registry._import_ours()]


def test_a_stale_index_is_not_read(monkeypatch):
    monkeypatch.setattr(registry, "_hash", lambda: "of other files")
    assert registry._read_index() is None


def test_every_folder_of_a_kind_holds_methods_of_that_kind():
    assert set(registry.FOLDERS) == set(KINDS) and all(registry.names(kind) for kind in KINDS)


def test_texts_need_no_torch():
    code = (
        "import sys; from verl_entropy.methods import registry; m = registry.get('transform', 'aem'); "
        "print(m.key, m.settings().temperature, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["+algorithm.entropy.transforms=[aem]", "1.0", "False"]


OUTSIDE = """
    import dataclasses
    from verl_entropy.methods.transforms.ea import EA_TRANSFORM

    TWICE = dataclasses.replace(EA_TRANSFORM, name="twice", function="verl_entropy.methods.transforms.ea.ea")
    AGAIN = dataclasses.replace(EA_TRANSFORM)
    NUMBER = 3
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "outside_methods.py").write_text(textwrap.dedent(OUTSIDE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "outside_methods"
    sys.modules.pop("outside_methods", None)
    registry._outside.cache_clear()


def test_a_method_from_outside_is_chosen_by_its_place(outside):
    word = f"{outside}:TWICE"
    raw = {"algorithm": {"adv_estimator": "grpo", "entropy": {"transforms": [word], "twice": {"alpha": 0.1}}}}
    (choice,) = plan.read(raw).transforms
    assert (choice.name, choice.method.origin, choice.method.word, choice.settings.alpha) == ("twice", outside, word, 0.1)
    assert choice.method.key == f"+algorithm.entropy.transforms=[{word}]"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("{m}:NUMBER", "is a int, not a method"),
        ("{m}:ABSENT", "has no ABSENT"),
        ("no_such_package.mod:X", "does not import"),
        ("{m}:AGAIN", "ea of outside_methods: verl-entropy has transform ea already"),
    ],
)
def test_what_cannot_be_chosen_is_said(outside, word, says):
    with pytest.raises(ConfigError, match=says):
        registry.get("transform", word.format(m=outside))


def test_a_method_of_another_kind_names_its_key(outside):
    with pytest.raises(ConfigError, match="is a transform, and this key takes a loss"):
        registry.get("loss", f"{outside}:TWICE")


def test_an_entry_point_is_listed_with_its_origin(outside, monkeypatch):
    entry = importlib.metadata.EntryPoint("twice", f"{outside}:TWICE", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    found = {m.name: m for m in registry._with_others(registry._import_ours())}
    assert found["twice"].origin == f"{outside}:TWICE"


def test_a_name_taken_twice_is_refused_with_both_origins(outside, monkeypatch):
    entry = importlib.metadata.EntryPoint("again", f"{outside}:AGAIN", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError, match=f"ea of {outside}:AGAIN: verl-entropy has transform ea already"):
        registry._with_others(registry._import_ours())


def test_a_broken_entry_point_names_its_package(monkeypatch):
    entry = importlib.metadata.EntryPoint("x", "no_such_package:X", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError, match="no_such_package:X"):
        registry._with_others([])


def test_settings_of_a_described_method_are_those_of_its_file():
    for described, live in zip(registry._read_index(), registry._import_ours(), strict=True):
        assert dataclasses.asdict(described.settings()) == dataclasses.asdict(live.settings())
