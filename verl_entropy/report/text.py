# SPDX-License-Identifier: Apache-2.0
"""Text from a run as text of a page: nothing in it can become markup or turn the reading direction."""

from __future__ import annotations

import html
import unicodedata
from typing import Any

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
"""Unicode categories that are spelled out: control, format (direction marks), surrogates, private use, line separators."""


def shown(text: Any) -> str:
    """``text`` as HTML text: escaped, with control and direction characters spelled out."""
    text = str(text)
    if not text.isprintable():
        text = "".join(c if c in "\n\t" or unicodedata.category(c) not in _HIDDEN else f"<U+{ord(c):04X}>" for c in text)
    return html.escape(text, quote=True)
