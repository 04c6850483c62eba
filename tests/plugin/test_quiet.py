# SPDX-License-Identifier: Apache-2.0
"""Installed and nothing chosen, verl is as it was in every process; what is chosen is there, beside another plugin too."""

import ast
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import verl_entropy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="needs verl")  # processes import it
HERE = Path(__file__).parent
UPSTREAM = sorted((Path(verl_entropy.__file__).parent / "upstream").glob("[!_]*.py"))


def run(*command, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | env
    words = [sys.executable, *map(str, command)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try:
        out, err = process.communicate(timeout=900)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a Ray that did not start leaves behind
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err[-3000:]
    return out


LOADING = {f"verl.{name}" for name in ("_plugins_policy", "_entry_points", "_discovered", "_allowed", "_ep")}
"""Variables of verl's own loop over the plugins, which differ because VERL_USE_EXTERNAL_PLUGINS does."""


def differences(one, other):
    keys = (one.keys() | other.keys()) - LOADING
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def is_quiet(plain, without):
    """The plugin in the process ``plain`` and not in ``without`` makes no difference to verl."""
    assert plain["at_import"] == ["verl_entropy", "verl_entropy.plugin"] == plain["late"] and without["at_import"] == []
    assert len(plain["attributes"]) > 5000
    assert differences(plain["attributes"], without["attributes"]) == {}
    assert plain["finders"] == without["finders"]


@pytest.mark.slow
def test_nothing_of_verl_differs_in_a_driver_that_has_chosen_nothing(tmp_path):
    found = []
    for plugins in ("auto", "none"):
        run(HERE / "walk.py", tmp_path / plugins, VERL_USE_EXTERNAL_PLUGINS=plugins)
        found.append(json.loads((tmp_path / plugins).read_text()))
    is_quiet(*found)


@pytest.mark.slow
def test_the_walk_sees_what_a_choice_puts_in(tmp_path):
    run(HERE / "walk.py", tmp_path / "chosen", VERL_ENTROPY_CHOSEN="methods,varlen")
    found = json.loads((tmp_path / "chosen").read_text())
    ours = {key for key, text in found["attributes"].items() if "verl_entropy" in str(text)}
    assert {
        "verl.utils.config.validate_config",
        "verl.utils.validate_config",
        "verl.trainer.main_ppo.validate_config",
        "verl.trainer.ppo.core_algos.ADV_ESTIMATOR_REGISTRY",
        "verl.trainer.ppo.v1.trainer_base.PPOTrainer._compute_advantage",
        "verl.trainer.ppo.v1.trainer_base.get_seqlen_balanced_partitions",
        "verl.workers.engine_workers.ppo_loss",
        "verl.utils.tensordict_utils.index_select_tensor_dict",
        "verl.experimental.agent_loop.agent_loop._agent_loop_registry",
        "verl.utils.model.update_model_config",
        "transfer_queue.kv_batch_get",
        "transfer_queue.client.AsyncTransferQueueClient.async_put",
    } <= ours
    assert "verl_entropy.hosts.install.hooks._Finder" in found["finders"]


@pytest.mark.real
def test_workers_of_a_real_ray_are_quiet_active_or_refuse(tmp_path):
    run(HERE / "ray_workers.py", tmp_path / "out")
    found = json.loads((tmp_path / "out").read_text())
    is_quiet(found["plain"], found["without"])
    assert found["seams"]["active"] and found["seams"]["loaded_by_verl"], found["seams"]
    assert "the loss of this training worker is not the one of the plugin" in found["untold worker"]
    assert "VERL_ENTROPY_CHOSEN=unset" in found["untold worker"].replace("CHOSEN=,", "CHOSEN=unset,")
    assert (
        "the process of verl's trainer (the TaskRunner) did not say" in found["untold trainer"]
        and "Fix:" in found["untold trainer"]
    )
    assert found["both told"].startswith("accepted, then ") and "model" in found["both told"], found["both told"]
    assert "its program never called verl.utils.config.validate_config" in found["unchecked"] and "Fix:" in found["unchecked"]
    assert found["checked"].startswith("accepted, then "), found["checked"]
    assert found["driver"] == "told"
    said = found["driver of more"]
    assert "stopped before training" in said and "VERL_ENTROPY_CHOSEN=methods" in said and "Fix:" in said


FORKED = """
import os, sys, traceback, verl
from verl.trainer import main_ppo
from hydra import compose, initialize_config_module

def composed(words):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=words)

def in_a_child(function, *args):  # one import of verl for all cases; what a case installs ends with it
    child = os.fork()
    if not child:
        try:
            function(*args)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)
"""
CHOICES = """
def case(words):
    try:
        composed(words)
    except SystemExit as stopped:
        print(json.dumps({"stopped": str(stopped.code)}))
        return
    installed, hooks = (sys.modules.get(f"verl_entropy.hosts.install.{name}") for name in ("activate", "hooks"))
    print(json.dumps({
        "told": os.environ.get("VERL_ENTROPY_CHOSEN"),
        "installed": sorted(installed.INSTALLED) if installed else [],
        "pending": hooks.pending() if hooks else [],
        "checks": main_ppo.validate_config.__code__.co_filename.split(os.sep)[-1],
    }))

import json
for words in json.loads(sys.argv[1]):
    in_a_child(case, words)
"""
FLASH = "+actor_rollout_ref.model.override_config.attn_implementation"
WORKERS, LOOPS, TRAINER = (
    "verl.workers.engine_workers",
    "verl.experimental.agent_loop.agent_loop",
    "verl.trainer.ppo.v1.trainer_base",
)
ASKED = [
    ([f"{FLASH}=sdpa", "algorithm.adv_estimator=rloo"], None, None),
    (["+entropy=[aem]"], "methods", WORKERS),
    (["algorithm.adv_estimator=gigpo"], "methods", WORKERS),
    (["actor_rollout_ref.actor.policy_loss.loss_mode=steer"], "methods", WORKERS),
    ([f"{FLASH}=varlen"], "varlen", None),
    (["actor_rollout_ref.rollout.agent.default_agent_loop=span_env"], "agent_loops", LOOPS),
    (["+data.env.name=household"], "agent_loops", LOOPS),
    (["+trainer.v1.sampler.sampler_kwargs.poll_interval=0.2"], "poll_interval", TRAINER),
    (["+entropy=[aem]", f"{FLASH}=varlen"], "methods,varlen", WORKERS),
]


SLIP = ["+algorithm.entropi.transforms=[aem]"]


@pytest.fixture(scope="module")
def outcomes():
    lines = run("-c", FORKED + CHOICES, json.dumps([*(words for words, _, _ in ASKED), SLIP])).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ASKED)), ids=[words[0] for words, _, _ in ASKED])
def test_a_configuration_gets_what_it_asks_for_and_no_more(outcomes, number):
    (_, told, waits), outcome = ASKED[number], outcomes[number]
    assert outcome["told"] == told and outcome["installed"] == (sorted(told.split(",")) if told else [])
    assert outcome["checks"] == ("config.py" if told is None else "driver.py")
    assert waits is None or waits in outcome["pending"]
    if told is None:
        assert outcome["pending"] == []
    elif "methods" not in told:
        assert not {WORKERS, "verl.utils.seqlen_balancing", "transfer_queue"}.intersection(outcome["pending"])


@pytest.mark.slow
def test_a_slip_in_a_key_of_ours_stops_although_nothing_is_chosen(outcomes):
    assert "algorithm.entropi: no key of verl or verl-entropy. Write algorithm.entropy" in outcomes[-1]["stopped"]


def test_every_mend_says_what_it_mends_where_and_until_when():
    assert len(UPSTREAM) >= 8
    for path in UPSTREAM:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        parts = [text.find(f"\n{part}") for part in ("Mends: ", "Versions: ", "Asked for by: ", "No longer needed when ")]
        assert -1 not in parts and parts == sorted(parts), path.name


def test_every_mend_is_asked_for_by_something():
    from verl_entropy.hosts.verl_engine import wiring

    used = {piece.function.split(".")[1] for piece in wiring.PIECES if piece.function.startswith("upstream.")}
    assert used | {"varlen"} == {path.stem for path in UPSTREAM}  # varlen_hooks imports varlen


# ----------------------------------------------------------------------------- a second plugin

THEIRS = """
import importlib.abc, sys

class Loader(importlib.abc.Loader):
    def __init__(self, inner): self.inner = inner
    def create_module(self, spec): return self.inner.create_module(spec)
    def exec_module(self, module):
        self.inner.exec_module(module)

        @module.register_trainer("theirs")
        class Theirs(module.PPOTrainer):
            def _compute_advantage(self, batch, metrics):
                metrics["theirs"] = 1.0
                return super()._compute_advantage(batch, metrics)

            def on_sample_end(self): pass
            def on_step_end(self): pass

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "verl.trainer.ppo.v1.trainer_base":
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    spec.loader = Loader(spec.loader)
                    return spec

sys.meta_path.insert(0, Finder())
"""
SAMPLER = """
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

class Sampler(ReplayBuffer):
    pass
"""
BESIDE = """
def case(words):
    config = composed(words)
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
    cls = get_trainer_cls("theirs")
    trainer = cls.__new__(cls)
    trainer.config, trainer.trainer_mode = config, "theirs"
    buffer = trainer._build_replay_buffer()
    room = trainer_base.PPOTrainer._compute_advantage.__code__.co_filename.split("/")[-3]
    print(cls.__module__, type(buffer).__name__, buffer.poll_interval, room)

in_a_child(case, sys.argv[1:4])
in_a_child(case, sys.argv[1:])
"""


@pytest.mark.slow
def test_another_plugin_of_the_same_group_keeps_its_trainer_and_its_sampler(tmp_path):
    (tmp_path / "their_plugin.py").write_text(THEIRS)
    (tmp_path / "sampler.py").write_text(SAMPLER)
    info = tmp_path / "their_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verl.plugins]\ntheirs = their_plugin\n")
    words = [
        "trainer.v1.trainer_mode=theirs",
        f"++trainer.v1.sampler.custom_sampler.path={tmp_path / 'sampler.py'}",
        "++trainer.v1.sampler.custom_sampler.name=Sampler",
    ]
    ours = ["+entropy=[aem]", "+trainer.v1.sampler.sampler_kwargs.poll_interval=0.25"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    said = run("-c", FORKED + BESIDE, *words, *ours, PYTHONPATH=path).splitlines()
    assert [line for line in said if line.startswith("their")] == [
        "their_plugin Sampler 2.0 ppo",
        "their_plugin Sampler 0.25 hosts",
    ], said
