# SPDX-License-Identifier: Apache-2.0
"""Keeps what TextWorld works out anew at every step and reset of an ALFWorld game: parsed texts and translated problems.

Four fifths of a step go into parsing the same few grammar texts, and a reset translates the same problem four times.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import logging
import sys
import threading
from typing import Any

logger = logging.getLogger(__name__)
TEXTWORLD = "1.7."
"""The release whose functions these are; with another one the games run as they are, slowly."""
TEXTS = 4096  # distinct texts of a game: a few hundred
PROBLEMS = 8  # translations take megabytes each
_lock = threading.RLock()  # the parser is one object for all threads


@functools.cache
def install() -> bool:
    """Put the caches in place, once per process; False if the installed TextWorld is another release."""
    version = importlib.metadata.version("textworld")
    if not version.startswith(TEXTWORLD):
        logger.warning("textworld %s is not %sx: ALFWorld runs without caches, about four times slower", version, TEXTWORLD)
        return False
    import fast_downward
    from textworld.envs.pddl import logic, textgen
    from textworld.logic import Rule

    textgen._parse_and_convert = _copies(textgen._parse_and_convert)
    logic._parse_and_convert = _locked(functools.lru_cache(PROBLEMS)(logic._parse_and_convert))
    fast_downward.pddl2sas = _locked(functools.lru_cache(PROBLEMS)(_keeps_arguments(fast_downward.pddl2sas)))
    query = functools.lru_cache(TEXTS)(Rule.parse_conjunctive_query)
    Rule.parse_conjunctive_query = staticmethod(_locked(query))
    return True


def _locked(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            return function(*args, **kwargs)

    return call


def _keeps_arguments(translate: Any) -> Any:
    """The translator overwrites sys.argv, which a program that starts processes still needs."""

    @functools.wraps(translate)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = sys.argv
        try:
            return translate(*args, **kwargs)
        finally:
            sys.argv = before

    return call


def _copies(parse: Any) -> Any:
    """Cached, but every caller gets symbols of its own, since it writes the context into them."""

    @functools.lru_cache(TEXTS)
    def parsed(text: str, rule_name: str) -> Any:
        return parse(text, rule_name=rule_name)

    def call(text: str, rule_name: str = "symbols", trace: bool = False) -> Any:
        with _lock:
            return copy.deepcopy(parsed(text, rule_name))

    return call
