# SPDX-License-Identifier: Apache-2.0
"""One recorded batch through both of verl's trainers: the same advantages, losses, gradients and state for every preset and 30
combinations; and with neutral settings what verl's RayPPOTrainer gives alone, bit for bit."""

import pytest
import torch
from ranks import run_ranks
from test_presets_engine import COMBINATIONS, NAMES

KINDS = ("gigpo", "aem", "clip_b", "clip_v", "steer", "adapo", "epo", "siren", "seal")
"""A method of each kind and need; the rest only with --full."""
SPECS = [*NAMES, *COMBINATIONS]
SHORT = [*KINDS, *COMBINATIONS[:3]]


def both(model, folder, specs) -> dict:
    names = [f"{host}:{spec}" for spec in specs for host in ("v1", "ray")]
    return run_ranks(model, folder / "out", [*names, "ray:neutral", "ray:stock"], 1, script="hosts_rank.py")[0]


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    return both(model, tmp_path_factory.mktemp("hosts"), SHORT)


@pytest.fixture(scope="module")
def everything(model, tmp_path_factory):
    return both(model, tmp_path_factory.mktemp("hosts"), [spec for spec in SPECS if spec not in SHORT])


@pytest.mark.parametrize("spec", SHORT)
def test_both_trainers_give_the_same_numbers(results, spec):
    agree(results, spec)


@pytest.mark.full
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in SHORT])
def test_both_trainers_give_the_same_numbers_with_everything(everything, spec):
    agree(everything, spec)


def agree(results, spec):
    v1, ray = results[f"v1:{spec}"], results[f"ray:{spec}"]
    assert torch.isfinite(ray["advantages"]).all() and ray["advantages"].abs().sum() > 0
    torch.testing.assert_close(ray["advantages"], v1["advantages"], atol=1e-6, rtol=1e-6)
    assert ray["loss"] == pytest.approx(v1["loss"], abs=1e-5) and ray["grad_norm"] == pytest.approx(v1["grad_norm"], rel=1e-5)
    assert ray["gradients"].keys() == v1["gradients"].keys() != set()
    for name, gradient in v1["gradients"].items():
        torch.testing.assert_close(ray["gradients"][name], gradient, atol=1e-5, rtol=1e-4)
    assert ray["state"] == v1["state"]
    for key, value in v1["metrics"].items():
        assert ray["metrics"][key] == pytest.approx(value, abs=1e-5), key


def test_neutral_settings_give_what_verl_gives_alone(results):
    ours, stock = results["ray:neutral"], results["ray:stock"]
    assert ours["metrics"]["verl_entropy/active"] == 1.0 and not stock["metrics"]
    assert torch.equal(ours["advantages"], stock["advantages"]) and stock["advantages"].abs().sum() > 0
    assert ours["loss"] == stock["loss"] and ours["grad_norm"] == stock["grad_norm"]
    for name, gradient in stock["gradients"].items():
        assert torch.equal(ours["gradients"][name], gradient), name
