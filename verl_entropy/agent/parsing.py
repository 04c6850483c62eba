# SPDX-License-Identifier: Apache-2.0
"""From the text of a response to an action, and back.

Format (verl-agent's): a thought in ``<think> </think>``, then one action in ``<action> </action>``. An answer
is well formed if each tag is there exactly once and in this order; text outside the tags is allowed unless
``strict``. A tag that is mentioned inside the thought counts as a second one: the answer is then ambiguous,
so it is not well formed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_ACTION_CHARS = 1000
"""A longer tagged action is no action: a command or a query fits in a few sentences."""

RAW_CHARS = 30
"""Characters of a response without an action that are executed: its end, as verl-agent does."""

_NUMBER = re.compile(r"([0-9]{1,6})[.)]?")


@dataclass(frozen=True)
class ParsedAction:
    """What a response says; ``action`` may be set although the format is wrong (no thought, say)."""

    action: str
    valid_format: bool
    thought: str = ""
    error: str = ""
    admissible: bool = True
    """The action is among the admissible ones, or the environment lists none."""

    def valid(self, require_admissible: bool = True) -> bool:
        """Well formed and, if asked for, admissible."""
        return self.valid_format and (self.admissible or not require_admissible)


def parse_response(
    text: str,
    admissible: Sequence[str] = (),
    *,
    think_tag: str = "think",
    action_tag: str = "action",
    require_think: bool = True,
    think_in_prompt: bool = False,
    strict: bool = False,
    action_format: str = "text",
) -> ParsedAction:
    """Read the thought and the action of a response; linear in its length, for any text.

    ``action_format``: "text", "number" (1-based place in ``admissible``) or "either". An action that equals
    an admissible one up to case and spaces comes back in the environment's spelling.
    """
    think = _Block.find(text, think_tag, opened=think_in_prompt)
    action = _Block.find(text, action_tag)
    if action.content is None:
        return ParsedAction("", False, think.content or "", _missing(action), not admissible)
    chosen, admitted, problem = _resolve(action.content, admissible, action_format)
    error = problem or _order_error(text, think, action, require_think, strict)
    return ParsedAction(chosen, not error, think.content or "", error, admitted)


def format_response(action: str, thought: str = "", *, think_tag: str = "think", action_tag: str = "action") -> str:
    """The well-formed response for an action, with single spaces around every tag (word-level tokenizers)."""
    words = (
        f"<{think_tag}>",
        thought.strip(),
        f"</{think_tag}>",
        f"<{action_tag}>",
        action.strip(),
        f"</{action_tag}>",
    )
    return " ".join(word for word in words if word)


def executed_action(
    parsed: ParsedAction,
    text: str,
    admissible: Sequence[str] = (),
    *,
    invalid_action: str = "raw",
    noop_action: str = "",
    require_admissible: bool = True,
) -> str:
    """The action to send to the environment.

    "raw" sends what stands in the action tags, right or wrong, so that the environment answers; without tags
    it sends the last ``RAW_CHARS`` characters. "noop" and "first" replace every invalid action.
    """
    if parsed.valid(require_admissible):
        return parsed.action
    if invalid_action == "noop":
        return noop_action
    if invalid_action == "first" and admissible:
        return admissible[0]
    return parsed.action or text.strip()[-RAW_CHARS:].strip()


def same_action(action: str) -> str:
    """Key under which spellings of an action are equal: case and spaces around punctuation do not count."""
    return re.sub(r"\s*([^\w\s])\s*", r"\1", " ".join(action.split()).casefold())


@dataclass(frozen=True)
class _Block:
    """The first complete ``<tag> ... </tag>`` and how often each tag occurs."""

    opens: int
    closes: int
    content: str | None
    start: int
    end: int

    @classmethod
    def find(cls, text: str, tag: str, opened: bool = False) -> _Block:
        opening, closing = _tag_patterns(tag)
        opens = [m.span() for m in opening.finditer(text)]
        closes = [m.span() for m in closing.finditer(text)]
        if opened and not opens:
            opens = [(0, 0)]
        # The last opening tag before the first closing one that has any: an inner block of nested tags.
        first_close = next((c for c in closes if opens and c[0] >= opens[0][1]), None)
        if first_close is None:
            return cls(len(opens), len(closes), None, -1, -1)
        start = max((o for o in opens if o[1] <= first_close[0]), key=lambda o: o[0])
        content = text[start[1] : first_close[0]].strip()
        return cls(len(opens), len(closes), content, start[0], first_close[1])

    @property
    def single(self) -> bool:
        return self.opens == self.closes == 1 and self.content is not None

    @property
    def absent(self) -> bool:
        return not self.opens and not self.closes


@functools.cache
def _tag_patterns(tag: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    # ASCII: without it IGNORECASE also accepts look-alikes such as the Kelvin sign for k.
    flags = re.IGNORECASE | re.ASCII
    return re.compile(re.escape(f"<{tag}>"), flags), re.compile(re.escape(f"</{tag}>"), flags)


def _missing(action: _Block) -> str:
    return "no action block" if action.absent else "unfinished action block"


def _order_error(text: str, think: _Block, action: _Block, require_think: bool, strict: bool) -> str:
    if not action.single:
        return "several action blocks"
    if think.absent and require_think:
        return "no thought"
    if not think.absent:
        if think.content is None:
            return "unfinished thought"
        if not think.single:
            return "several thoughts"
        if think.end > action.start:
            return "thought not before the action"
    if strict:
        outside = text[: action.start] + text[action.end :]
        if not think.absent:
            outside = text[: think.start] + text[think.end : action.start] + text[action.end :]
        if outside.strip():
            return "text outside the tags"
    return ""


def _resolve(content: str, admissible: Sequence[str], action_format: str) -> tuple[str, bool, str]:
    """(action in the environment's spelling, admissible or nothing to compare with, error)."""
    action = content  # inner spaces and lines stay: free text may be code
    if not action:
        return "", not admissible, "empty action"
    if len(action) > MAX_ACTION_CHARS:
        return "", not admissible, "action too long"
    if action_format != "number":
        known = {same_action(a): a for a in admissible}
        match = known.get(same_action(action))
        if match is not None or not admissible:
            return match or action, True, ""
        if action_format == "text":
            return action, False, ""
    number = _NUMBER.fullmatch(action)
    if number is None:
        return action, False, "" if action_format == "either" else "not a number"
    index = int(number[1])
    if not 1 <= index <= len(admissible):
        return action, False, "number out of range"
    return admissible[index - 1], True, ""
