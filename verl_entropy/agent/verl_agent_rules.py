# SPDX-License-Identifier: Apache-2.0
"""``data.env.prompt_template=verl_agent``: verl-agent's prompts and its rules for an answer, where a paper's setting demands them.

One setting: the texts, the first turn without a history, the forms of the lists, and which answers are valid. The texts are
verl-agent's own: they are read, and not run, from a checkout of it, whose folder ``$VERL_AGENT_HOME`` names. verl-agent is lenient:
an action that is not admissible is valid and not penalised, the thought may stand anywhere, the first tags count, and search needs no
thought. What is not an action is sent to the environment by its last characters.
Source: github.com/langfengQ/verl-agent, commit 796ed31 (``agent_system/environments``), compared with it in the tests.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from verl_entropy.agent.parsing import ParsedAction, find_action

KINDS = {"alfworld": "alfworld", "webshop": "webshop", "webshop_like": "webshop", "search": "search", "appworld": "appworld"}
"""Environments of this package that verl-agent has a prompt for."""
ANSWER: dict[str, Any] = {
    "think_tag": "think",
    "action_tag": "action",
    "action_tags": [],
    "action_format": "text",
    "require_admissible": False,
    "strict_format": False,
    "invalid_action": "raw",
}
"""Settings that follow from verl-agent's rules (``require_think`` then says only whether an expert's turns have a thought) ..."""
OF_KIND: dict[str, dict[str, Any]] = {
    "search": {"action_tags": ["search", "answer"]},
    "appworld": {"action_tag": "code"},
}
"""... and where an environment differs."""
TAIL = {"alfworld": 30, "webshop": 20, "appworld": 100}
"""Characters of an answer without an action that the environment gets: its last ones."""
HOME, SHARED = "VERL_AGENT_HOME", "VERL_ENTROPY_CACHE"
"""Variables with the folder of a checkout of verl-agent, on every node; without the first, verl-agent/ in the second."""
REPOSITORY, COMMIT = "https://github.com/langfengQ/verl-agent", "796ed31"
SUPERVISOR = ("first_name", "last_name", "email", "phone_number")
WEBSHOP_CHARS, APPWORLD_CHARS = 13_000, 10_000
"""A longer WebShop prompt loses its history; of AppWorld's history the last characters stay."""
_CHINESE = re.compile("[\u4e00-\u9fff]")
_SEARCH_TAGS = {
    tag: (re.compile(f"<{tag}>", re.IGNORECASE), re.compile(f"</{tag}>", re.IGNORECASE)) for tag in ("search", "answer")
}


class Parts(Protocol):
    """What a prompt is made of (``prompts.PromptParts``)."""

    @property
    def task(self) -> str: ...
    @property
    def observation(self) -> str: ...
    @property
    def history(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def admissible(self) -> tuple[str, ...]: ...
    @property
    def forms(self) -> tuple[str, ...]: ...
    @property
    def details(self) -> Mapping[str, Any]: ...
    @property
    def step(self) -> int: ...


def settings_of(name: str) -> dict[str, Any]:
    """The settings of ``data.env`` that verl-agent's rules fix for this environment; ValueError for one it has no prompt for."""
    if name not in KINDS:
        raise ValueError(f"verl-agent has no prompt for the environment {name!r}, only for {', '.join(KINDS)}")
    return {**ANSWER, **OF_KIND.get(KINDS[name], {})}


def render(name: str, parts: Parts) -> str:
    """The text of verl-agent's prompt for this turn."""
    kind, history = KINDS[name], parts.history
    text = _fill(kind, parts, history)
    return _fill(kind, parts, ()) if kind == "webshop" and history and len(text) > WEBSHOP_CHARS else text


def project(text: str, name: str, admissible: Sequence[str] = (), think_in_prompt: bool = False) -> ParsedAction:
    """The action of an answer and whether verl-agent calls it valid; ``action`` is what the environment gets.

    ``think_in_prompt``: the chat template has opened the thought. Linear in the length of the answer.
    """
    said, kind = ("<think>" if think_in_prompt else "") + text, KINDS[name]
    if kind == "search":
        action, error = _searched(text)
    else:
        action, error = _tagged(
            text if kind == "appworld" else text.lower(), "code" if kind == "appworld" else "action", TAIL[kind]
        )
        action = action if kind == "appworld" else action.strip() if not error else action
        if not error and ("<think>" not in said or "</think>" not in said):
            error = "no thought"
        elif not error and kind != "appworld" and _CHINESE.search(text):
            error = "Chinese characters"
    admitted = not admissible or find_action(action, admissible) is not None
    return ParsedAction(action, not error, said.partition("<think>")[2].partition("</think>")[0].strip(), error, admitted)


# -- private


def _fill(kind: str, parts: Parts, history: tuple[tuple[str, str], ...]) -> str:
    values: dict[str, Any] = {
        "task_description": parts.task,
        "current_observation": parts.observation,
        "step_count": parts.step - 1,
        "current_step": parts.step,
        "history_length": len(history),
    }
    first = parts.step - len(history)
    if kind == "alfworld":
        values["admissible_actions"] = "\n ".join(f"'{action}'" for action in parts.admissible)
    if kind == "webshop":
        values["current_observation"] = _without_task(parts.observation, parts.task)
        history = tuple((_without_task(seen, parts.task), done) for seen, done in history)
        # WebShop's search page has a button of the name "search", which the adapters leave out: it does nothing.
        button = ["click[search]"] if any(form.startswith("search[") for form in parts.forms) else []
        values["available_actions"] = "\n".join(f"'{action}'," for action in (*parts.forms, *button, *parts.admissible))
    if kind in ("alfworld", "webshop"):
        pairs = enumerate(history, first)
        values["action_history"] = "\n".join(f"[Observation {i}: '{seen}', Action {i}: '{done}']" for i, (seen, done) in pairs)
    else:  # these show what an action brought, so that the present observation is the end of the history
        results = [*(seen for seen, _ in history[1:]), parts.observation]
        pairs = [(i, done, result) for i, ((_, done), result) in enumerate(zip(history, results, strict=False), first)]
        values["memory_context"] = "\n".join(f"Step {i}:{done} {result}\n" for i, done, result in pairs)
        code = "".join(f"\nCode {i}: \n{done}\n\nResult {i}: \n{result}\n" for i, done, result in pairs)
        values["action_history"] = ("... " + code[-APPWORLD_CHARS:] if len(code) > APPWORLD_CHARS else code).strip()
    if kind == "appworld":
        values |= {f"supervisor_{key}": parts.details["supervisor"][key] for key in SUPERVISOR}
    first_text, later_text = templates(kind)
    return (later_text if history else first_text).format(**values)


def home() -> Path | None:
    """Where the checkout of verl-agent is, or would be; None: no variable says it."""
    if named := os.environ.get(HOME):
        return Path(named).expanduser()
    shared = os.environ.get(SHARED)
    return Path(shared).expanduser() / "verl-agent" if shared else None


@functools.cache
def templates(kind: str) -> tuple[str, str]:
    """verl-agent's texts of the first and of later turns; ValueError where its checkout or a text is missing."""
    folder = home()
    path = Path(folder or "", "agent_system", "environments", "prompts", f"{kind}.py")
    if folder is None or not path.is_file():
        raise ValueError(
            f"{f'no file {path}' if folder else f'{HOME} is not set'}, and the texts are read from a checkout of verl-agent. Run git clone "
            f"{REPOSITORY} on every node (or a launcher with --prepare) and set {HOME} to its folder"
        )
    texts = {
        target.id: node.value.value
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    names = (f"{kind.upper()}_TEMPLATE_NO_HIS", f"{kind.upper()}_TEMPLATE")
    if missing := [name for name in names if not isinstance(texts.get(name), str)]:
        raise ValueError(f"{path} has no text {', '.join(missing)}: tested is verl-agent at {COMMIT}")
    return str(texts[names[0]]), str(texts[names[1]])


def _without_task(page: str, task: str) -> str:
    """WebShop's page behind the instruction, each part in quotes; the page itself where the instruction is none of its parts."""
    parts = page.split(" [SEP] ")
    return " [SEP] ".join(f"'{part}'" for part in parts[parts.index(task) + 1 :]) if task in parts else page


def _tagged(text: str, tag: str, tail: int) -> tuple[str, str]:
    """What stands between the first opening and the first closing tag, in whatever order; else the text's end, and what is wrong."""
    start, end = text.find(f"<{tag}>"), text.find(f"</{tag}>")
    if start < 0 or end < 0:
        return text[-tail:], "no action block"
    return text[start + len(tag) + 2 : end], ""


def _searched(text: str) -> tuple[str, str]:
    """The first search, else the first answer, of what stands before the first closing tag."""
    end = next((f"</{tag}>" for tag in _SEARCH_TAGS if f"</{tag}>" in text), None)
    kept = text[: text.index(end) + len(end)] if end else text
    action, error = "", "no action block"
    for tag, (opening, closing) in _SEARCH_TAGS.items():
        first = opening.search(kept)
        last = closing.search(kept, first.end()) if first else None
        if first and last:
            action, error = f"<{tag}>{kept[first.end() : last.start()].strip()}</{tag}>", ""
            break
    counts = [len(opening.findall(text)) for opening, _ in _SEARCH_TAGS.values()]
    return action, error or ("several action blocks" if sum(counts) > 1 else "")
