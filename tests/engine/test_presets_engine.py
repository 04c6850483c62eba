# SPDX-License-Identifier: Apache-2.0
"""Every preset alone and 30 random combinations: validation, verl's base estimator, transforms, state, one update of the real
FSDP engine; each preset alone also with the batch split into micro-batches, which must change nothing."""

import math
import random

import pytest
from ranks import run_ranks

from verl_entropy.config import presets
from verl_entropy.methods import registry

NAMES = presets.preset_names()
METHODS = sorted({a.name for a in registry.methods()})


def excluded(names) -> bool:
    kinds = [a.kind for n in names for a in registry.methods() if a.name == n and a.kind != "transform"]
    pairs = {(a.name, other) for a in registry.methods() for other in a.conflicts}
    return len(kinds) != len(set(kinds)) or any((a, b) in pairs for a in names for b in names)


def combinations(number: int) -> list[str]:
    rng, found = random.Random(1), []
    while len(found) < number:
        names = sorted(rng.sample(METHODS, rng.randint(2, 5)))
        spec = ",".join(names)
        if not excluded(names) and spec not in found:
            found.append(spec)
    return found


COMBINATIONS = combinations(30)


@pytest.fixture(scope="session")
def results(model, tmp_path_factory):
    specs = [*NAMES, *(f"{name}:24" for name in NAMES), *COMBINATIONS]
    return run_ranks(model, tmp_path_factory.mktemp("presets") / "out", specs, 1, script="preset_rank.py")[0]


@pytest.mark.parametrize("spec", [*NAMES, *COMBINATIONS])
def test_one_update(results, spec):
    result = results[spec]
    assert math.isfinite(result["loss"]) and math.isfinite(result["grad_norm"]) and result["grad_norm"] > 0
    assert result["changed"] and result["metrics"]["verl_entropy/active"] == 1.0
    assert all(math.isfinite(v) for v in [*result["metrics"].values(), *result["driver"].values()])


def flat(state: object, path: str = "") -> dict:
    """The values of nested dicts and lists by their place."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else None
    return {path: state} if items is None else {k: v for name, part in items for k, v in flat(part, f"{path}/{name}").items()}


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_do_not_matter(results, name):
    whole, split = results[name], results[f"{name}:24"]
    assert whole["micro_batches"] == 1 and split["micro_batches"] > 3
    assert whole["loss"] == pytest.approx(split["loss"], abs=3e-6)
    assert whole["grad_norm"] == pytest.approx(split["grad_norm"], rel=3e-5)
    assert flat(whole["state"]) == pytest.approx(flat(split["state"]), rel=1e-5, nan_ok=True)
    for key, value in whole["metrics"].items():
        assert value == pytest.approx(split["metrics"][key], abs=3e-6), key
