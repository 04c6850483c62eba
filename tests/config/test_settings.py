# SPDX-License-Identifier: Apache-2.0
"""A wrong setting is refused with the key, the value, what is allowed and the fix; a right one is typed."""

import dataclasses
import subprocess
import sys

import pytest

from verl_entropy.config import plan
from verl_entropy.config import settings as config
from verl_entropy.config.settings import ConfigError
from verl_entropy.methods import registry
from verl_entropy.methods.estimators.gigpo import GiGPO
from verl_entropy.methods.transforms.aem import AEM


def test_config_needs_neither_torch_nor_verl():
    code = (
        "import sys; from verl_entropy import cli; from verl_entropy.config import checks, plan, presets, settings; "
        "from verl_entropy.methods import registry; registry.methods(); "
        "print(sorted({'torch', 'verl', 'ray', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("temperature", -1.0, "must be >= 0"),
        ("temperature", float("nan"), "finite"),
        ("temperature", "hot", "expected float"),
        ("temperature", True, "expected float"),
        ("min_group", 0, "must be >= 1"),
        ("min_group", 1.5, "expected int"),
        ("temprature", 1.0, "Did you mean algorithm.entropy.aem.temperature"),
    ],
)
def test_bad_values_name_key_and_rule(key, value, says):
    with pytest.raises(ConfigError, match=says) as error:
        config.parse(AEM, {key: value}, "algorithm.entropy.aem")
    assert f"algorithm.entropy.aem.{key}" in str(error.value)


def test_ints_become_floats_and_defaults_stay():
    settings = config.parse(AEM, {"temperature": 2}, "p")
    assert settings == AEM(temperature=2.0)
    assert isinstance(settings.temperature, float)


def test_choices_are_listed():
    with pytest.raises(ConfigError, match="mean_std, mean"):
        config.parse(GiGPO, {"norm": "max"}, "p")


@pytest.mark.parametrize("algorithm", registry.methods(), ids=lambda a: f"{a.kind}-{a.name}")
def test_every_setting_is_documented_and_its_default_is_valid(algorithm):
    defaults = algorithm.settings()
    values = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)}
    assert config.parse(algorithm.settings, values, algorithm.path) == defaults
    assert all(f.metadata["doc"] for f in dataclasses.fields(defaults))


def raw(**actor):
    return {"algorithm": {"adv_estimator": "grpo", "entropy": {}}, "actor_rollout_ref": {"actor": actor}}


def test_nothing_chosen_is_inactive():
    assert not plan.read({"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {"actor": {}}}).active


def test_transform_order_is_stated_or_given():
    chosen = raw()
    chosen["algorithm"]["entropy"] = {"presets": {"aem": True}}
    assert [t.name for t in plan.read(chosen).transforms] == ["aem"]
    chosen["algorithm"]["entropy"] = {"transforms": ["aem", "aem"]}
    with pytest.raises(ConfigError, match="listed twice"):
        plan.read(chosen)
    chosen["algorithm"]["entropy"] = {"transforms": ["nope"]}
    with pytest.raises(ConfigError, match="unknown"):
        plan.read(chosen)


def test_unknown_section_and_unused_section():
    chosen = raw()
    chosen["algorithm"]["entropy"] = {"amm": {}}
    with pytest.raises(ConfigError, match=r"algorithm\.entropy\.amm: no such setting"):
        plan.read(chosen)
    chosen["algorithm"]["entropy"] = {"aem": {"temperature": 2.0}}
    assert plan.read(chosen).unused == ("algorithm.entropy.aem",)
    chosen["algorithm"]["entropy"] = {"aem": {"temperature": -2.0}}
    with pytest.raises(ConfigError, match="must be"):
        plan.read(chosen)
