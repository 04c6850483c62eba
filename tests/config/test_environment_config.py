# SPDX-License-Identifier: Apache-2.0
"""Mistakes around the environment end before Ray starts, with one message."""

import json

import pytest

pytest.importorskip("verl")
from omegaconf import OmegaConf

from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.verl_engine import driver


def check(**env):
    driver.check_environment(OmegaConf.create({"data": {"env": env, "train_files": [], "val_files": None}}))


def test_known_environment_passes_and_none_is_fine():
    check(name="household")
    driver.check_environment(OmegaConf.create({"data": {}}))


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"name": "nowhere.module:Env"}, "does not import"),
        ({"name": "json:Env"}, "has no 'Env'"),
        ({"name": "atlantis"}, "not known"),
        ({"name": "household", "max_turn": 3}, "Did you mean data.env.max_turns"),
        ({"name": "household", "invalid_action_penalty": -1.0}, "must be >= 0"),
    ],
)
def test_wrong_environment(env, says):
    with pytest.raises(ConfigError, match=says):
        check(**env)


def test_a_broken_line_of_a_task_file_is_named(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"prompt": []}) + "\n{'prompt': \n")
    config = OmegaConf.create({"data": {"env": {"name": "household"}, "train_files": str(file), "val_files": []}})
    with pytest.raises(ConfigError, match="line 2 is not JSON"):
        driver.check_environment(config)


class Live:
    """Cannot be set back."""

    SNAPSHOT = "none"


def test_an_environment_whose_turns_cannot_be_gone_on_from_is_refused_under_a_rollout_method(monkeypatch):
    from pathlib import Path

    from verl_entropy.config import plan

    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    chosen = plan.read({"algorithm": {"entropy": {"rollout": "branching"}}})
    driver.check_snapshots(chosen, OmegaConf.create({"data": {"env": {"name": "household"}}}))
    driver.check_snapshots(plan.read({}), OmegaConf.create({"data": {"env": {"name": "test_environment_config:Live"}}}))
    with pytest.raises(
        ConfigError, match=r"data.env.name=test_environment_config:Live: branching goes on from other sessions' turns"
    ):
        driver.check_snapshots(chosen, OmegaConf.create({"data": {"env": {"name": "test_environment_config:Live"}}}))
