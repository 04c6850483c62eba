# SPDX-License-Identifier: Apache-2.0
"""Nothing of ours is silently absent: what is chosen without the plugin stops the run; what is not ours goes on."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import verl_entropy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")  # processes import it
PACKAGE = Path(verl_entropy.__file__).parent


def run(*command, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | env
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env, timeout=600, check=False)


COMPOSE = """
import sys, verl
from hydra import compose, initialize_config_module
from verl_entropy.hosts.install import compat{setup}
with initialize_config_module("verl.trainer.config", version_base=None):
    for words in {choices!r}:
        try:
            compose("ppo_trainer", overrides=words)
            print("composed", words)
        except SystemExit as error:
            print("stopped", words, error)
"""
OURS = [
    ["+entropy=[aem]"],
    ["+algorithm.entropy.transforms=[aem]"],
    ["+actor_rollout_ref.actor.policy_loss.regularizer=epo"],
    ["+actor_rollout_ref.actor.policy_loss.clip_controller=adapo"],
    ["+actor_rollout_ref.actor.seal.alpha=0.02"],
    ["algorithm.adv_estimator=gigpo"],
    ["actor_rollout_ref.actor.policy_loss.loss_mode=steer"],
    ["+algorithm.entropy.diagnostics.costly_every=5"],
    ["actor_rollout_ref.rollout.agent.default_agent_loop=span_env"],
]
VERLS = [[], ["algorithm.adv_estimator=rloo"], ["actor_rollout_ref.actor.policy_loss.loss_mode=gspo"], ["+my.own.key=1"]]


def outcomes(setup="", **env):
    out = run("-c", COMPOSE.format(setup=setup, choices=OURS + VERLS), **env)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "env", "cause"),
    [
        ("", {"VERL_USE_EXTERNAL_PLUGINS": "none"}, "VERL_USE_EXTERNAL_PLUGINS=none keeps verl from loading it"),
        ("", {"VERL_USE_EXTERNAL_PLUGINS": "theirs"}, "VERL_USE_EXTERNAL_PLUGINS=auto or theirs,verl_entropy"),
        (
            "; compat.verl_version = lambda: '0.8.0'; compat.SYMBOLS['verl.v1.gone'] = {}",
            {},
            "verl 0.8.0 lacks verl.v1.gone",
        ),
        (
            "\nfrom verl_entropy.hosts.install import activate\nactivate._install = lambda groups: 1 / 0",
            {},
            "the plugin failed to load (ZeroDivisionError",
        ),
        (
            "; from verl_entropy.hosts.install import hooks; hooks.after_import('verl', lambda m: 1 / 0)",
            {},
            "verl: ZeroDivisionError",
        ),
    ],
)
def test_what_is_chosen_without_the_plugin_stops_and_the_rest_composes(setup, env, cause):
    said = outcomes(setup, **env)
    assert [line for line in said.splitlines() if line.startswith("composed")] == [f"composed {words}" for words in VERLS], said
    assert said.count("stopped [") == len(OURS) == said.count("Fix:") == said.count("Versions: verl ")
    assert cause in said


@pytest.mark.slow
def test_with_the_plugin_named_as_an_external_module_everything_composes():
    said = outcomes(VERL_USE_EXTERNAL_PLUGINS="none", VERL_USE_EXTERNAL_MODULES="verl_entropy.plugin")
    assert said.count("composed [") == len(OURS + VERLS), said
    code = "import verl; from verl_entropy.hosts.install import activate, hooks; print(activate.INSTALLED, len(hooks.pending()))"
    entry, module = (
        run("-c", code, VERL_ENTROPY_CHOSEN="methods", **env)
        for env in ({}, {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "verl_entropy.plugin"})
    )
    assert entry.stdout == module.stdout and entry.stdout.startswith("{'methods'} "), entry.stdout + module.stdout + module.stderr


@pytest.mark.slow
def test_main_ppo_without_the_plugin_stops_before_training():
    out = run("-m", "verl.trainer.main_ppo", "+entropy=[aem]", VERL_USE_EXTERNAL_PLUGINS="none")
    assert out.returncode == 1 and "stopped before training" in out.stderr and "Traceback" not in out.stderr, out.stderr[-3000:]
    out = run("-m", "verl.trainer.main_ppo", "--cfg", "job", VERL_USE_EXTERNAL_PLUGINS="none")
    assert out.returncode == 0 and "adv_estimator: gae" in out.stdout, out.stderr[-3000:]


@pytest.mark.slow
def test_another_hydra_application_and_our_own_reading_are_left_alone():
    code = (
        "import sys\nfrom hydra import compose, initialize_config_module\n"
        "from hydra._internal.config_loader_impl import ConfigLoaderImpl as Loader\nbefore = Loader.load_configuration\n"
        "with initialize_config_module('hydra.conf', version_base=None): compose(overrides=['+algorithm.entropy.x=1'])\n"
        "print(Loader.load_configuration is before, 'verl_entropy.hosts.install.absent' in sys.modules)\n"
        "import verl\nfrom verl_entropy.config.compose import compose as ours\n"
        "print(ours(['aem']).algorithm.entropy.presets)"
    )
    out = run("-c", code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert out.stdout.splitlines() == ["True False", "{'aem': True}"], out.stdout + out.stderr[-2000:]


@pytest.mark.slow
def test_a_training_worker_without_the_plugin_refuses_its_configuration():
    code = (
        "import verl, verl.workers.engine_workers\nfrom verl_entropy.hosts.verl_engine.configs import EntropyFSDPActorConfig\n"
        "try:\n    EntropyFSDPActorConfig(strategy='fsdp', ppo_micro_batch_size_per_gpu=1, rollout_n=1)\n"
        "except RuntimeError as error:\n    print(error)"
    )
    out = run("-c", code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert "the loss of this training worker is not the one of the plugin" in out.stdout, out.stdout + out.stderr[-2000:]


def _imported(path):
    package = ".".join(("verl_entropy", *path.relative_to(PACKAGE).parts[:-1]))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def test_nothing_in_the_package_imports_the_file_that_installs():
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "plugin.py"]
    assert len(files) > 50
    assert [str(p) for p in files if "verl_entropy.plugin" in set(_imported(p))] == []


def test_importing_what_installs_installs_nothing():
    code = (
        "import sys; before = list(sys.meta_path)\n"
        "from verl_entropy import log\nfrom verl_entropy.config import compose\n"
        "from verl_entropy.hosts.install import absent, activate, hooks, seams\n"
        "from verl_entropy.hosts.verl_engine import resolved\n"
        "print(activate.INSTALLED, hooks.pending(), hooks._finder in sys.meta_path, 'torch' in sys.modules, 'verl' in sys.modules)"
    )
    assert run("-c", code).stdout.strip() == "set() [] False False False"
