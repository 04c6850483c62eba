# SPDX-License-Identifier: Apache-2.0
"""What judging will cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from verl_entropy.runs.judge import prompt

BYTES_PER_TOKEN = 3.0
"""UTF-8 bytes of a token. English prose has about 4; agents' tags, code and degenerate text fewer, and an estimate that is too
high is the better mistake."""
OVERHEAD = 20
"""Tokens of the chat format and the markers."""


@dataclass(frozen=True)
class Estimate:
    """An upper estimate without retries."""

    requests: int
    input_tokens: int
    output_tokens: int
    """All that is allowed; most answers are shorter."""
    cost: float | None
    """In the currency of the given prices; None without prices."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return asdict(self)

    def render(self) -> str:
        """For a terminal."""
        cost = (
            "unknown (give --price-in and --price-out)" if self.cost is None else f"at most about {self.cost:.4g} without retries"
        )
        return (
            f"requests  {self.requests}\n"
            f"tokens    about {self.input_tokens} in, at most {self.output_tokens} out\n"
            f"cost      {cost}"
        )


def count_tokens(text: str) -> int:
    """Tokens of ``text``, estimated from its size; no tokenizer is needed."""
    return int(len(text.encode("utf-8", errors="replace")) / BYTES_PER_TOKEN) + 1


def price(input_tokens: int, output_tokens: int, price_in: float | None, price_out: float | None) -> float | None:
    """Cost of tokens at prices per million tokens."""
    if price_in is None and price_out is None:
        return None
    return (input_tokens * (price_in or 0.0) + output_tokens * (price_out or 0.0)) / 1e6


def estimate(
    texts: Sequence[str], price_in: float | None = None, price_out: float | None = None, max_output: int = prompt.MAX_OUTPUT
) -> Estimate:
    """Tokens and cost of judging ``texts``, at prices per million tokens."""
    fixed = count_tokens(prompt.SYSTEM) + count_tokens(prompt.USER) + OVERHEAD
    into, out = sum(fixed + count_tokens(text) for text in texts), max_output * len(texts)
    return Estimate(len(texts), into, out, price(into, out, price_in, price_out))
