# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from agent_envs import Climb
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from verl_entropy.agent import AgentSettings, TextEnvironment
from verl_entropy.agent.environment import ProtocolError, StepResult, reached_goal, read_reset, read_step
from verl_entropy.config.settings import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_turn": 3}, r"data\.env\.max_turn: no such setting.*data\.env\.max_turns"),
        ({"max_turns": 0}, r"data\.env\.max_turns=0: must be >= 1"),
        ({"isolation": "fork"}, r"data\.env\.isolation='fork': allowed are auto, thread, process"),
        ({"action_tag": "<a>"}, r"data\.env\.action_tag='<a>'"),
        ({"action_tag": "Think"}, "must differ"),
        ({"think_tag": "<t>"}, r"data\.env\.think_tag='<t>'.*think_tag=think"),
        ({"max_action_chars": 0}, r"data\.env\.max_action_chars=0: must be >= 1"),
        ({"action_tags": "search"}, r"data\.env\.action_tags='search': expected list"),
        (
            {"action_tags": ["search", "<a>"]},
            r"data\.env\.action_tags=\['search', '<a>'\]: names of.*Set data\.env\.action_tags=",
        ),
        ({"action_tags": ["search", 1]}, "names of letters"),
        ({"action_tags": ["search", "Search"]}, r"each name once.*Set data\.env\.action_tags="),
        ({"action_tags": ["Think", "a"]}, "none of them data.env.think_tag='think'"),
        (
            {"action_tags": ["a"], "action_format": "either"},
            r"action_format='either': .* allows text only\. Set data\.env\.action_format=text",
        ),
        ({"action_tags": ["a"], "action_format": "whole"}, r"action_format='whole': .* allows text only"),
        (
            {"action_tags": ["a"], "action_tag": "do"},
            r"action_tag='do': data\.env\.action_tags=\['a'\] does not use it\. Set data",
        ),
        ({"action_format": "whole", "action_tag": "do"}, r"action_tag='do': data\.env\.action_format=whole does not use it"),
        ({"action_format": "whole", "stop_at_action": True}, r"whole has no closing tag\. Set data\.env\.stop_at_action=False"),
        ({"invalid_action": "noop"}, r"data\.env\.noop_action=''"),
        ({"action_format": "number", "show_admissible": False}, "show_admissible=True"),
        ({"step_timeout_s": float("inf")}, "finite"),
        ({"name": " "}, r"data\.env\.name"),
    ],
)
def test_wrong_settings_say_key_value_and_fix(values, message):
    with pytest.raises(ConfigError, match=message):
        AgentSettings.from_mappings(values)


def test_a_section_that_is_no_mapping():
    with pytest.raises(ConfigError, match=r"\+data\.env\.name=household"):
        AgentSettings.from_mappings("household")


def test_later_sections_win_and_kwargs_merge():
    first = {"name": "a:B", "max_turns": 5, "kwargs": {"x": 1, "y": 1}}
    merged = AgentSettings.from_mappings(first, None, {"max_turns": 6, "kwargs": {"y": 2}})
    assert (merged.name, merged.max_turns, merged.kwargs) == ("a:B", 6, {"x": 1, "y": 2})
    assert merged.pool_key != AgentSettings.from_mappings(first).pool_key
    assert pickle.loads(pickle.dumps(merged)) == merged


@pytest.mark.parametrize(
    ("env", "form"),
    [
        ("search", {"answer_tags": ("search", "answer"), "require_think": True}),
        ("math", {"answer_tags": (), "invalid_action": "raw"}),
        ("appworld", {"answer_tags": ("action",), "max_action_chars": 20_000}),
        ("swe", {"answer_tags": ("action",), "max_action_chars": 20_000}),
        ("alfworld", {"answer_tags": ("action",), "max_action_chars": 1000}),
    ],
)
def test_recipes_choose_the_form_of_their_actions(env, form):
    part = yaml.safe_load((Path(__file__).parents[2] / f"recipes/parts/env/{env}.yaml").read_text())
    settings = AgentSettings.from_mappings(part["data"]["env"])
    assert {key: getattr(settings, key) for key in form} == form


def test_composes_in_verls_configuration():
    overrides = ["+data.env.name=household", "+data.env.kwargs.split=train", "+data.env.max_turns=7"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides)
    settings = AgentSettings.from_mappings(OmegaConf.to_container(config.data.env, resolve=True))
    assert (settings.name, settings.kwargs, settings.max_turns) == ("household", {"split": "train"}, 7)


def test_protocol_is_structural():
    assert isinstance(Climb(), TextEnvironment)
    assert not isinstance(object(), TextEnvironment)


@pytest.mark.parametrize(
    ("reader", "answer", "message"),
    [
        (read_reset, "obs", "reset.. returned str"),
        (read_reset, (1, {}), "observation of type int"),
        (read_reset, ("o", None), "info of type NoneType"),
        (read_step, ("o", 0.0, False, {}), "Gym before 0.26"),
        (read_step, ("o", float("nan"), False, False, {}), "reward is nan"),
        (read_step, ("o", 0.0, False, False, {"admissible_actions": "up"}), "not a list of str"),
    ],
)
def test_broken_answers(reader, answer, message):
    with pytest.raises(ProtocolError, match=message):
        reader(answer)


@pytest.mark.parametrize(
    ("info", "terminated", "total", "success"),
    [
        ({"won": True}, False, 0.0, True),
        ({"won": False, "success": True}, True, 1.0, False),
        ({"success": True}, False, 0.0, True),
        ({}, True, 1.0, True),
        ({}, True, 0.0, False),
        ({}, False, 1.0, False),
    ],
)
def test_reading_of_success(info, terminated, total, success):
    assert reached_goal(StepResult("", 0.0, terminated, False, info), total, "won") is success


def test_settings_side_imports_neither_torch_nor_verl():
    code = (
        "import sys, verl_entropy.agent, verl_entropy.agent.episode, verl_entropy.agent.prompts;"
        "print([m for m in ('torch', 'verl', 'ray', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
