# SPDX-License-Identifier: Apache-2.0
"""Values of environments, data sets and run files are read strictly, wherever they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agent_envs import Climb
from agent_fakes import answer, play

from verl_entropy.agent.environment import StepResult, reached_goal, read_reset, read_step
from verl_entropy.agent.pool import close_all
from verl_entropy.agent.stepwise import StepwiseAgentLoop
from verl_entropy.batch.foreign import ProtocolError, read_bool, read_number, read_whole
from verl_entropy.batch.turns import build_turns
from verl_entropy.data.source import tasks
from verl_entropy.hosts.common.agent_rows import success as _success

TRUE = [True, np.True_, 1, 1.0, np.int64(1), np.float32(1), [True], (1,), np.array([True]), np.array(1), torch.tensor([[1]])]
FALSE = [False, np.False_, 0, 0.0, [False], [[0]], np.array([False]), np.array([[0.0]]), torch.tensor(False)]
NEITHER = ["False", "true", "", None, [], [True, False], np.array([1, 0]), 2, 0.5, float("nan"), {}, {"a": 1}, b"1", object()]


@pytest.mark.parametrize(("values", "expected"), [(TRUE, True), (FALSE, False)])
def test_truth_values(values, expected):
    assert [read_bool(value, "x") for value in values] == [expected] * len(values)


@pytest.mark.parametrize("value", NEITHER, ids=lambda value: type(value).__name__)
def test_what_is_no_truth_value_is_named(value):
    with pytest.raises(ProtocolError, match=rf"^done=.* of type {type(value).__name__}: expected True or False"):
        read_bool(value, "done")


def test_numbers():
    given = [3, 2.5, np.float32(0.5), [1.0], np.array([[2]]), torch.tensor([1.5]), True]
    assert [read_number(value, "x") for value in given] == [3.0, 2.5, 0.5, 1.0, 2.0, 1.5, 1.0]
    assert [read_whole(value, "x") for value in (7, 7.0, np.int32(7), np.array([7]))] == [7] * 4
    for reader, value in (
        (read_number, "1.0"),
        (read_number, None),
        (read_number, np.inf),
        (read_whole, "7"),
        (read_whole, 7.5),
        (read_whole, True),
    ):
        with pytest.raises(ProtocolError, match=rf"^x(=| is ).* of type {type(value).__name__}"):
            reader(value, "x")


class Arrays(Climb):
    """An environment of vectors of one: what a batched simulator gives."""

    won = np.array([False])

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        won = np.array([info["won"]]) if self.won is not None else "False"
        return observation, np.array([reward]), [terminated], np.array([truncated]), {**info, "won": won}


class Text(Arrays):
    """Says its truth value as text."""

    won = None


@pytest.fixture(autouse=True)
def closed():
    yield
    close_all()


def test_arrays_of_one_end_no_episode_and_are_no_success():
    seen = read_step(("o", np.array([1.5]), [False], np.array([False]), {}))
    assert (seen.reward, seen.done) == (1.5, False)
    assert reached_goal(StepResult("", 0.0, True, False, {"won": [False]}), 1.0, "won") is False
    env = {"name": f"{Arrays.__module__}:Arrays", "max_turns": 9}
    (rows,), _ = play(StepwiseAgentLoop, env, lambda *_: answer("up"))
    assert len(rows) == 2 and rows[0].extra_fields["success"] is True
    (rows,), _ = play(StepwiseAgentLoop, {**env, "max_turns": 1}, lambda *_: answer("up"))
    assert rows[0].extra_fields["success"] is False


def test_text_is_a_broken_interface():
    env = {"name": f"{Text.__module__}:Text", "on_env_failure": "raise", "episode_retries": 0}
    ((error,), _) = play(StepwiseAgentLoop, env, lambda *_: answer("up"))
    assert "protocol: info['won']='False' of type str" in str(error)


@pytest.mark.parametrize("actions", [np.array(["up", "down"]), ["up", "down"], ("up", "down"), (a for a in ("up", "down"))])
def test_admissible_actions_of_any_kind(actions):
    seen = read_reset(("o", {"admissible_actions": actions}))
    assert seen.admissible == seen.admissible == ("up", "down")
    assert read_reset(("o", {"admissible_actions": None})).admissible == ()
    assert read_reset(("o", {"admissible_actions": np.array([], dtype=str)})).admissible == ()


def test_columns_of_the_trainer():
    assert _success([{"success": [False]}, {"success": np.True_}, {}], torch.tensor([1.0, 0.0, 2.0]), 0.5) == [False, True, True]
    with pytest.raises(ProtocolError, match=r"extra_fields\['success'\] of row 0='False' of type str"):
        _success([{"success": "False"}], torch.tensor([1.0]), 0.5)

    def turns(valid, success):
        fields = [[{"valid": valid, "reward": np.array([1.0])}]]
        return build_turns(torch.ones(1, 2), ["g"], ["t"], [0], [False], torch.ones(1), fields, [success])

    found = turns([False], [False])
    assert (found.valid_K.tolist(), found.success_J.tolist(), found.reward_K.tolist()) == ([False], [False], [1.0])
    with pytest.raises(ProtocolError, match="'valid' of a turn of row 0='False' of type str"):
        turns("False", True)
    with pytest.raises(ProtocolError, match="success_R of row 0='no'"):
        turns(True, "no")


def test_options_and_seeds_of_a_data_set():
    from verl_entropy.agent.loop import _options  # after the loops, which verl registers when its module is loaded

    for nothing in (None, "null", "[]", [], {}, "", np.array([])):
        assert _options({"options": nothing}) == {}
    assert _options({"options": '{"a": 1, "b": null}'}) == {"a": 1}
    for wrong in ("[1]", "7", "{", [1], 7):
        with pytest.raises(ProtocolError, match=r"extra_info\.options=.* of type"):
            _options({"options": wrong})
    row = {"extra_info": {"index": "train_7"}}
    ((error,), _) = play(StepwiseAgentLoop, {"name": "agent_envs:Climb"}, lambda *_: answer("up"), row=row)
    assert isinstance(error, ProtocolError) and "extra_info.index='train_7' of type str: expected a whole number" in str(error)


class Listed(Climb):
    """A data set whose seed is text."""

    SPLITS = ("train",)

    @classmethod
    def episodes(cls, split, *, count=None, seed=0, **kwargs):
        return [{"seed": "7"}]


def test_seeds_of_an_episode_source():
    with pytest.raises(ProtocolError, match=r"episodes\(\)\[0\]\['seed'\]='7' of type str"):
        tasks(f"{Listed.__module__}:Listed", "train", count=1)
