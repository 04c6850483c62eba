# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from verl_entropy.agent.prompts import PromptBuilder, PromptTooLong
from verl_entropy.config.settings import ConfigError

HISTORY = [("saw one", "did one"), ("saw two", "did two"), ("saw three", "did three")]
ADMISSIBLE = ["open box", "go north"]


def words(messages):
    return " ".join(m["content"] for m in messages).split()


def count(messages):
    return list(range(len(words(messages))))


def text(builder, **kwargs):
    given = {
        "task": "find it",
        "observation": "a room",
        "history": HISTORY,
        "admissible": ADMISSIBLE,
        "step": 4,
        **kwargs,
    }
    return builder.messages(**given)[-1]["content"]


def test_default_holds_everything_in_order():
    prompt = text(PromptBuilder())
    places = [prompt.index(s) for s in ("find it", "step 4", "saw two", "did two", "saw three", "did three", "a room")]
    places += [prompt.index(s) for s in ("- open box", "- go north", "<think> </think>", "<action> </action>")]
    assert places == sorted(places)
    assert "saw one" not in prompt and "[step 2] observation: saw two" in prompt


@pytest.mark.parametrize(("length", "shown"), [(0, 0), (1, 1), (3, 3), (9, 3)])
def test_history_length(length, shown):
    assert text(PromptBuilder(length)).count("did ") == shown


@pytest.mark.parametrize("form", ["number", "either"])
def test_numbers(form):
    assert "1. open box\n2. go north" in text(PromptBuilder(action_format=form))
    assert "can : 1 open box , 2 go north ." in text(PromptBuilder(template="compact", action_format=form))


def test_compact():
    builder = PromptBuilder(1, template="compact")
    prompt = text(builder, task="Find it!", observation="A room: 2 doors.")
    seen = "goal : find it ! . last : saw three -> did three . now : a room : 2 doors . ."
    assert prompt == f"{seen} can : open box , go north ."
    assert builder.followup("B", ["x"])["content"] == "now : b . can : x ."


def test_admissible_and_tags_are_settings():
    prompt = text(PromptBuilder(show_admissible=False, think_tag="r", action_tag="do"))
    assert "open box" not in prompt and "<r> </r>" in prompt and "<do> </do>" in prompt
    assert "<think>" not in text(PromptBuilder(require_think=False))
    assert PromptBuilder(system_prompt="be good").messages("", "o")[0] == {
        "role": "system",
        "content": "be good",
    }


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "give one action from the list inside <action> </action>."),
        (
            {"action_tags": ("search", "answer")},
            "one action from the list: exactly one block <search> </search> or <answer> </answer>.",
        ),
        ({"action_tags": ("do",), "require_think": False}, "Answer with one action from the list: exactly one block <do> </do>."),
        ({"action_format": "whole"}, "<think> </think>, then give one action from the list and nothing else."),
        ({"action_format": "whole", "show_admissible": False}, "then give your answer; all of it counts as your action."),
    ],
)
def test_the_form_of_the_action_is_told(settings, says):
    prompt = text(PromptBuilder(**settings))
    assert prompt.endswith(says) and ("<action>" in prompt) == (not settings)
    assert "1. open" not in prompt and "1 open" not in text(PromptBuilder(template="compact", **settings))


@pytest.mark.parametrize("from_file", [False, True])
def test_own_template(tmp_path, from_file):
    template = 'S{step} {task}|{observation}|{history}|{admissible}| {"json": {}} {other}'
    if from_file:
        (tmp_path / "t.txt").write_text(template)
    prompt = text(PromptBuilder(1, template=str(tmp_path / "t.txt") if from_file else template), observation="{task}")
    assert prompt.startswith("S4 find it|{task}|[step 3]") and prompt.endswith('- go north| {"json": {}} {other}')


@pytest.mark.parametrize("template", ["missing.txt", "fancy", "{task}"])
def test_bad_template_is_refused(template):
    with pytest.raises(ConfigError, match=r"data\.env\.prompt_template"):
        PromptBuilder(template=template)


class TestForms:
    """Forms of actions are shown, in every template that tells how to answer, and bind nobody."""

    forms = ("search[<your query>]", "open OBJ")

    def test_beside_the_list_or_alone(self):
        alone = text(PromptBuilder(), admissible=(), forms=self.forms)
        assert (
            "Forms of actions:\n- search[<your query>]\n- open OBJ" in alone
            and "one action of one of these forms inside" in alone
        )
        both = text(PromptBuilder(action_format="either"), forms=self.forms)
        assert "2. go north\n\nForms of further actions:\n- search[" in both and "from the list or of these forms" in both
        assert "Forms of" in text(PromptBuilder(show_admissible=False), forms=self.forms)

    def test_other_templates(self):
        assert text(PromptBuilder(template="compact"), forms=self.forms).endswith(
            "forms : search [ < your query > ] , open obj ."
        )
        assert "forms" not in text(PromptBuilder(template="brief"), forms=self.forms)
        own = text(PromptBuilder(template="{observation}|{admissible}"), forms=self.forms)
        assert own.endswith("- go north\n- search[<your query>]\n- open OBJ")
        assert (
            PromptBuilder()
            .followup("seen", (), 2, self.forms)["content"]
            .endswith("Forms of actions:\n- search[<your query>]\n- open OBJ")
        )

    def test_cut_after_the_list_and_before_the_observation(self):
        builder, given = PromptBuilder(template="compact"), {"task": "t", "observation": "a b c d", "admissible": ADMISSIBLE}
        bare = len(count(builder.messages(**given)))
        fitted = builder.fit(count, bare, **given, forms=("open OBJ", "x " * 9))
        assert fitted.dropped_actions == 3 and fitted.dropped_words == 0 and "open obj" in fitted.messages[0]["content"]


def test_numbers_need_a_list():
    with pytest.raises(ConfigError, match="admissible_actions"):
        PromptBuilder(action_format="number").messages("t", "o")


class TestFit:
    """Each smaller limit cuts the next whole part, in the stated order, and never more than needed."""

    builder = PromptBuilder(3, template="compact")
    observation = " ".join(f"w{i}" for i in range(20))
    given = {"task": "t", "observation": observation, "history": HISTORY, "admissible": ADMISSIBLE, "step": 4}  # noqa: RUF012
    size = len(count(builder.messages(**given)))

    @pytest.mark.parametrize(
        ("over", "turns", "actions", "dropped"),
        [
            (0, 0, 0, 0),
            (1, 1, 0, 0),
            (8, 1, 0, 0),
            (9, 2, 0, 0),
            (24, 3, 0, 0),
            (25, 3, 1, 0),
            (28, 3, 2, 0),
            (33, 3, 2, 1),
        ],
    )
    def test_cuts(self, over, turns, actions, dropped):
        fitted = self.builder.fit(count, self.size - over, **self.given)
        assert (fitted.dropped_turns, fitted.dropped_actions, fitted.dropped_words) == (
            turns,
            actions,
            dropped,
        )
        assert len(fitted.token_ids) == len(words(fitted.messages)) <= self.size - over
        kept = [pair for pair in HISTORY if pair[1] in fitted.messages[0]["content"]]
        assert kept == HISTORY[turns:]

    def test_every_limit_down_to_the_least(self):
        least = len("goal : t . now : .".split())
        for limit in range(least, self.size + 1):
            assert len(self.builder.fit(count, limit, **self.given).token_ids) <= limit
        with pytest.raises(PromptTooLong, match=r"prompt_length=5.*max_prompt_length"):
            self.builder.fit(count, 5, **self.given)

    def test_error_mode_and_count(self):
        strict = PromptBuilder(3, template="compact", overlong="error")
        with pytest.raises(PromptTooLong, match="overlong_prompt=truncate"):
            strict.fit(count, self.size - 40, **self.given)
        counting = PromptBuilder(3, template="compact")
        for _ in range(3):
            counting.fit(count, self.size - 40, **self.given)
        assert counting.truncated == 3

    def test_one_tokenisation_when_it_fits(self):
        calls = []
        self.builder.fit(lambda m: calls.append(m) or [1], 10, **self.given)
        assert len(calls) == 1

    @pytest.mark.parametrize("before", ["", "A room. "])
    def test_a_word_longer_than_the_limit_is_cut_inside(self, before):
        """3,000 emoji without a space were dropped whole."""

        def characters(messages):
            return list(range(len(messages[0]["content"])))

        observation = before + "\N{CAT}" * 3000 + " end"
        fitted = PromptBuilder(0, template="compact").fit(characters, 500, "t", observation)
        assert 480 < len(fitted.token_ids) <= 500 and fitted.dropped_words == 2
        assert fitted.messages[0]["content"].count("\N{CAT}") > 200
