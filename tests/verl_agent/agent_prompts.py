# SPDX-License-Identifier: Apache-2.0
"""verl-agent's own managers and projections beside ``prompt_template=verl_agent``, on played episodes and on drawn answers."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from types import SimpleNamespace

import agent_system
from agent_system.environments import env_manager as theirs

from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.agent.verl_agent_rules import project

PACKAGES = Path(agent_system.__path__[0]) / "environments" / "env_package"
TASK = {"alfworld": "put a mug in desk 1.", "webshop": "Find me a red mug, and price lower than 20.00 dollars"}
OWNER = {"first_name": "Ann", "last_name": "Lee", "email": "ann@x.org", "phone_number": "123"}
rng = random.Random(0)


def projection(name: str):
    spec = importlib.util.spec_from_file_location(f"{name}_projection", PACKAGES / name / "projection.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)[f"{name}_projection"]


def answers(name: str, count: int) -> list[str]:
    """Answers out of the pieces that the rules look at, in any order."""
    tags = {"search": ["search", "answer"], "appworld": ["code"]}.get(name, ["action"])
    pieces = [f"<{slash}{tag}>" for slash in ("", "/") for tag in ("think", *tags)]
    pieces += [piece.upper() for piece in pieces] + [
        " go to Desk 1 ",
        "click[Buy Now]",
        "x\ny",
        "\u4e2d",
        "",
        "İ",
        " " * 40,
        "{}",
    ]
    return ["".join(rng.choices(pieces, k=rng.randrange(1, 9))) for _ in range(count)]


class World:
    """The calls of verl-agent's vector environments, with texts drawn at random."""

    def __init__(self, name: str, long: bool):
        self.name, self.long, self.turn = name, long, 0

    def page(self) -> str:
        words = " ".join(rng.choices(["a mug", "desk {1}", "it's", "B01 [SEP] $3", "\n", "中"], k=2000 if self.long else 8))
        if self.name == "webshop":
            head = "WebShop [SEP] Instruction: [SEP] " + TASK["webshop"] + " [SEP] "
            return head + words if self.turn == 0 or rng.random() < 0.7 else words
        return f"You are here. Your task is to: {TASK['alfworld']}" if self.name == "alfworld" and not self.turn else words

    def offer(self) -> dict:
        self.commands = ["go to desk 1", "look", "help", "take mug 1 from 'x'"]
        search = rng.random() < 0.5
        self.available = {"has_search_bar": search, "clickables": ["search"] if search else ["back to search", "b01", "red's"]}
        self.seen = "What is it?" if self.name == "search" and not self.turn else self.page()
        return {"available_actions": self.available, "supervisor": OWNER, "won": False}

    @property
    def get_admissible_commands(self):
        return [self.commands]

    def reset(self, **_):
        info = self.offer()
        return ([self.seen], None, [info]) if self.name == "alfworld" else ([self.seen], [info])

    def step(self, actions):
        self.turn += 1
        self.sent = actions[0]
        info = self.offer()
        out = ([self.seen], [0.0], [False], [info])
        return ([self.seen], None, *out[1:]) if self.name == "alfworld" else out


def ours(name: str, world: World):
    """(admissible, forms) as this package's adapters give them."""
    if name == "alfworld":
        return [c for c in world.commands if c != "help"], []
    if name == "webshop":
        search = world.available["has_search_bar"]
        return [f"click[{b}]" for b in world.available["clickables"] if b != "search"], ["search[<your query>]"] * search
    return [], []


def play(name: str, history_length: int, long: bool) -> tuple[int, list[str]]:
    """An episode through verl-agent's manager; differences of prompts, actions and validity."""
    settings = AgentSettings.from_mappings({"name": name, "prompt_template": "verl_agent", "history_length": history_length})
    builder = PromptBuilder(**settings.prompts)
    world, config = World(name, long), SimpleNamespace(env=SimpleNamespace(history_length=history_length))
    kinds = {"alfworld": "AlfWorld", "webshop": "Webshop", "search": "Search", "appworld": "AppWorld"}
    actions = projection(name)
    manager = vars(theirs)[f"{kinds[name]}EnvironmentManager"](world, actions, config)
    prompt, infos = manager.reset({}), None
    prompt, infos = prompt
    task = TASK.get(name, manager.tasks[0])
    history, wrong, checked = [], [], 0
    for step in range(1, 8):
        admissible, forms = ours(name, world)
        said = builder.messages(task, world.seen, history, admissible, step, forms, {"supervisor": OWNER})
        checked += 1
        if said != [{"role": "user", "content": prompt["text"][0]}]:
            wrong.append(f"{name}, step {step}:\n{prompt['text'][0]!r}\n{said[0]['content']!r}")
        answer, before = answers(name, 1)[0], world.seen
        parsed = project(answer, name, admissible)
        prompt, _, _, infos = manager.step([answer])
        if (parsed.action, parsed.valid(settings.require_admissible)) != (world.sent, bool(infos[0]["is_action_valid"])):
            wrong.append(f"{name}: {answer!r} is {world.sent!r}, {infos[0]['is_action_valid']} and here {parsed}")
        history.append((before, parsed.action))
    return checked, wrong


def main() -> None:
    found = {}
    for name in ("alfworld", "webshop", "search", "appworld"):
        checked, wrong = 0, []
        for history_length in (1, 2, 4):
            for episode in range(12):
                count, bad = play(name, history_length, long=episode % 3 == 0)
                checked, wrong = checked + count, wrong + bad
        said = answers(name, 4000)
        pool = [[["go to desk 1"]] * len(said)] if name == "alfworld" else []
        results, valids = projection(name)(list(said), *pool)
        for text, action, valid in zip(said, results, valids, strict=True):
            parsed = project(text, name, ["go to desk 1"])
            if (parsed.action, parsed.valid(False)) != (action, bool(valid)):
                wrong.append(f"{name}: {text!r} is {action!r}, {valid} and here {parsed}")
        found[name] = {"prompts": checked, "answers": len(said), "valid": int(sum(valids)), "wrong": wrong[:3]}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
