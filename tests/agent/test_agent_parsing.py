# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_entropy.agent.parsing import RAW_CHARS, executed_action, format_response, parse_response

GOOD = "<think> t </think> <action> go north </action>"
ACTIONS = ("go north", "open box 1", "Take Apple")


@pytest.mark.parametrize(
    ("text", "action", "error"),
    [
        (GOOD, "go north", ""),
        ("<THINK>t</Think><Action>go north</ACTION>", "go north", ""),
        ("Sure! <think>t</think> so <action>go north</action> bye", "go north", ""),
        ("<think></think><action>go north</action>", "go north", ""),
        ("<think> t </think> <action>\n x = 1\n  y = 2\n</action>", "x = 1\n  y = 2", ""),
        ("<action>go north</action>", "go north", "no thought"),
        ("<action>go north</action><think>t</think>", "go north", "thought not before the action"),
        ("<think>t <action>go north</action></think>", "go north", "thought not before the action"),
        ("<think>t<action>go north</action>", "go north", "unfinished thought"),
        ("t</think><action>go north</action>", "go north", "unfinished thought"),
        ("<think>a</think><think>b</think><action>x</action>", "x", "several thoughts"),
        ("<think>use <action> tags</think><action>x</action>", "x", "several action blocks"),
        ("<think>t</think><action>a</action><action>b</action>", "a", "several action blocks"),
        ("<think>t</think><action>a<action>b</action></action>", "b", "several action blocks"),
        ("<think>t</think><action>go north", "", "unfinished action block"),
        ("<think>t</think></action>go north<action>", "", "unfinished action block"),
        ("<think>t</think>go north", "", "no action block"),
        ("<think>t</think><action>  </action>", "", "empty action"),
        ("<think>t</think><action>" + "x" * 2000 + "</action>", "", "action too long"),
        ("", "", "no action block"),
        ("<thin\u212a>t</thin\u212a><action>x</action>", "x", "no thought"),  # a Kelvin sign is no k
    ],
)
def test_format(text, action, error):
    parsed = parse_response(text)
    assert (parsed.action, parsed.error, parsed.valid_format) == (action, error, not error)


@pytest.mark.parametrize(
    ("text", "options", "valid"),
    [
        ("<action>x</action>", {"require_think": False}, True),
        ("t</think><action>x</action>", {"think_in_prompt": True}, True),
        ("<think>t</think><action>x</action>", {"think_in_prompt": True}, True),
        ("t<action>x</action>", {"think_in_prompt": True}, False),
        ("<r>t</r><do>x</do>", {"think_tag": "r", "action_tag": "do"}, True),
        (GOOD, {"strict": True}, True),
        (GOOD + " bye", {"strict": True}, False),
        ("hm " + GOOD, {"strict": True}, False),
        ("<think>t</think> and <action>x</action>", {"strict": True}, False),
    ],
)
def test_options(text, options, valid):
    assert parse_response(text, **options).valid_format is valid


@pytest.mark.parametrize(
    ("content", "form", "action", "valid_format", "admissible"),
    [
        ("GO   North", "text", "go north", True, True),
        ("take apple", "text", "Take Apple", True, True),
        ("fly", "text", "fly", True, False),
        ("2", "text", "2", True, False),
        ("2", "number", "open box 1", True, True),
        ("2.", "number", "open box 1", True, True),
        ("0", "number", "0", False, False),
        ("4", "number", "4", False, False),
        ("go north", "number", "go north", False, False),
        ("\u0662", "number", "\u0662", False, False),  # an Arabic-Indic two: int() would take it
        ("3", "either", "Take Apple", True, True),
        ("go north", "either", "go north", True, True),
        ("fly", "either", "fly", True, False),
        ("9", "either", "9", False, False),
    ],
)
def test_action_format(content, form, action, valid_format, admissible):
    parsed = parse_response(f"<think>t</think><action>{content}</action>", ACTIONS, action_format=form)
    assert (parsed.action, parsed.valid_format, parsed.admissible) == (action, valid_format, admissible)


@pytest.mark.parametrize("text", ["go north", "<think>t</think><action> </action>", "<action>go north"])
def test_no_action_is_admissible_only_where_nothing_is_listed(text):
    assert not parse_response(text, ACTIONS).admissible and parse_response(text).admissible


def test_either_prefers_text():
    assert parse_response("<think></think><action>1</action>", ("2", "1"), action_format="either").action == "1"


@pytest.mark.parametrize(
    ("content", "mode", "executed"),
    [
        ("go north", "raw", "go north"),
        ("fly", "raw", "fly"),
        ("fly", "noop", "look"),
        ("fly", "first", "go north"),
        ("go north", "first", "go north"),
    ],
)
def test_what_is_executed(content, mode, executed):
    text = f"<think></think><action>{content}</action>"
    parsed = parse_response(text, ACTIONS)
    assert executed_action(parsed, text, ACTIONS, invalid_action=mode, noop_action="look") == executed


def test_raw_text_is_truncated_to_its_end():
    text = "a" * 100 + "the end"
    assert executed_action(parse_response(text), text) == text[-RAW_CHARS:]


def test_inadmissible_action_may_be_valid():
    parsed = parse_response("<think></think><action>fly</action>", ACTIONS)
    assert not parsed.valid() and parsed.valid(require_admissible=False)


plain = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), max_size=60)


@given(plain.filter(str.strip), plain)
def test_format_then_parse_is_the_identity(action, thought):
    parsed = parse_response(format_response(action, thought), strict=True)
    assert parsed.valid_format and parsed.action == action.strip() and parsed.thought == thought.strip()


pieces = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<action>",
        "</action>",
        "<",
        ">",
        "</",
        "\u0130",
        "\u212a",
        "go north",
        "1",
        "\n",
        "\x00",
    ]
)


@settings(max_examples=100)
@given(
    st.lists(pieces | st.text(max_size=5), max_size=14).map("".join),
    st.sampled_from(["text", "number", "either"]),
)
def test_any_text_gets_a_verdict(text, form):
    parsed = parse_response(text, ACTIONS, action_format=form)
    low = text.lower()
    if parsed.valid_format:
        assert all(low.count(tag) == 1 for tag in ("<think>", "</think>", "<action>", "</action>"))
        assert low.index("</think>") < low.index("<action>") and parsed.action and not parsed.error
    else:
        assert parsed.error
    assert isinstance(executed_action(parsed, text, ACTIONS), str)


@pytest.mark.parametrize("text", ["<action>" * 100_000, "</think>" * 100_000, "<" * 1_000_000, GOOD + "x" * 2_000_000])
def test_huge_text_takes_linear_time(text):
    start = time.process_time()
    parse_response(text)
    assert time.process_time() - start < 1.0
