# SPDX-License-Identifier: Apache-2.0
"""Whether a chat template and a tokenizer fit the settings, and the answer's text without the token that ends it.

Training, data and evaluation share these functions: the same text is the same action, whatever a server leaves in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from verl_entropy.agent.settings import PATH, AgentSettings
from verl_entropy.config.settings import ConfigError


def answer_tags(s: AgentSettings) -> set[str]:
    """The tags of an answer, opening and closing."""
    return {f"<{slash}{tag}>" for slash in ("", "/") for tag in (s.think_tag, *s.answer_tags)}


def end_texts(tokenizer: Any, s: AgentSettings) -> tuple[str, ...]:
    """Special tokens that are no tag of the answer: what may end it."""
    return tuple(sorted(set(tokenizer.all_special_tokens) - answer_tags(s), key=len, reverse=True))


def without_end(text: str, ends: Iterable[str]) -> str:
    """The text without special tokens at its end, which a server leaves there where the tags are special tokens."""
    ends = tuple(end for end in ends if end)
    last, found = len(text.rstrip()), False  # a position, not a copy each: a text may end with thousands of them
    while (end := next((end for end in ends if text.endswith(end, 0, last)), None)) is not None:
        last, found = last - len(end), True
        while last and text[last - 1].isspace():
            last -= 1
    return text[:last] if found else text


def check_template(tokenizer: Any, s: AgentSettings, tokenize: Callable[[list[dict[str, str]]], list[int]]) -> None:
    """ConfigError, with the fix, where a rendered prompt or the tokenizer contradicts the settings.

    Compared are the end token, the system role and whether the prompt's tail opens the thought.
    """
    if tokenizer.eos_token_id is None and not s.stop_at_action:
        raise ConfigError(
            "tokenizer: it has no eos_token, so that no answer can end. Set eos_token in its tokenizer_config.json to the token "
            "with which the chat template ends a message."
        )
    system = [{"role": "system", "content": s.system_prompt}] if s.system_prompt else []
    try:
        ids = tokenize([*system, {"role": "user", "content": "x"}])
    except Exception as error:  # jinja2's own classes, and whatever a template raises
        if not system:
            raise ConfigError(
                f"chat template: it cannot render a user message ({str(error)[:200]}). Use an instruct model's."
            ) from error
        raise ConfigError(
            f"{PATH}.system_prompt={s.system_prompt[:40]!r}: the chat template refuses it ({str(error)[:200]}). "
            f"Set {PATH}.system_prompt='' and put the text into {PATH}.prompt_template."
        ) from error
    text = tokenizer.decode(list(ids), skip_special_tokens=False).lower()
    opened = text.rfind(f"<{s.think_tag}>".lower()) > text.rfind(f"</{s.think_tag}>".lower())
    if opened and not s.think_in_prompt:
        raise ConfigError(
            f"{PATH}.think_in_prompt=False: the chat template itself opens <{s.think_tag}> (a prompt ends with {text[-40:]!r}), so "
            f"that every right answer would be invalid. Set {PATH}.think_in_prompt=True."
        )
    if s.think_in_prompt and not opened:
        raise ConfigError(
            f"{PATH}.think_in_prompt=True: the chat template does not open <{s.think_tag}> (a prompt ends with {text[-40:]!r}). "
            f"Set {PATH}.think_in_prompt=False."
        )
