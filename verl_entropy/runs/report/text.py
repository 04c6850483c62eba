# SPDX-License-Identifier: Apache-2.0
"""Text from a run, for a page and for a terminal: nothing in it becomes markup, a terminal's command, or turns the reading direction."""

from __future__ import annotations

import unicodedata
from typing import Any

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Unicode categories that are spelled out: control, format (direction marks), surrogates, private use, line separators."""


def printable(text: Any) -> str:
    """``text`` on one line, for a terminal: characters that cannot be printed are replaced."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def spelled(text: Any) -> str:
    """``text`` with control and direction characters spelled out: what a page may show, once it is escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else f"<U+{ord(c):04X}>" for c in text)
