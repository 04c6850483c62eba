# SPDX-License-Identifier: Apache-2.0
"""Repetition in generated text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

READINGS = ("occurrences", "redundant")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|\n+")
"""End marks before white space, or line breaks; "3.5" and "take(book.1)" stay whole."""


def sentences(text: str) -> list[str]:
    """Sentences of ``text``: stripped, in lower case, without empty ones."""
    parts = (part.strip().lower() for part in _SENTENCE_END.split(text))
    return [part for part in parts if part]


def sentence_duplication(text: str, reading: str = "occurrences") -> float:
    """Share of the sentences of one response that appear in it more than once; 0 for an empty response.

    SEAL (arXiv 2605.27954), sec. 3.3 and B.5: "sentences that appear multiple times in the same response".
    ``occurrences``: sentences whose text occurs at least twice / all sentences; ``redundant``: (all -
    distinct) / all. The paper states neither which of the two, nor how sentences are split and compared; see
    ``sentences``.

    >>> sentence_duplication("Look. Go north. Look. Take it. Look.")
    0.6
    >>> sentence_duplication("Look. Go north. Look. Take it. Look.", reading="redundant")
    0.4
    """
    if reading not in READINGS:
        raise ValueError(f"reading={reading!r}: allowed are {', '.join(READINGS)}.")
    found = sentences(text)
    if not found:
        return 0.0
    counts = Counter(found)
    if reading == "redundant":
        return (len(found) - len(counts)) / len(found)
    return sum(n for n in counts.values() if n > 1) / len(found)


def mean_sentence_duplication(texts: Iterable[str], reading: str = "occurrences") -> float:
    """Mean of ``sentence_duplication`` over responses (macro average; the paper uses 1024 trajectories); 0 without responses."""
    shares = [sentence_duplication(text, reading) for text in texts]
    return sum(shares) / len(shares) if shares else 0.0
