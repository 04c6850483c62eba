# SPDX-License-Identifier: Apache-2.0
"""Settings of the agent loops: ``data.env.*`` in verl's configuration.

``data`` is one of the sections that verl hands on as it is, to the data set and to every agent loop, so
``data.env`` composes from the command line (``+data.env.name=household``), from a preset (no ``+``
afterwards) and from a YAML file alike. Several environments in one run: give each a name in
``rollout.agent.agent_loop_config_path`` with an ``env:`` mapping that is laid over ``data.env``, and choose
per row with the data set's column ``agent_name``::

    - name: kitchen
      _target_: verl_entropy.agent.stepwise.StepwiseAgentLoop
      env: {name: household, kwargs: {task_types: [heat]}}

A row of the data set chooses its episode by ``extra_info: {seed: 7, options: {...}}``, which go to ``reset``;
``options`` may also be JSON text, which rows of several environments in one file need (a column has one type).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_entropy.agent import verl_agent_rules
from verl_entropy.agent.parsing import MAX_ACTION_CHARS
from verl_entropy.config.settings import ConfigError, parse, setting

PATH = "data.env"
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class AgentSettings:
    """Every setting of ``stepwise_env`` and ``span_env``."""

    # environment
    name: str = setting("household", "environment: a name of verl_entropy.envs, or package.module:Class")
    kwargs: dict = setting({}, "arguments of its constructor")
    seed: int = setting(0, "added to the seed of every row", ge=0)
    max_turns: int = setting(50, "turns after which an episode is cut (ALFWorld's limit)", ge=1)
    success_key: str = setting("won", "key of info that says the goal is reached")

    # prompt
    history_length: int = setting(2, "last turns shown in a step-wise prompt (verl-agent's default)", ge=0)
    show_admissible: bool = setting(True, "list the admissible actions in the prompt")
    prompt_template: str = setting(
        "default",
        "default, compact, brief, verl_agent (its prompts and rules), the path of a template, or a text with {observation}",
    )
    system_prompt: str = setting("", "system message; empty: none")
    overlong_prompt: str = setting(
        "truncate",
        "a prompt that is too long without history and actions: truncate the observation by words, or error",
        choices=("truncate", "error"),
    )

    # answer
    think_tag: str = setting("think", "name of the tags around the thought")
    action_tag: str = setting("action", "name of the tags around the action")
    action_tags: list = setting(
        [],
        "names of tags, in place of action_tag: the action is one block of one of them, sent with its tags "
        "(Search-R1: [search, answer])",
    )
    require_think: bool = setting(True, "an answer without a thought before the action is invalid")
    think_in_prompt: bool = setting(False, "the chat template already opens the thought, so the answer only closes it")
    strict_format: bool = setting(False, "text outside the tags makes an answer invalid")
    action_format: str = setting(
        "text",
        "the action is written as text, as its number in the list, or either, inside its tags; whole: without tags, "
        "all that follows the thought is the action",
        choices=("text", "number", "either", "whole"),
    )
    max_action_chars: int = setting(
        MAX_ACTION_CHARS, "a longer tagged action is none (code needs more); whole has no limit but the response's", ge=1
    )
    require_admissible: bool = setting(True, "an action outside the admissible ones is invalid")
    invalid_action: str = setting(
        "raw",
        "what an invalid answer does: raw (the tagged action if there is one, else the answer's end, as "
        "verl-agent, and with action_format=whole all of it), noop (noop_action) or first (the first admissible action)",
        choices=("raw", "noop", "first"),
    )
    noop_action: str = setting("", "action of invalid_action=noop")
    max_tokens_per_turn: int | None = setting(None, "tokens of one answer; null: only rollout.response_length limits it", ge=1)
    stop_at_action: bool = setting(False, "stop sampling at a closing action tag, if each is one token")

    # reward
    invalid_action_penalty: float = setting(0.1, "subtracted for each invalid turn (verl-agent's default)", ge=0.0)
    penalty_in_score: bool = setting(True, "the score of an episode is its return minus its penalties, else its return")

    # workers
    num_envs: int | None = setting(
        None, "environments open at once in each agent-loop worker; null: what suits the environment, else 64", ge=1
    )
    isolation: str = setting(
        "auto",
        "run an environment in a thread, or in a process that can be killed; auto: what suits the environment, else thread",
        choices=("auto", "thread", "process"),
    )
    step_timeout_s: float = setting(60.0, "seconds for one step, then the environment counts as hung", gt=0.0)
    reset_timeout_s: float = setting(120.0, "seconds for building an environment, and for one reset", gt=0.0)
    episode_retries: int = setting(1, "times an episode starts afresh after its environment failed", ge=0)
    max_env_failures: int = setting(
        64, "failures in a row (or hung threads left behind) in one agent-loop worker that end the run", ge=1
    )
    on_env_failure: str = setting(
        "auto",
        "an episode whose environment keeps failing: drop it and train on the rest of its group, or raise "
        "(verl then marks the group as failed); auto: raise under algorithm.filter_groups, else drop",
        choices=("auto", "drop", "raise"),
    )

    def __post_init__(self) -> None:
        self._check_tags()
        self._check_forms()
        if self.invalid_action == "noop" and not self.noop_action.strip():
            raise ConfigError(f"{PATH}.noop_action='': {PATH}.invalid_action=noop needs an action. Set {PATH}.noop_action=look.")
        if self.action_format == "number" and not self.show_admissible:
            raise ConfigError(
                f"{PATH}.show_admissible=False: {PATH}.action_format=number needs the list. Set {PATH}.show_admissible=True."
            )
        if not self.name.strip():
            raise ConfigError(f"{PATH}.name='': must name an environment. Set {PATH}.name=household.")

        if self.prompt_template == "verl_agent":
            self._check_verl_agent()

    def _check_verl_agent(self) -> None:
        """Its rules are one setting: what belongs to them cannot be another."""
        for key, value in _verl_agent(self.name).items():
            if getattr(self, key) != value:
                raise ConfigError(
                    f"{PATH}.{key}={getattr(self, key)!r}: {PATH}.prompt_template=verl_agent has rules of its own, where it is "
                    f"{value!r}. Leave {PATH}.{key} out, or set {PATH}.prompt_template=default."
                )

    def _check_tags(self) -> None:
        for key in ("think_tag", "action_tag"):
            if not _TAG.fullmatch(getattr(self, key)):
                fix = key.removesuffix("_tag")
                raise ConfigError(
                    f"{PATH}.{key}={getattr(self, key)!r}: letters, digits, - and _ only, without < >. Set {PATH}.{key}={fix}."
                )
        if self.think_tag.lower() == self.action_tag.lower():
            raise ConfigError(f"{PATH}.think_tag={self.think_tag!r}: must differ from {PATH}.action_tag.")
        shown, names = f"{PATH}.action_tags={self.action_tags}", [str(tag).lower() for tag in self.action_tags]
        if not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in self.action_tags):
            raise ConfigError(
                f"{shown}: names of letters, digits, - and _, without < >. Set {PATH}.action_tags=[search,answer], or [] for one tag."
            )
        if len(set(names)) < len(names) or self.think_tag.lower() in names:
            raise ConfigError(
                f"{shown}: each name once, and none of them {PATH}.think_tag={self.think_tag!r}. Set {PATH}.action_tags=[search,answer]."
            )

    def _check_forms(self) -> None:
        """Settings of one form of the action that another form would ignore."""
        if self.action_tags and self.action_format != "text":
            raise ConfigError(
                f"{PATH}.action_format={self.action_format!r}: {PATH}.action_tags={self.action_tags} allows text only. "
                f"Set {PATH}.action_format=text, or {PATH}.action_tags=[]."
            )
        form = f"action_tags={self.action_tags}" if self.action_tags else f"action_format={self.action_format}"
        if self.answer_tags != (self.action_tag,) and self.action_tag != "action":
            raise ConfigError(
                f"{PATH}.action_tag={self.action_tag!r}: {PATH}.{form} does not use it. Set {PATH}.action_tag=action."
            )
        if self.stop_at_action and not self.answer_tags:
            raise ConfigError(
                f"{PATH}.stop_at_action=True: {PATH}.action_format=whole has no closing tag. Set {PATH}.stop_at_action=False."
            )

    @property
    def answer_tags(self) -> tuple[str, ...]:
        """The tags that may stand around an action; none if the whole answer is the action."""
        if self.action_format == "whole":
            return ()
        return tuple(self.action_tags) or (self.action_tag,)

    @classmethod
    def from_mappings(cls, *sections: Mapping[str, Any] | None) -> AgentSettings:
        """Settings from plain mappings, later ones laid over earlier ones (``kwargs`` key by key)."""
        merged: dict[str, Any] = {}
        for section in sections:
            if section is None:
                continue
            if not isinstance(section, Mapping):
                raise ConfigError(f"{PATH}={section!r}: expected a mapping. Set +{PATH}.name=household.")
            kwargs = {**(merged.get("kwargs") or {}), **(section.get("kwargs") or {})}
            merged.update(section)
            merged["kwargs"] = kwargs
        if merged.get("prompt_template") == "verl_agent":
            merged = {**_verl_agent(str(merged.get("name", "household"))), **merged}
        return parse(cls, merged, PATH)

    @property
    def prompts(self) -> dict[str, Any]:
        """Arguments of ``PromptBuilder``."""
        same = ("history_length", "show_admissible", "action_format", "think_tag", "action_tag", "require_think", "system_prompt")
        own = {"template": self.prompt_template, "action_tags": tuple(self.action_tags), "overlong": self.overlong_prompt}
        return {**{key: getattr(self, key) for key in same}, **own, "environment": self.name}

    @property
    def limits(self) -> dict[str, Any]:
        """Arguments of ``EnvPool`` that bound time and failures."""
        return {key: getattr(self, key) for key in ("step_timeout_s", "reset_timeout_s", "max_env_failures")}

    @property
    def pool_key(self) -> str:
        """Equal for settings that can share open environments."""
        shared = {"name": self.name, "kwargs": self.kwargs, "num_envs": self.num_envs, "isolation": self.isolation}
        return json.dumps({**shared, **self.limits}, sort_keys=True, default=repr)


def check_texts(s: AgentSettings) -> None:
    """ConfigError where the template's texts are not on this machine."""
    if s.prompt_template == "verl_agent":
        try:
            verl_agent_rules.templates(verl_agent_rules.KINDS[s.name])
        except ValueError as error:
            raise ConfigError(f"{PATH}.prompt_template=verl_agent: {error}, or set {PATH}.prompt_template=default.") from None


def _verl_agent(name: str) -> dict[str, Any]:
    try:
        return verl_agent_rules.settings_of(name)
    except ValueError as error:
        raise ConfigError(f"{PATH}.prompt_template=verl_agent: {error}. Set {PATH}.prompt_template=default.") from None
