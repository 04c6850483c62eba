# SPDX-License-Identifier: Apache-2.0
"""A small set of school problems made from a seed, so that the environment runs without data. It is not AIME."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

SPLITS = ("train", "dev", "test")
SIZES = {"train": 240, "dev": 40, "test": 80}


@dataclass(frozen=True)
class Problem:
    """A question and its answer, which may be LaTeX."""

    question: str
    answer: str
    kind: str = "problem"


def _linear(rng: random.Random) -> tuple[str, str]:
    a, x, b = rng.randint(2, 12), rng.randint(-15, 15), rng.randint(1, 30)
    return f"Solve ${a}x + {b} = {a * x + b}$ for $x$.", str(x)


def _fraction(rng: random.Random) -> tuple[str, str]:
    a, b, c, d = rng.randint(1, 9), rng.randint(2, 12), rng.randint(1, 9), rng.randint(2, 12)
    top, bottom = a * d + c * b, b * d
    common = math.gcd(top, bottom)
    answer = rf"\frac{{{top // common}}}{{{bottom // common}}}" if bottom != common else str(top // common)
    return rf"Compute $\frac{{{a}}}{{{b}}} + \frac{{{c}}}{{{d}}}$ as a fraction in lowest terms.", answer


def _remainder(rng: random.Random) -> tuple[str, str]:
    base, power, modulus = rng.randint(2, 9), rng.randint(5, 60), rng.randint(7, 97)
    return f"Find the remainder when ${base}^{{{power}}}$ is divided by {modulus}.", str(pow(base, power, modulus))


def _choose(rng: random.Random) -> tuple[str, str]:
    people, seats = rng.randint(5, 40), rng.randint(2, 5)
    return f"In how many ways can a committee of {seats} be chosen from {people} people?", str(math.comb(people, seats))


def _distance(rng: random.Random) -> tuple[str, str]:
    x, y = rng.randint(1, 15), rng.randint(1, 15)
    square = x * x + y * y
    root = next(k for k in range(math.isqrt(square), 0, -1) if square % (k * k) == 0)
    inside = square // (root * root)
    answer = str(root) if inside == 1 else (rf"{root if root > 1 else ''}\sqrt{{{inside}}}")
    return f"How far is the point $({x}, {y})$ from the origin?", answer


def _sequence(rng: random.Random) -> tuple[str, str]:
    first, gap, count = rng.randint(1, 20), rng.randint(2, 9), rng.randint(10, 40)
    total = count * first + gap * count * (count - 1) // 2
    text = (
        f"An arithmetic sequence starts with {first}, {first + gap}, {first + 2 * gap}. Find the sum of its first {count} terms."
    )
    return text, str(total)


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "linear": _linear,
    "fraction": _fraction,
    "remainder": _remainder,
    "counting": _choose,
    "distance": _distance,
    "sequence": _sequence,
}


@lru_cache(maxsize=1)
def problems() -> dict[str, tuple[Problem, ...]]:
    """The bundled problems of every split; no two have the same text."""
    rng, seen, found = random.Random("problems"), set(), []
    makers = list(KINDS.items())
    total = sum(SIZES.values())
    while len(found) < total:
        kind, make = makers[len(found) % len(makers)]
        question, answer = make(rng)
        if question not in seen:
            seen.add(question)
            found.append(Problem(question, answer, kind))
    parts, start = {}, 0
    for split in SPLITS:
        parts[split] = tuple(found[start : start + SIZES[split]])
        start += SIZES[split]
    return parts
