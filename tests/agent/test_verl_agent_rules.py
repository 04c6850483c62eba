# SPDX-License-Identifier: Apache-2.0
"""``prompt_template=verl_agent`` as one setting; tests/verl_agent/test_prompts.py compares it with verl-agent itself."""

import asyncio

import pytest

from verl_entropy.agent.episode import EpisodeRunner
from verl_entropy.agent.pool import pool_of
from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.agent.settings import AgentSettings, check_texts
from verl_entropy.agent.verl_agent_rules import HOME, KINDS, home, project, templates
from verl_entropy.config.settings import ConfigError


def settings(name, **more):
    return AgentSettings.from_mappings({"name": name, "prompt_template": "verl_agent", **more})


@pytest.mark.parametrize(("name", "tags"), [("alfworld", ("action",)), ("search", ("search", "answer")), ("appworld", ("code",))])
def test_the_template_brings_its_rules(name, tags):
    s = settings(name)
    assert s.answer_tags == tags and not s.require_admissible


@pytest.mark.parametrize("key", [{"strict_format": True}, {"require_admissible": True}, {"action_format": "number"}])
def test_what_contradicts_its_rules_is_refused(key):
    with pytest.raises(ConfigError, match=rf"{next(iter(key))}=.*prompt_template=verl_agent has rules"):
        settings("alfworld", **key)


def test_other_environments_are_refused():
    with pytest.raises(ConfigError, match=r"no prompt for the environment 'household', only for alfworld, webshop"):
        settings("household")


def test_first_and_later_turns():
    prompts = PromptBuilder(**settings("alfworld").prompts)
    first = prompts.messages("t", "a room", [], ["look", "go"], 1)[-1]["content"]
    assert first == "alfworld first: a room: ['look'\n 'go']"
    later = prompts.messages("t", "b", [("a room", "go")] * 3, ["look"], 4)[-1]["content"]
    assert later.startswith("alfworld later: t: 3, last 2: [Observation 2: 'a room', Action 2: 'go']\n[Observation 3: ")


@pytest.fixture(autouse=True)
def _read_anew():
    templates.cache_clear()
    yield
    templates.cache_clear()


def test_without_its_checkout_it_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv(HOME)
    monkeypatch.delenv("VERL_ENTROPY_CACHE", raising=False)
    with pytest.raises(
        ConfigError, match=r"prompt_template=verl_agent: VERL_AGENT_HOME is not set.*git clone.*prompt_template=default"
    ):
        check_texts(settings("webshop"))
    monkeypatch.setenv(HOME, str(tmp_path))
    with pytest.raises(ConfigError, match=r"no file .*prompts/webshop\.py.*git clone"):
        check_texts(settings("webshop"))
    file = tmp_path / "agent_system/environments/prompts/webshop.py"
    file.parent.mkdir(parents=True)
    file.write_text("WEBSHOP_TEMPLATE = 'a'\n")
    with pytest.raises(ConfigError, match=r"has no text WEBSHOP_TEMPLATE_NO_HIS: tested is"):
        check_texts(settings("webshop"))
    check_texts(AgentSettings.from_mappings({"name": "household"}))
    monkeypatch.delenv(HOME)
    monkeypatch.setenv("VERL_ENTROPY_CACHE", str(tmp_path))
    assert home() == tmp_path / "verl-agent"


def test_a_long_prompt_is_cut_by_whole_turns():
    prompts = PromptBuilder(**settings("webshop").prompts)
    history = [("page " * 50, "search[x]")] * 2
    fitted = prompts.fit(lambda m: m[0]["content"].split(), 80, "t", "now", history, ["click[a]"], 3)
    assert fitted.dropped_turns == 1 and "last 1:" in fitted.messages[0]["content"]


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"search", "appworld"}))
def test_an_inadmissible_action_is_valid_and_the_order_of_tags_is_free(name):
    parsed = project("<action>Fly</action><think>x</think>", name, ["go"])
    assert (parsed.action, parsed.valid(False), parsed.admissible) == ("fly", True, False)
    assert not project("<action>go</action>", name, ["go"]).valid(False)
    assert project("reason</think><action>go</action>", name, ["go"], think_in_prompt=True).valid(False)


class Told:
    """Answers as told and keeps what it was shown."""

    def __init__(self, answers):
        self.answers, self.states = iter(answers), []

    async def act(self, state):
        self.states.append(state)
        return next(self.answers)


@pytest.mark.parametrize(("template", "penalties"), [("verl_agent", [0.1, 0.0]), ("default", [0.1, 0.1])])
def test_penalties_of_an_episode(template, penalties):
    s = AgentSettings.from_mappings({"name": "webshop_like", "prompt_template": template, "max_turns": 3})
    pool = pool_of(s)
    answers = ["buy", "<think>a</think><action>search[mug]</action>", "<think>a</think><action>click[no such button]</action>"]
    try:
        episode, policy = asyncio.run(EpisodeRunner(s, pool).run(lambda: Told(answers), seed=0))
    finally:
        pool.close()
    found = [turn.penalty for turn in episode.turns]
    assert found == [penalties[0], 0.0, penalties[1]]
    prompt = PromptBuilder(**s.prompts).messages("t", policy.states[0].observation, forms=policy.states[0].forms)[-1]["content"]
    assert "search[<your query>]" in prompt and ("'click[search]'," in prompt) == (template == "verl_agent")


def test_search_needs_no_thought_and_one_action():
    assert project("<answer> Rome </answer>", "search").action == "<answer>Rome</answer>"
    assert project("<answer>Rome</answer>", "search").valid(False)
    assert not project("<search>a</search><answer>b</answer>", "search").valid(False)


@pytest.mark.parametrize("tag", ["<search>", "<answer>", "<action>", "</action>", "<think>"])
def test_many_tags_cost_linear_time(tag):
    import time

    for name in KINDS:
        started = time.process_time()
        project(tag * 125_000, name)
        assert time.process_time() - started < 1.0, name
