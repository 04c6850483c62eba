# SPDX-License-Identifier: Apache-2.0
"""From an environment's state to chat messages, and down to the prompt length by whole parts.

Every step-wise prompt stands alone: the task, the last turns, the step's number, the present observation, the
admissible actions and how to answer. A template is "default", "compact" or "brief" (a few lower-case words, punctuation
set apart, no instructions: for tiny models with a word-level vocabulary), "verl_agent" (the prompts of verl-agent, see
``verl_agent_rules``) or a text with these places, given in the setting or in a file (forms of actions stand at the end of
``{admissible}``):

    {task} {step} {history} {observation} {admissible} {instructions}
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from verl_entropy.agent import verl_agent_rules
from verl_entropy.config.settings import ConfigError

logger = logging.getLogger(__name__)

Message = dict[str, str]
Tokenize = Callable[[list[Message]], list[int]]

_PLACES = re.compile(r"\{(task|step|history|observation|admissible|instructions)\}")
CUT_MARK = "..."
LONG_WORD = 60
"""Characters of a text without a space that is cut inside: no ordinary word is as long."""
SHORT = ("compact", "brief")
"""Templates of a few lower-case words; "brief" leaves the observations out of the history."""


class PromptTooLong(ValueError):
    """The prompt does not fit although everything that may be cut is cut."""


@dataclass(frozen=True)
class PromptParts:
    """What a prompt is made of. ``history`` holds (observation, action) pairs, the oldest first."""

    task: str
    observation: str
    history: tuple[tuple[str, str], ...] = ()
    admissible: tuple[str, ...] = ()
    step: int = 1
    forms: tuple[str, ...] = ()
    """Forms of actions that are not listed one by one; shown, never compared with an answer."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """The environment's ``info``."""


@dataclass(frozen=True)
class FittedPrompt:
    """Messages that fit, their token ids, and what was cut."""

    messages: list[Message]
    token_ids: list[int]
    dropped_turns: int = 0
    dropped_actions: int = 0
    dropped_words: int = 0


class PromptBuilder:
    """Builds the messages of a turn."""

    def __init__(
        self,
        history_length: int = 2,
        show_admissible: bool = True,
        template: str = "default",
        action_format: str = "text",
        *,
        think_tag: str = "think",
        action_tag: str = "action",
        action_tags: Sequence[str] = (),
        require_think: bool = True,
        system_prompt: str = "",
        overlong: str = "truncate",
        environment: str = "",
    ):
        self.history_length, self.show_admissible, self.action_format = (
            history_length,
            show_admissible,
            action_format,
        )
        self._think, self._action, self._require_think = think_tag, action_tag, require_think
        self._action_tags, self._numbers = tuple(action_tags), action_format in ("number", "either")
        self._system_prompt, self._overlong = system_prompt, overlong
        self._template, self._environment = _load(template), environment
        self.truncated = 0
        """Prompts so far whose observation had to be truncated."""

    def messages(
        self,
        task: str,
        observation: str,
        history: Sequence[tuple[str, str]] = (),
        admissible: Sequence[str] = (),
        step: int = 1,
        forms: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """The chat messages of one turn: a user message, after the system prompt if there is one."""
        return self._render(self._parts(task, observation, history, admissible, step, forms, details))

    def fit(
        self,
        tokenize: Tokenize,
        max_prompt_tokens: int,
        task: str,
        observation: str,
        history: Sequence[tuple[str, str]] = (),
        admissible: Sequence[str] = (),
        step: int = 1,
        forms: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> FittedPrompt:
        """The messages, cut until ``tokenize(messages)`` has at most ``max_prompt_tokens``.

        Cut in this order: whole history entries, the oldest first; whole actions, then forms, from the end of the list;
        words from the end of the observation, and inside the first dropped one if that is no ordinary word (with
        ``overlong="error"`` never). PromptTooLong if that is not enough.
        """
        whole = self._parts(task, observation, history, admissible, step, forms, details)

        def attempt(parts: PromptParts) -> list[int] | None:
            ids = tokenize(self._render(parts))
            return ids if len(ids) <= max_prompt_tokens else None

        _, parts, ids = _largest(len(whole.history), lambda n: replace(whole, history=_last(whole.history, n)), attempt)
        bare, words, dropped_words = replace(whole, history=()), re.findall(r"\S+\s*", observation), 0
        if ids is None:
            _, parts, ids = _largest(len(bare.admissible), lambda n: replace(bare, admissible=bare.admissible[:n]), attempt)
        if ids is None and bare.forms:
            bare = replace(bare, admissible=())
            _, parts, ids = _largest(len(bare.forms), lambda n: replace(bare, forms=bare.forms[:n]), attempt)
        if ids is None and self._overlong == "truncate" and words:
            bare = replace(bare, admissible=(), forms=())
            # The compact form is for vocabularies of a few words, which need not know a mark.
            mark = "" if self._template in SHORT else f" {CUT_MARK}"
            kept, parts, ids = _largest(
                len(words) - 1,
                lambda n: replace(bare, observation="".join(words[:n]).rstrip() + mark),
                attempt,
            )
            dropped_words = len(words) - kept
            if kept == 0 or len(words[kept]) > LONG_WORD:  # Chinese, emoji, a hash: cut inside it
                start = "".join(words[:kept])
                _, parts, ids = _largest(
                    len(words[kept]) - 1, lambda n: replace(bare, observation=(start + words[kept][:n]).rstrip() + mark), attempt
                )
        if ids is None:
            raise PromptTooLong(self._too_long(max_prompt_tokens, len(tokenize(self._render(parts)))))
        if dropped_words:
            self._count_truncation(dropped_words, max_prompt_tokens)
        dropped_actions = len(whole.admissible) + len(whole.forms) - len(parts.admissible) - len(parts.forms)
        return FittedPrompt(self._render(parts), ids, len(whole.history) - len(parts.history), dropped_actions, dropped_words)

    def followup(self, observation: str, admissible: Sequence[str] = (), step: int = 1, forms: Sequence[str] = ()) -> Message:
        """The user message of a later turn in a growing chat: without task, history and instructions; ``forms``: new ones."""
        if self._template == "verl_agent":
            raise ConfigError(
                "data.env.prompt_template=verl_agent: each of its prompts stands alone, a chat has none. Set "
                "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env."
            )
        parts = self._parts("", observation, (), admissible, step, forms)
        if self._template in SHORT:
            return {"role": "user", "content": self._compact(parts)}
        blocks = [f"Step {step}. Observation:\n{observation}", *self._lists(parts)]
        return {"role": "user", "content": "\n\n".join(filter(None, blocks))}

    # -- private

    def _parts(self, task, observation, history, admissible, step, forms=(), details=None) -> PromptParts:
        if self.action_format == "number" and not admissible and step == 1:
            raise ConfigError(
                "data.env.action_format='number': the environment gives no info['admissible_actions'] to "
                "number. Set data.env.action_format=text or either."
            )
        recent = tuple(history)[-self.history_length :] if self.history_length else ()
        listed = tuple(admissible) if self.show_admissible else ()
        return PromptParts(task, observation, recent, listed, step, tuple(forms), details or {})

    def _render(self, parts: PromptParts) -> list[Message]:
        if self._template in SHORT:
            content = self._compact(parts)
        elif self._template == "default":
            content = self._default(parts)
        elif self._template == "verl_agent":
            content = verl_agent_rules.render(self._environment, parts)
        else:
            content = self._custom(parts)
        system = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
        return [*system, {"role": "user", "content": content}]

    def _default(self, parts: PromptParts) -> str:
        history = self._history(parts)
        whole = self.action_format == "whole"
        blocks = [
            f"You act in a text environment: every turn you read an observation and {'answer it' if whole else 'choose one action'}.",
            f"Task: {parts.task}" if parts.task else "",
            f"This is step {parts.step}." + (" Your latest turns, the oldest first:\n" + history if history else ""),
            f"Present observation:\n{parts.observation}",
            *self._lists(parts),
            self._instructions(parts),
        ]
        return "\n\n".join(filter(None, blocks))

    def _custom(self, parts: PromptParts) -> str:
        values = {
            "task": parts.task,
            "step": str(parts.step),
            "history": self._history(parts),
            "observation": parts.observation,
            "admissible": "\n".join(filter(None, (self._action_list(parts), _form_list(parts)))),
            "instructions": self._instructions(parts),
        }
        return _PLACES.sub(lambda place: values[place[1]], self._template)

    def _compact(self, parts: PromptParts) -> str:
        sentences = [f"goal : {_plain(parts.task)}"] if parts.task else []
        brief = self._template == "brief"
        sentences += [f"last : {_plain(d)}" if brief else f"last : {_plain(s)} -> {_plain(d)}" for s, d in parts.history]
        sentences.append(f"now : {_plain(parts.observation)}")
        if parts.admissible:
            actions = (f"{i} {_plain(a)}" if self._numbers else _plain(a) for i, a in enumerate(parts.admissible, 1))
            sentences.append("can : " + " , ".join(actions))
        if parts.forms and not brief:
            sentences.append("forms : " + " , ".join(map(_plain, parts.forms)))
        return " . ".join(sentences) + " ."

    def _history(self, parts: PromptParts) -> str:
        first = parts.step - len(parts.history)
        entries = enumerate(parts.history, first)
        return "\n".join(f"[step {i}] observation: {seen}\n[step {i}] action: {done}" for i, (seen, done) in entries)

    def _action_list(self, parts: PromptParts) -> str:
        return "\n".join(f"{i}. {a}" if self._numbers else f"- {a}" for i, a in enumerate(parts.admissible, 1))

    def _lists(self, parts: PromptParts) -> list[str]:
        """The blocks of admissible actions and of forms, where there are any."""
        actions, forms = self._action_list(parts), _form_list(parts)
        blocks = [
            f"Admissible actions:\n{actions}" if actions else "",
            f"Forms of {'further ' * bool(actions)}actions:\n{forms}" if forms else "",
        ]
        return [block for block in blocks if block]

    def _instructions(self, parts: PromptParts) -> str:
        answer = self._answer(bool(parts.admissible), bool(parts.forms))
        if not self._require_think:
            return f"Answer with {answer}"
        return f"Reason about the situation inside <{self._think}> </{self._think}>, then give {answer}"

    def _answer(self, has_list: bool, has_forms: bool) -> str:
        """How the action is to be written."""
        which = " from the list" if has_list else ""
        if has_forms:
            which += " or of these forms" if has_list else " of one of these forms"
        if self.action_format == "whole":
            return f"one action{which} and nothing else." if has_list else "your answer; all of it counts as your action."
        if self._action_tags:
            blocks = " or ".join(f"<{tag}> </{tag}>" for tag in self._action_tags)
            return f"one action{which}: exactly one block {blocks}."
        what = {
            "text": "one action",
            "number": "the number of one action",
            "either": "one action or its number",
        }
        return f"{what[self.action_format]}{which} inside <{self._action}> </{self._action}>."

    def _count_truncation(self, dropped_words: int, limit: int) -> None:
        self.truncated += 1
        # Powers of two: the first cases are seen, a run with thousands does not flood the log.
        if self.truncated & (self.truncated - 1) == 0:
            logger.warning(
                "prompt longer than rollout.prompt_length=%d without history and actions: %d words of the "
                "observation dropped (%d such prompts so far)", limit, dropped_words, self.truncated,
            )  # fmt: skip

    def _too_long(self, limit: int, length: int) -> str:
        cut = "cut to the shortest" if self._overlong == "truncate" else "without history and actions"
        fix = "" if self._overlong == "truncate" else " or data.env.overlong_prompt=truncate"
        return (
            f"actor_rollout_ref.rollout.prompt_length={limit}: this turn's prompt, {cut}, has {length} "
            f"tokens. Set data.max_prompt_length to at least {length}{fix}."
        )


def _load(template: str) -> str:
    if template in ("default", "verl_agent", *SHORT):
        return template
    text = template
    if "{observation}" not in template:
        path = Path(template).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"data.env.prompt_template={template!r}: not default, compact, brief or verl_agent, no such file, and no "
                "text with {observation}. Set data.env.prompt_template=default."
            )
        text = path.read_text(encoding="utf-8")
    if "{observation}" not in text:
        raise ConfigError(f"data.env.prompt_template={template!r}: the file must contain {{observation}}. Add it.")
    return text


def _largest(
    limit: int, make: Callable[[int], PromptParts], attempt: Callable[[PromptParts], list[int] | None]
) -> tuple[int, PromptParts, list[int] | None]:
    """The largest n in [0, limit] whose parts fit, the parts and their ids; n = 0, no ids if none fits."""
    ids = attempt(make(limit))
    if ids is not None or limit == 0:
        return limit, make(limit), ids
    low, high, best, best_ids = 0, limit - 1, 0, None
    while low <= high:
        middle = (low + high) // 2
        ids = attempt(make(middle))
        if ids is None:
            high = middle - 1
        else:
            low, best, best_ids = middle + 1, middle, ids
    return best, make(best), best_ids


def _form_list(parts: PromptParts) -> str:
    return "\n".join(f"- {form}" for form in parts.forms)


def _last(items: tuple, count: int) -> tuple:
    return items[len(items) - count :]


def _plain(text: str) -> str:
    """Lower case, single spaces, punctuation set apart from the words."""
    return " ".join(re.sub(r"([^\w\s])", r" \1 ", text.lower()).split())
