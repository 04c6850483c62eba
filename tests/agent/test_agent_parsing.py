# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_entropy.agent.parsing import MAX_ACTION_CHARS, RAW_CHARS, executed_action, find_action, format_response, parse_response

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
    ("text", "action", "error"),
    [
        ("<think>t</think><search>a b</search>", "<search> a b </search>", ""),
        ("<think>t</think> so <ANSWER>\n x\ny </Answer> bye", "<answer> x\ny </answer>", ""),
        ("<search>a</search>", "<search> a </search>", "no thought"),
        ("<search>a</search><think>t</think>", "<search> a </search>", "thought not before the action"),
        ("<think>t</think><answer>b</answer><search>a</search>", "<answer> b </answer>", "several action blocks"),
        ("<think>t</think><search>a</search><search>b</search>", "<search> a </search>", "several action blocks"),
        ("<think>or <answer>?</think><search>a</search>", "<search> a </search>", "several action blocks"),
        ("<think>t</think><search>a</answer>", "", "unfinished action block"),
        ("<think>t</think><search> </search>", "", "empty action"),
        ("<think>t</think><action>a</action>", "", "no action block"),
        ("<think>t</think><search>" + "x" * (MAX_ACTION_CHARS + 1) + "</search>", "", "action too long"),
    ],
)
def test_one_block_of_several_tags(text, action, error):
    parsed = parse_response(text, action_tags=("search", "answer"))
    assert (parsed.action, parsed.error, parsed.valid_format) == (action, error, not error)


def test_a_block_with_its_tags_is_compared_with_what_is_listed():
    listed = ("<answer>Yes</answer>", "<answer>No</answer>")
    parsed = parse_response("<think></think><answer> no </answer>", listed, action_tags=("answer",))
    assert parsed.valid() and parsed.action == "<answer>No</answer>"


WHOLE = {"action_format": "whole"}
LONG = "x" * 30_000


@pytest.mark.parametrize(
    ("text", "options", "action", "error"),
    [
        ("<think>t</think> so \\boxed{3}\n", {}, "so \\boxed{3}", ""),
        (f"<think>t</think>{LONG}", {}, LONG, ""),
        ("a <action>b</action>", {"require_think": False}, "a <action>b</action>", ""),
        ("t</think>a", {"think_in_prompt": True}, "a", ""),
        ("<think>t</think>a", {"strict": True}, "a", ""),
        ("oh <think>t</think>a", {"strict": True}, "a", "text outside the tags"),
        ("a", {}, "a", "no thought"),
        ("<think>a", {"require_think": False}, "", "unfinished thought"),
        ("a", {"think_in_prompt": True}, "", "unfinished thought"),
        ("<think>a</think>", {}, "", "empty action"),
        (" ", {"require_think": False}, "", "empty action"),
        ("<think>a</think>b<think>c</think>", {}, "b<think>c</think>", "several thoughts"),
    ],
)
def test_the_whole_answer(text, options, action, error):
    parsed = parse_response(text, **WHOLE, **options)
    assert (parsed.action, parsed.error, parsed.valid_format) == (action, error, not error)


def test_the_whole_answer_may_have_to_be_one_of_a_list():
    assert parse_response("<think></think> GO north", ACTIONS, **WHOLE).action == "go north"
    assert not parse_response("<think></think> 1", ACTIONS, **WHOLE).admissible


@pytest.mark.parametrize("limit", [10, MAX_ACTION_CHARS, 20_000])
def test_how_long_an_action_may_be(limit):
    options = {} if limit == MAX_ACTION_CHARS else {"max_action_chars": limit}
    fits, longer = (parse_response(f"<think></think><action>{'x' * n}</action>", **options) for n in (limit, limit + 1))
    assert fits.action == "x" * limit and fits.valid()
    assert (longer.action, longer.error) == ("", "action too long")


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


def test_a_raw_whole_answer_is_not_cut():
    """It lacks a thought, so it is invalid; an unfinished one is sent as nothing (test_agent_cut)."""
    text = "a" * 100 + " the end"
    parsed = parse_response(text + "\n", **WHOLE)
    assert not parsed.valid_format and executed_action(parsed, text + "\n", **WHOLE) == text


@pytest.mark.parametrize("text", ["<think> " + "a" * 100, "a" * 100 + "</think>"])
def test_a_thought_without_its_end_or_answer_is_not_executed(text):
    parsed = parse_response(text + "\n", **WHOLE)
    assert not parsed.valid_format and executed_action(parsed, text + "\n", **WHOLE) == ""


def test_inadmissible_action_may_be_valid():
    parsed = parse_response("<think></think><action>fly</action>", ACTIONS)
    assert not parsed.valid() and parsed.valid(require_admissible=False)


plain = st.text(st.characters(exclude_characters="<>", exclude_categories=("Cs",)), max_size=60)


@given(plain.filter(str.strip), plain)
def test_format_then_parse_is_the_identity(action, thought):
    parsed = parse_response(format_response(action, thought), strict=True)
    assert parsed.valid_format and parsed.action == action.strip() and parsed.thought == thought.strip()


TAGGED = {"action_tags": ("search", "answer")}
FORMS = st.sampled_from([{}, WHOLE, TAGGED, {"think_tag": "r", "action_tag": "do"}])


@given(plain.filter(str.strip), plain, plain, st.sampled_from(["think", "r", "do", "action", "search", "Answer"]), FORMS)
def test_what_an_expert_writes_is_well_formed_in_every_form(action, before, after, mentioned, form):
    """Also where its thought repeats the action or mentions a tag."""
    action = f"<answer> {action.strip()} </answer>" if form == TAGGED else action.strip()
    names = {form.get("think_tag", "think"), form.get("action_tag", "action"), *form.get("action_tags", ())}
    mention = f"<{mentioned}>" if mentioned.lower() in names else ""
    response = format_response(action, f"{before}{mention}{action}{after}", **form)
    parsed = parse_response(response, strict=True, **form)
    assert parsed.error == "" and parsed.action == action


def test_tags_in_the_thought_become_words():
    thought = "Next: <search> big river </search>, then think."
    written = format_response("<search>big river</search>", thought, **TAGGED)
    assert written == "<think> Next: search big river, then think. </think> <search> big river </search>"


@pytest.mark.parametrize(
    "action", ["big river", "<search>a</search><answer>b</answer>", "so <search>a</search>", "<search> </search>", ""]
)
def test_an_action_that_is_no_block_is_not_written(action):
    with pytest.raises(ValueError, match=r"data\.env\.action_tags=\[search, answer\].*not exactly one block.*Set data\.env"):
        format_response(action, "t", **TAGGED)


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


tagged_pieces = st.sampled_from(["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "x", " "])


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


@given(st.lists(tagged_pieces, max_size=10).map("".join))
def test_any_text_gets_a_verdict_on_its_blocks(text):
    """Valid exactly where one block of one of the tags follows one thought, by a count of the tags."""
    parsed = parse_response(text, **TAGGED)
    opens, closes = (sum(text.count(f"<{slash}{tag}>") for tag in ("search", "answer")) for slash in ("", "/"))
    if parsed.valid_format:
        assert opens == closes == text.count("<think>") == text.count("</think>") == 1
        assert parsed.action.startswith(("<search> ", "<answer> ")) and text.index("</think>") < text.index(parsed.action[:8])
    else:
        assert parsed.error
    whole = parse_response(text, **WHOLE)
    assert whole.valid_format == (not whole.error) and (not whole.valid_format or text.rstrip().endswith(whole.action))


HUGE = ["<action>" * 100_000, "</think>" * 100_000, "<" * 1_000_000, GOOD + "x" * 2_000_000, "<search></answer>" * 50_000]


@pytest.mark.parametrize("form", [{}, WHOLE, TAGGED], ids=["tag", "whole", "tags"])
@pytest.mark.parametrize("text", HUGE, ids=range(len(HUGE)))
def test_huge_text_takes_linear_time(text, form):
    start = time.process_time()
    parse_response(text, **form)
    assert time.process_time() - start < 1.0


def test_a_huge_answer_costs_little_beside_a_list_of_actions():
    """Folding a million characters to compare them with short actions took most of a turn."""
    listed = [f"go to cabinet {i}" for i in range(40)]
    start = time.process_time()
    for text in ("<think>x</think>" + "<action>" * 125_000, "- . " * 250_000):
        for form in ({}, WHOLE):
            assert not parse_response(text, listed, **form).admissible
    assert time.process_time() - start < 0.8
    assert find_action(" GO   to\n cabinet\t7 ", listed) == 7
