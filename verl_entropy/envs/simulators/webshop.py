# SPDX-License-Identifier: Apache-2.0
"""WebShop as the user has installed it (its package ``web_agent_site``); nothing of it is shipped or downloaded here."""

from __future__ import annotations

import json
import random
import re
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from verl_entropy.batch.foreign import read_bool, read_number
from verl_entropy.envs.tasks import Answer, TaskEnv, choose, need
from verl_entropy.envs.webshop_rules import REWARDS, SEARCH_FORM, is_perfect, parse_action, reward_of

INSTALL = (
    "follow the setup of github.com/princeton-nlp/WebShop (setup.sh -d small or -d all: it downloads the product data and "
    "builds the search index with Java 11), then put that folder on PYTHONPATH. "
    "Without it use environment 'webshop_like', which needs no data"
)
HELD_OUT = {"webshop": {"test": (0, 500), "dev": (500, 1500)}, "verl_agent": {"test": (0, 500), "dev": (500, 500)}}
"""WebShop's own split of its shuffled goals, and verl-agent's, which has no `dev`; the rest is `train`."""
SIZES = (100, 1000, 100_000)
"""Product counts that WebShop has a search index for, besides all."""

_loading = threading.RLock()
_servers: dict[str, tuple[Any, threading.Lock]] = {}


class WebShopEnv(TaskEnv):
    """WebShop's text environment: ``search[words]``, ``click[button]``, and the task score at ``click[buy now]``.

    ``task`` of ``reset`` is the goal's place in its split. Environments of a process share one server (products and
    index are gigabytes), one call at a time; each has sessions of its own. ``info["score"]`` is WebShop's reward, ``won``
    that it is 1. ``num_products``: 100, 1000, 100000 or None for all. ``file_path``: the product file, None for WebShop's
    default. ``goals``: how the goals are split, as WebShop does (train from goal 1500 on) or as verl-agent (from 500 on, with
    ``human_goals`` False). ``reward``: ``success`` pays 10 for a score of 1, else 0; ``score`` pays the score.
    """

    SPLITS = ("train", "dev", "test")

    def __init__(
        self,
        split: str = "train",
        num_products: int | None = 1000,
        human_goals: bool = True,
        goals: str = "webshop",
        file_path: str | None = None,
        observation_mode: str = "text",
        max_turns: int = 15,
        reward: str = "success",
    ) -> None:
        super().__init__(split, max_turns)
        if num_products is not None and num_products not in SIZES:
            sizes = ", ".join(map(str, SIZES))
            raise ValueError(f"num_products={num_products!r}: WebShop has an index for {sizes}, and null for all")
        self._held_out = HELD_OUT[choose("goals", goals, tuple(HELD_OUT))]
        choose("observation_mode", observation_mode, ("text", "text_rich"))
        self.reward = choose("reward", reward, REWARDS)
        settings = {"num_products": num_products, "human_goals": read_bool(human_goals, "human_goals")}
        if file_path is not None:
            if not Path(file_path).expanduser().is_file():
                raise ValueError(f"file_path={file_path!r}: no such file; give WebShop's product file, or leave it out")
            settings["file_path"] = str(Path(file_path).expanduser())
        self._shop, self._lock = _open(settings, observation_mode, f"env{id(self)}x")
        self._sessions = 0
        self._goal: dict[str, Any] = {}

    def close(self) -> None:
        """Forget this environment's sessions; the shared server stays for the others."""
        super().close()
        with self._lock:
            self._forget()

    # -- the adapter's part of TaskEnv

    def _range(self, split: str) -> range:
        total = len(self._shop.server.goals)
        first, last = self._held_out.get(split, (self._held_out["dev"][1], total))
        return range(min(first, total), min(last, total))

    def _count(self, split: str) -> int:
        count = len(self._range(split))
        if not count:
            total = len(self._shop.server.goals)
            more = f"WebShop loaded {total} goals only; use more products (num_products), or goals=webshop for a dev split"
            raise ValueError(f"split={split!r} is empty: {more}")
        return count

    def _begin(self, split: str, number: int) -> str:
        goal = self._range(split)[number]
        with self._lock:
            self._forget()
            # WebShop keeps a session's goal under its name: a new name for every episode, the goal by number.
            self._sessions += 1
            self._shop.session_prefix = f"env{id(self)}x{self._sessions}x"
            observation = self._shop.reset(session=goal)[0]
            self._goal = self._shop.server.goals[goal]
            self._read_page()
        self._score, self._won = 0.0, False
        return observation

    def _act(self, action: str) -> Answer:
        verb, argument = parse_action(action)
        known = self._can_search if verb == "search" else argument.lower() in self._buttons
        with self._lock:
            # WebShop reads a search of "<r>" and the like as a request for random or listed products: not for agents.
            plain = argument.lower() if verb == "click" else re.sub(r"[<>\[\]]", " ", argument).strip()
            done, observation = False, self._shop.observation
            if known and plain:
                observation, score, done, _ = self._shop.step(f"{verb}[{plain}]")
            self._read_page()
        if not done:
            return observation, 0.0, False
        self._score = read_number(score, "webshop: reward")
        self._won = is_perfect(self._score)
        return observation, reward_of(self._score, self.reward), True

    def _details(self) -> dict[str, Any]:
        details = {
            "won": self._won,
            "score": self._score,
            "task": str(self._goal["instruction_text"]),
            "task_type": str(self._goal.get("category") or "shopping"),
        }
        if self._can_search:
            return {**details, "action_forms": [SEARCH_FORM]}
        return {**details, "admissible_actions": [f"click[{button}]" for button in self._buttons]}

    def _row(self, split: str, number: int) -> dict[str, Any]:
        goal = self._shop.server.goals[self._range(split)[number]]
        kind = str(goal.get("category") or "shopping")
        options = {"split": split, "task": number}
        return {"seed": number, "options": options, "task_type": kind, "prompt": str(goal["instruction_text"])}

    # -- private

    def _read_page(self) -> None:
        available = self._shop.get_available_actions()
        self._can_search = read_bool(available["has_search_bar"], "webshop: has_search_bar")
        self._buttons = [button for button in available["clickables"] if button != "search"]

    def _forget(self) -> None:
        mine = f"env{id(self)}x"
        for session in [name for name in self._shop.server.user_sessions if str(name).startswith(mine)]:
            del self._shop.server.user_sessions[session]


def _site() -> ModuleType:
    """WebShop's module of text environments."""
    return need("web_agent_site.envs.web_agent_text_env", "webshop", INSTALL)


def _open(settings: dict[str, Any], mode: str, prefix: str) -> tuple[Any, threading.Lock]:
    """A WebShop environment on the server of these settings, and the lock of that server."""
    key = json.dumps(settings, sort_keys=True)
    with _loading:
        maker = _site().WebAgentTextEnv
        server, lock = _servers.get(key, (None, threading.Lock()))
        # WebShop draws prices and price limits from the global generator: the same state, hence the same goals, everywhere.
        state = random.getstate()
        random.seed(0)
        try:
            with lock:
                shop = maker(observation_mode=mode, server=server, session_prefix=prefix, **settings)
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"environment 'webshop': its data does not load ({type(error).__name__}: {error}): {INSTALL}"
            ) from error
        finally:
            random.setstate(state)
        _servers[key] = (shop.server, lock)
    return shop, lock
