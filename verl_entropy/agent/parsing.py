# SPDX-License-Identifier: Apache-2.0
"""From the text of a response to an action, and back.

A thought in ``<think> </think>``, then one action, in one of three forms:

    one tag       ``<action> go north </action>`` (verl-agent's): the action is what stands inside
    action_tags   ``<search> words </search>`` or ``<answer> text </answer>`` (Search-R1's): the action is the block
                  with its tags, since they say what it does
    whole         no tags: the action is all that follows the thought, or everything where there is none

An answer is well formed if each tag is there exactly once and in this order; text outside the tags is allowed unless
``strict``. A tag that is mentioned inside the thought counts as a second one: the answer is then ambiguous,
so it is not well formed.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_ACTION_CHARS = 1000
"""Default of ``max_action_chars``: a command or a query fits in a few sentences (code does not: set more)."""

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
    action_tags: Sequence[str] = (),
    require_think: bool = True,
    think_in_prompt: bool = False,
    strict: bool = False,
    action_format: str = "text",
    max_action_chars: int = MAX_ACTION_CHARS,
) -> ParsedAction:
    """Read the thought and the action of a response; linear in its length, for any text.

    ``action_format``: "text", "number" (1-based place in ``admissible``), "either" or "whole". An action that equals
    an admissible one exactly, else one alone up to case and spaces, comes back in the environment's spelling. A longer one than
    ``max_action_chars`` is none, but for "whole", which the response's length limits.
    """
    think = _Block.find(text, think_tag, opened=think_in_prompt)
    whole = action_format == "whole"
    block, tag = (_after(text, think), "") if whole else _find_action(text, action_tag, action_tags)
    if block.content is None:
        error = "unfinished thought" if whole else _missing(block)
    elif not block.content:
        error = "empty action"
    elif not whole and len(block.content) > max_action_chars:
        error = "action too long"
    else:
        chosen, admitted, problem = _resolve(_written(block.content, tag), admissible, action_format)
        error = problem or _order_error(text, think, block, require_think, strict)
        return ParsedAction(chosen, not error, think.content or "", error, admitted)
    return ParsedAction("", False, think.content or "", error, not admissible)


def format_response(
    action: str,
    thought: str | None = "",
    *,
    think_tag: str = "think",
    action_tag: str = "action",
    action_tags: Sequence[str] = (),
    action_format: str = "text",
) -> str:
    """The well-formed response for an action, with single spaces around every tag (word-level tokenizers).

    With ``action_tags`` the action is a block of one of them already. A tag inside the thought would make the response
    ambiguous: it is written as a word. ``thought=None``: the action alone.
    """
    answer = action.strip()
    if action_tags:
        answer = _tagged(answer, action_tags)
    elif action_format != "whole":
        answer = " ".join(word for word in (f"<{action_tag}>", answer, f"</{action_tag}>") if word)
    if thought is None:
        return answer
    thought = _untagged(thought, (think_tag, *(action_tags or (action_tag,)))).strip()
    return " ".join(word for word in (f"<{think_tag}>", thought, f"</{think_tag}>", answer) if word)


def executed_action(
    parsed: ParsedAction,
    text: str,
    admissible: Sequence[str] = (),
    *,
    invalid_action: str = "raw",
    noop_action: str = "",
    require_admissible: bool = True,
    action_format: str = "text",
) -> str:
    """The action to send to the environment.

    "raw" sends the action that was found, right or wrong, so that the environment answers; where none was found it
    sends the last ``RAW_CHARS`` characters, or everything (nothing of an unfinished thought) if ``action_format`` is "whole".
    "noop" and "first" replace every invalid action.
    """
    if parsed.valid(require_admissible):
        return parsed.action
    if invalid_action == "noop":
        return noop_action
    if invalid_action == "first" and admissible:
        return admissible[0]
    if parsed.error == "unfinished thought" and action_format == "whole":
        return ""  # all there is is thought
    answer = text.strip()
    return parsed.action or (answer if action_format == "whole" else answer[-RAW_CHARS:].strip())


def same_action(action: str) -> str:
    """Key under which spellings of an action are equal: case and spaces around punctuation do not count, Unicode is in NFC."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", " ".join(action.split())).casefold())
    return re.sub(r"\s*([^\w\s])\s*", r"\1", folded)


def find_action(action: str, admissible: Sequence[str]) -> int | None:
    """Place (from 0) of ``action`` in the list: the exact spelling, else the same in NFC and single spaces, else under `same_action`.

    A looser spelling counts only if one action of the list has it: among ``[k, K]`` the answer ``k`` is the first, and
    ``Go`` among ``[go, GO]`` is none. An action listed twice in one spelling is one action: the first place counts.
    """
    # Folding never makes a text eight times shorter but for its spaces: a long one that no action can equal is not folded.
    longest = 8 * max(map(len, admissible), default=0)
    for key in (str, _one_spelling, same_action) if len("".join(action.split())) <= longest else (str,):
        wanted = key(action)
        places = [i for i, listed in enumerate(admissible) if key(listed) == wanted]
        if places:
            return places[0] if len({admissible[i] for i in places}) == 1 else None
    return None


def _one_spelling(action: str) -> str:
    return unicodedata.normalize("NFC", " ".join(action.split()))


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
        opens, closes = len(opening.findall(text)), len(closing.findall(text))
        first = opening.search(text)
        start = first.span() if first else (0, 0)
        if opened and not opens:
            opens = 1
        close = closing.search(text, start[1]) if opens else None
        if close is None:
            return cls(opens, closes, None, -1, -1)
        # The last opening tag before the first closing one that has any: an inner block of nested tags.
        for inner in opening.finditer(text, start[1], close.start()):
            start = inner.span()
        return cls(opens, closes, text[start[1] : close.start()].strip(), start[0], close.end())

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


def _find_action(text: str, action_tag: str, action_tags: Sequence[str]) -> tuple[_Block, str]:
    """The action's block, and its tag if that belongs to the action; of several blocks the first complete one."""
    if not action_tags:
        return _Block.find(text, action_tag), ""
    blocks = [(_Block.find(text, tag), tag) for tag in action_tags]
    opens, closes = sum(b.opens for b, _ in blocks), sum(b.closes for b, _ in blocks)
    complete = [pair for pair in blocks if pair[0].content is not None]
    if not complete:
        return _Block(opens, closes, None, -1, -1), ""
    first, tag = min(complete, key=lambda pair: pair[0].start)
    return replace(first, opens=opens, closes=closes), tag


def _after(text: str, think: _Block) -> _Block:
    """All that follows the thought as one block; no content if the thought does not end."""
    if think.content is None and not think.absent:
        return _Block(1, 1, None, -1, -1)
    start = 0 if think.absent else think.end
    return _Block(1, 1, text[start:].strip(), start, len(text))


def _written(content: str, tag: str) -> str:
    return f"<{tag}> {content} </{tag}>" if tag else content


def _tagged(action: str, action_tags: Sequence[str]) -> str:
    """The one block that the action is."""
    block, tag = _find_action(action, "", action_tags)
    if not block.single or not block.content or block.start > 0 or block.end < len(action):
        raise ValueError(
            f"data.env.action_tags=[{', '.join(action_tags)}]: the action {action[:80]!r} is not exactly one block of one of "
            "these tags. Set data.env.action_tags=[] and data.env.action_tag=action."
        )
    return _written(block.content, tag)


def _untagged(text: str, tags: Sequence[str]) -> str:
    """The text with the opening ones of these tags as bare words, and without the closing ones."""
    for tag in tags:
        text = re.sub(rf"<{tag}>\s*", f"{tag} ", text, flags=re.IGNORECASE | re.ASCII)
        text = re.sub(rf"\s*</{tag}>", "", text, flags=re.IGNORECASE | re.ASCII)
    return text


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


def _resolve(action: str, admissible: Sequence[str], action_format: str) -> tuple[str, bool, str]:
    """(action in the environment's spelling, admissible or nothing to compare with, error).

    Inner spaces and lines of an action that is not listed stay: free text may be code.
    """
    if action_format != "number":
        if not admissible:
            return action, True, ""
        place = find_action(action, admissible)
        if place is not None:
            return admissible[place], True, ""
        if action_format != "either":
            return action, False, ""
    number = _NUMBER.fullmatch(action)
    if number is None:
        return action, False, "" if action_format == "either" else "not a number"
    index = int(number[1])
    if not 1 <= index <= len(admissible):
        return action, False, "number out of range"
    return admissible[index - 1], True, ""
