# SPDX-License-Identifier: Apache-2.0
"""A template or tokenizer that contradicts the settings stops the start; special tags do not leave the end token in the text."""

from __future__ import annotations

import time

import pytest
from agent_fakes import TEMPLATE, answer, play, tokenizer

from verl_entropy.agent.pool import close_all
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.agent.stepwise import StepwiseAgentLoop
from verl_entropy.agent.template import without_end
from verl_entropy.config.settings import ConfigError
from verl_entropy.data.expert_turns import TurnWriter

OPENS = TEMPLATE.replace("<im_start> assistant {% endif %}", "<im_start> assistant <think> {% endif %}")

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE


def write(template=TEMPLATE, eos="<im_end>", **settings):
    words = tokenizer()
    words.chat_template, words.eos_token = template, eos
    return TurnWriter(AgentSettings(**settings), words, 64, 24)


def test_a_template_that_fits_passes():
    write()
    write(OPENS, think_in_prompt=True)
    write(system_prompt="you act")
    write(OPENS.replace("<think> ", "<think> </think> "))  # opened and closed: an empty thought


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"template": OPENS},
            r"think_in_prompt=False: the chat template itself opens <think>.*Set data\.env\.think_in_prompt=True",
        ),
        ({"think_in_prompt": True}, r"does not open <think>.*Set data\.env\.think_in_prompt=False"),
        ({"eos": None}, "no eos_token.*Set eos_token"),
        (
            {
                "template": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE,
                "system_prompt": "be",
            },
            r"data\.env\.system_prompt='be': the chat template refuses it.*Set data\.env\.system_prompt=''",
        ),
    ],
)
def test_what_contradicts_the_settings_stops_with_the_fix(arguments, says):
    with pytest.raises(ConfigError, match=says):
        write(**arguments)


def test_the_end_of_an_answer_is_no_part_of_it():
    ends = ("<|im_end|>", "</s>")
    assert without_end("go north<|im_end|>", ends) == "go north" and without_end("a </s> <|im_end|>\n", ends) == "a"
    assert without_end("a <|im_end|> b ", ends) == "a <|im_end|> b " and without_end("a ", ()) == "a "
    seconds = []
    for count in (25_000, 100_000):  # linear: four times as long, where a quadratic one takes sixteen times
        started = time.process_time()
        assert without_end("a" + "<|im_end|> " * count, ends) == "a"
        seconds.append(time.process_time() - started)
    assert seconds[1] < 10 * seconds[0] + 0.2


@pytest.mark.parametrize("form", [{"strict_format": True}, {"action_format": "whole", "require_think": False}])
def test_special_tags_leave_no_end_token_in_an_action(form, monkeypatch):
    import agent_fakes

    def special():
        words = tokenizer()
        tags = ["<think>", "</think>", "<action>", "</action>", "<im_start>"]
        words.add_special_tokens({"additional_special_tokens": tags})
        return words

    monkeypatch.setattr(agent_fakes, "tokenizer", special)
    text = answer("up") if "strict_format" in form else "<think> hard </think> up <im_end>"
    (rows,), _ = play(StepwiseAgentLoop, {"name": "agent_envs:Climb", **form}, lambda *_: text)
    turns = [row.extra_fields["turns"][0] for row in rows]
    assert [(t["action"], t["valid"]) for t in turns] == [("up", True)] * 2
    close_all()


def test_the_loop_refuses_a_template_that_opens_the_thought(monkeypatch):
    import agent_fakes

    def opens():
        words = tokenizer()
        words.chat_template = OPENS
        return words

    monkeypatch.setattr(agent_fakes, "tokenizer", opens)
    with pytest.raises(ConfigError, match=r"Set data\.env\.think_in_prompt=True"):
        play(StepwiseAgentLoop, {"name": "agent_envs:Climb"}, lambda *_: answer("up"))
