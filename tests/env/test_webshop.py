# SPDX-License-Identifier: Apache-2.0
"""The WebShop adapter against a stand-in for ``web_agent_site`` (the real one needs its product data): protocol and messages."""

import random
import sys
import types

import pytest

from verl_entropy.envs import make
from verl_entropy.envs.simulators import webshop

GOALS = 1600


MADE = []


class Server:
    def __init__(self):
        self.goals = [{"instruction_text": f"goal {i} below {random.random():.6f}", "category": "toys"} for i in range(GOALS)]
        self.user_sessions = {}


class TextEnv:
    """WebShop's calls: reset(session) -> (text, None), step -> four values, available actions, a shared server."""

    def __init__(self, observation_mode="html", server=None, session_prefix=None, **kwargs):
        self.server, self.session_prefix = server or Server(), session_prefix
        self.kwargs = kwargs
        MADE.append(self)

    def reset(self, session=None):
        self.session = f"{self.session_prefix}{session}"
        assert self.session not in self.server.user_sessions, "a session is used twice"
        self.server.user_sessions[self.session] = self.server.goals[session]
        self.page = "search"
        return self.observation, None

    @property
    def observation(self):
        return f"page {self.page} {self.server.user_sessions[self.session]['instruction_text']}"

    def get_available_actions(self):
        clicks = {"search": ["search"], "results": ["back to search", "b01"], "b01": ["buy now"]}.get(self.page, [])
        return {"has_search_bar": self.page == "search", "clickables": clicks}

    def step(self, action):
        assert action.startswith(("search[", "click[")), action
        argument = action.partition("[")[2][:-1]
        self.page = "results" if action.startswith("search") else argument
        done = argument == "buy now"
        return self.observation, (0.6 if "half" in self.searched else 1.0) if done else 0.0, done, None

    searched = ""


@pytest.fixture
def installed(monkeypatch):
    site = types.ModuleType("site")
    site.WebAgentTextEnv = TextEnv
    for name in ("web_agent_site", "web_agent_site.envs"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "web_agent_site.envs.web_agent_text_env", site)
    monkeypatch.setattr(webshop, "_servers", {})
    MADE.clear()
    return site


def test_missing_package_says_what_to_install():
    with pytest.raises(ValueError, match=r"web_agent_site.*princeton-nlp/WebShop.*webshop_like"):
        make("webshop")


def test_missing_data_says_what_to_install(installed, monkeypatch):
    def fail(self, **kwargs):
        raise FileNotFoundError(2, "No such file", "items_shuffle_1000.json")

    monkeypatch.setattr(TextEnv, "__init__", fail)
    with pytest.raises(ValueError, match=r"data does not load.*items_shuffle_1000.*setup"):
        make("webshop")


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"num_products": 5}, "num_products=5"), ({"file_path": "/no/file"}, "/no/file"), ({"reward": "x"}, "reward='x'")],
)
def test_wrong_settings_are_named(installed, settings, named):
    with pytest.raises(ValueError, match=named):
        make("webshop", **settings)


def test_search_click_buy_with_task_score(installed):
    env = make("webshop", split="test")
    _, info = env.reset(seed=3, options={"split": "test", "task": 7})
    assert info["task"].startswith("goal 7 ") and "admissible_actions" not in info
    assert info["action_forms"] == ["search[<your query>]"]
    before, *_ = env.step("click[buy now]")
    assert before.startswith("page search")  # not a button here
    *_, info = env.step("search[<r>]")
    assert info["admissible_actions"] == ["click[back to search]", "click[b01]"]
    assert env.step("search[again]")[0].startswith("page results")
    env.step("click[B01]")
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert (reward, terminated, info["won"], info["score"]) == (10.0, True, True, 1.0)


def test_a_partial_match_is_no_success(installed, monkeypatch):
    monkeypatch.setattr(TextEnv, "searched", "half")
    for kind, paid in (("success", 0.0), ("score", 0.6)):
        env = make("webshop", reward=kind)
        env.reset(seed=0)
        for action in ("search[x]", "click[b01]", "click[buy now]"):
            _, reward, *_, info = env.step(action)
        assert (reward, info["won"], info["score"]) == (paid, False, 0.6)


def test_environments_share_a_server_but_no_session(installed):
    a, b = make("webshop"), make("webshop")
    row = {"seed": 1, "options": {"split": "train", "task": 5}}
    assert a.reset(**row)[0] == b.reset(**row)[0] == a.reset(**row)[0]
    assert a._shop.server is b._shop.server and len(MADE) == 2
    assert len(a._shop.server.user_sessions) == 2  # an old one is forgotten at the next reset
    a.close()
    b.close()
    assert not a._shop.server.user_sessions


def test_goals_do_not_depend_on_the_state_of_the_global_generator(installed, monkeypatch):
    first = make("webshop")._shop.server.goals
    monkeypatch.setattr(webshop, "_servers", {})
    random.seed(99)
    expected = random.Random(99).random()
    assert make("webshop")._shop.server.goals == first
    assert random.random() == expected  # and the user's own sequence goes on


def test_splits_are_webshops(installed):
    env = make("webshop")
    assert {s: (env._range(s)[0], len(env._range(s))) for s in env.SPLITS} == {
        "train": (1500, 100),
        "dev": (500, 1000),
        "test": (0, 500),
    }
    rows = webshop.WebShopEnv.episodes("train", count=4)
    assert all(env.reset(seed=r["seed"], options=r["options"])[1]["task"] == r["prompt"] for r in rows)


def test_verl_agents_split(installed):
    env = make("webshop", goals="verl_agent", human_goals=False)
    assert {split: (env._range(split)[0], len(env._range(split))) for split in ("train", "test")} == {
        "train": (500, 1100),
        "test": (0, 500),
    }
    assert MADE[0].kwargs["human_goals"] is False
    with pytest.raises(ValueError, match=r"split='dev' is empty.*goals=webshop"):
        env.reset(seed=0, options={"split": "dev"})
    with pytest.raises(ValueError, match="goals='x'"):
        make("webshop", goals="x")
