# SPDX-License-Identifier: Apache-2.0
"""Whether an answer ended by itself, from what the server says of it and from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CUT = ("length", "abort", "aborted", "max_tokens", "content_filter", "error", "timeout", "cancelled")
"""Finish reasons (``finish_reason``, verl's ``stop_reason``) of an answer that somebody else ended."""
ENDINGS = ("terminated", "truncated", "max_turns", "no_room", "cut")
"""Why an episode ended (``Episode.ended``)."""
ENDED = ("stop", "eos", "end_turn", "stop_sequence")
"""Those of an answer that ended by itself."""


def is_cut(reason: Any) -> bool:
    """Whether this finish reason says so; SGLang gives ``{"type": "length", ...}``. No reason, or another one, says nothing."""
    if isinstance(reason, dict):
        reason = reason.get("type")
    return isinstance(reason, str) and reason.lower() in CUT


def tokens_cut(ids: Sequence[int], budget: int, ends: set[int], reason: Any) -> bool:
    """Whether the answer ``ids`` was cut: the server says so, or it fills its ``budget`` without an end token.

    verl's servers say "completed" of both; an answer that fills the budget ended by itself only if its last token ends one.
    """
    if is_cut(reason):
        return True
    ended = isinstance(reason, str) and reason.lower() in ENDED
    return not ended and len(ids) >= budget and (not ids or ids[-1] not in ends)
