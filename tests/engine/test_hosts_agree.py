# SPDX-License-Identifier: Apache-2.0
"""One recorded batch through every host: the same advantages, losses, gradients and state for every method of the registry and 30
combinations; and under neutral settings what each host gives alone, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorded
import torch
import yaml
from ranks import run_ranks

from verl_entropy.config import engines, presets

HERE = Path(__file__).parent
VERL_AGENT = os.environ.get("VERL_AGENT_HOME")
"""Before the tests' stand-in for a checkout."""
HOSTS = ("ray", "agent", "mcore")
"""Those that are compared with v1; mcore is V1 with the configuration of Megatron's actor and no engine of ours."""
REFUSED = {(host, "rollout.branching") for host in ("ray", "agent")}
"""Methods that a host has not."""
COMBINATIONS = recorded.combinations(30)
PRESETS = presets.preset_names()
"""Over verl's own GRPO: its two trainers."""
SHORT = [*recorded.METHODS, COMBINATIONS[0], "aem,epo"]
IN_WORKERS = [
    choice for choice in recorded.METHODS if choice.startswith(("loss", "clip", "regularizer", "head")) or ".clip_" in choice
]
"""Where another engine matters."""
FULL = [choice for choice in [*COMBINATIONS, *PRESETS] if choice not in SHORT]
NEUTRAL_SHORT = ["neutral/transform.aem", "neutral/regularizer.epo"]
NEUTRAL_FULL = [choice for choice in recorded.NEUTRAL if choice not in NEUTRAL_SHORT]


def everywhere(model, folder, choices, on_mcore, neutral) -> dict:
    """HOST:CHOICE -> what that host gives."""
    alone = [*neutral, *dict.fromkeys(map(recorded.stock_of, neutral))]
    names = [f"{host}:{choice}" for host in ("v1", "ray") for choice in [*choices, *alone]]
    names += [f"mcore:{choice}" for choice in [*on_mcore, *alone]]
    found = run_ranks(model, folder / "out", names, 1, script="hosts_rank.py", seconds=3000)[0]
    return found | (agent(model, folder / "agent", [*(c for c in choices if "." in c), *alone]) if VERL_AGENT else {})


def agent(model, out, choices) -> dict:
    paths = [VERL_AGENT, *sys.path, str(HERE), str(HERE.parent / "verl_agent")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "VERL_AGENT_HOME": VERL_AGENT,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "hosts_agent.py"), str(model), str(out), *choices]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {f"agent:{choice}": found for choice, found in torch.load(out, weights_only=False).items()}


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    return everywhere(model, tmp_path_factory.mktemp("hosts"), SHORT, IN_WORKERS, NEUTRAL_SHORT)


@pytest.fixture(scope="module")
def everything(model, tmp_path_factory):
    rest = [choice for choice in [*recorded.METHODS, *COMBINATIONS] if choice not in IN_WORKERS]
    return everywhere(model, tmp_path_factory.mktemp("hosts"), [*FULL, *SHORT], rest, NEUTRAL_FULL)


def pairs(choices, on_mcore):
    found = [(host, choice) for choice in choices for host in ("ray", "agent") if host == "ray" or "." in choice]
    return found + [("mcore", choice) for choice in on_mcore]


@pytest.mark.parametrize(("host", "choice"), pairs(SHORT, IN_WORKERS))
def test_every_host_gives_the_same_numbers(results, host, choice):
    agree(results, host, choice)


@pytest.mark.full
@pytest.mark.timeout(4000)
@pytest.mark.parametrize(("host", "choice"), pairs(FULL, [c for c in [*recorded.METHODS, *COMBINATIONS] if c not in IN_WORKERS]))
def test_every_host_gives_the_same_numbers_with_everything(everything, host, choice):
    agree(everything, host, choice)


def there(results, host, choice) -> dict:
    if host == "agent" and not VERL_AGENT:
        pytest.skip("VERL_AGENT_HOME is not set (a checkout of verl-agent 796ed31): not run")
    return results[f"{host}:{choice}"]


def words_of(choice) -> list[str]:
    """The methods of a choice; of a preset, its rollout method."""
    if choice not in PRESETS:
        return [recorded.word(m) for m in recorded.methods(choice)]
    entropy = [yaml.safe_load(presets.text(part))["algorithm"]["entropy"] for part in presets.chain(choice)]
    return [f"rollout.{keys['rollout']}" for keys in entropy if "rollout" in keys]


def refused(host, choice, found) -> bool:
    """Whether the host must refuse the choice; then it did, by the name of a method and the need."""
    if host == "mcore":
        wants = {m.name: engines.NEEDS[need] for m in recorded.methods(choice) if (need := engines.engine_need(m))}
        named = [name for name, need in wants.items() if f"strategy=megatron: {name} needs {need}" in found.get("refused", "")]
    else:
        wants = [word.partition(".")[2] for word in words_of(choice) if (host, word) in REFUSED]
        named = [name for name in wants if name in found.get("refused", "")]
    assert bool(wants) == bool(named) == ("refused" in found), found.get("refused")
    return bool(wants)


def agree(results, host, choice):
    v1, other = results[f"v1:{choice}"], there(results, host, choice)
    if refused(host, choice, other):
        assert "refused" not in v1
        return
    if host == "mcore":
        assert v1["micro_batches"] == 1 and other["micro_batches"] == 2
    assert torch.isfinite(v1["advantages"]).all() and v1["advantages"].abs().sum() > 0
    # on mcore the entropies are of verl's own log-prob pass, which rounds otherwise than ours
    torch.testing.assert_close(
        other["advantages"], v1["advantages"], **dict.fromkeys(("atol", "rtol"), 1e-5 if host == "mcore" else 1e-6)
    )
    assert other["loss"] == pytest.approx(v1["loss"], abs=1e-5)
    assert other["gradients"].keys() == v1["gradients"].keys() != set()
    for name, gradient in v1["gradients"].items():
        torch.testing.assert_close(other["gradients"][name], gradient, atol=1e-5, rtol=1e-5)
    same_values(other["state"], v1["state"], "state")
    for key in v1["metrics"].keys() & other["metrics"].keys():
        assert other["metrics"][key] == pytest.approx(v1["metrics"][key], abs=1e-5), key


def same_values(a, b, where):
    """Equal numbers to 1e-6 anywhere in two structures of plain values."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
    if isinstance(a, dict | list):
        assert len(a) == len(b), where
        for key in a if isinstance(a, dict) else range(len(a)):
            same_values(a[key], b[key], f"{where}.{key}")
    else:
        assert a == pytest.approx(b, rel=1e-6, abs=1e-6) if isinstance(a, float) else a == b, where


ALONE = ("v1", *HOSTS)


@pytest.mark.parametrize("host", ALONE)
@pytest.mark.parametrize("choice", NEUTRAL_SHORT)
def test_neutral_settings_give_what_the_host_gives_alone(results, host, choice):
    unchanged(results, host, choice)


@pytest.mark.full
@pytest.mark.timeout(4000)
@pytest.mark.parametrize("host", ALONE)
@pytest.mark.parametrize("choice", NEUTRAL_FULL)
def test_neutral_settings_of_every_method_give_what_the_host_gives_alone(everything, host, choice):
    unchanged(everything, host, choice)


def unchanged(results, host, choice):
    ours, stock = there(results, host, choice), there(results, host, recorded.stock_of(choice))
    if refused(host, choice, ours):
        return
    assert ours["metrics"]["verl_entropy/active"] == 1.0 and not stock["metrics"]
    assert torch.equal(ours["advantages"], stock["advantages"]) and stock["advantages"].abs().sum() > 0
    assert ours["loss"] == stock["loss"] and ours["grad_norm"] == stock["grad_norm"]
    for name, gradient in stock["gradients"].items():
        assert torch.equal(ours["gradients"][name], gradient), name
