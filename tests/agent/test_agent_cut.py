# SPDX-License-Identifier: Apache-2.0
"""A cut answer is not executed and is marked; why an episode ended is stored with its rows."""

from __future__ import annotations

import logging

import pytest
from agent_envs import Climb
from agent_fakes import answer, play

from verl_entropy.agent import episode as episodes
from verl_entropy.agent.cut import is_cut, tokens_cut
from verl_entropy.agent.multispan import SpanAgentLoop
from verl_entropy.agent.parsing import executed_action, parse_response
from verl_entropy.agent.pool import close_all
from verl_entropy.agent.stepwise import StepwiseAgentLoop
from verl_entropy.envs.worlds.math import compute_score
from verl_entropy.hosts.common.agent_rows import ending_metrics
from verl_entropy.runs.judge.prompt import MalformedAnswer, parse

PLAYED: list[str] = []


class Noted(Climb):
    """Writes down what it is told to do."""

    def step(self, action):
        PLAYED.append(action)
        return super().step(action)


NOTED = {"name": f"{__name__}:Noted", "kwargs": {"goal": 2}, "max_turns": 4}
LONG = "<think> hard hard </think> <action> up </action> hard hard hard hard hard hard hard hard hard"


@pytest.fixture(autouse=True)
def fresh():
    PLAYED.clear()
    episodes._warned.clear()
    yield
    close_all()


def test_finish_reasons():
    assert [is_cut(r) for r in ("length", "abort", {"type": "length", "length": 5}, "stop", "completed", None, "tool_calls")] == [
        True
    ] * 3 + [False] * 4
    assert tokens_cut([5, 6], 2, {9}, "completed") and tokens_cut([5], 2, {9}, "length") and tokens_cut([5, 9], 9, {9}, "aborted")
    assert (
        not tokens_cut([5, 9], 2, {9}, "completed")
        and not tokens_cut([5], 2, {9}, None)
        and not tokens_cut([5, 6], 2, {9}, "stop")
    )


def test_a_cut_answer_is_not_executed_in_steps(caplog):
    (rows,), _ = play(StepwiseAgentLoop, NOTED, lambda n, p: LONG if n % 2 == 0 else answer("up"), response_length=12)
    turns = [row.extra_fields["turns"][0] for row in rows]
    assert PLAYED == ["", "up", "", "up"] and [t["cut"] for t in turns] == [True, False, True, False]
    assert [t["valid"] for t in turns] == [False, True, False, True] and turns[0]["action"] == ""
    assert rows[0].extra_fields["ended"] == "terminated" and rows[0].extra_fields["reward_extra_info"]["cut_answers"] == 0.5
    assert sum("an answer was cut" in r.getMessage() and r.levelno == logging.WARNING for r in caplog.records) == 1


def test_a_growing_chat_ends_with_a_cut_answer():
    env = {**NOTED, "max_tokens_per_turn": 12}
    (rows,), server = play(SpanAgentLoop, env, lambda n, p: answer("up") if n == 0 else LONG, response_length=300)
    (row,) = rows
    assert PLAYED == ["up", ""] and len(server.calls) == 2
    assert row.extra_fields["ended"] == "cut" and row.extra_fields["turns"][1]["cut"] and not row.extra_fields["success"]
    (rows,), _ = play(SpanAgentLoop, {**NOTED, "kwargs": {"goal": 9}}, lambda *_: answer("up"), response_length=40)
    assert rows[0].extra_fields["ended"] == "no_room" and rows[0].extra_fields["reward_extra_info"]["no_room"] == 1.0


def test_metrics_of_endings():
    turn = {"cut": True, "prompt_cut": False}
    extra = [
        {"ended": "cut", "turns": [turn, {**turn, "cut": False}]},
        {"ended": "terminated", "turns": [{}]},
        {"ended": "terminated", "turns": [{}]},
    ]
    found = ending_metrics(extra, ["u_0_0", "u_1_0", "u_1_1"])
    assert found["verl_entropy/episodes/ended/cut"] == found["verl_entropy/episodes/ended/terminated"] == 0.5
    assert found["verl_entropy/episodes/cut_answers"] == 0.25 and found["verl_entropy/episodes/ended/no_room"] == 0.0
    assert ending_metrics([{}], ["u_0_0"]) == {}


def test_an_unfinished_thought_pays_nothing():
    text = r"<think> perhaps \boxed{4}, but"
    parsed = parse_response(text, action_format="whole")
    assert executed_action(parsed, text, action_format="whole") == ""
    assert compute_score("x", text, "4")["score"] == 0.0
    assert compute_score("x", r"<think> \boxed{5} </think> \boxed{4}", "4")["score"] == 1.0
    with pytest.raises(MalformedAnswer, match="unfinished thought"):
        parse('<think> {"score": 0} would be too low, because')
    assert parse('it is {"score": 9} </think> {"score": 3}')[0] == 3.0
