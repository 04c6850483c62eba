# SPDX-License-Identifier: Apache-2.0
"""The context of the call under way: what registered estimators and losses see beyond verl's arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

from verl_entropy.methods.context import AdvantageContext, LossContext

_T = TypeVar("_T")
_advantage: ContextVar[AdvantageContext | None] = ContextVar("verl_entropy_advantage", default=None)
_loss: ContextVar[LossContext | None] = ContextVar("verl_entropy_loss", default=None)


@contextlib.contextmanager
def _use(variable: ContextVar[_T | None], value: _T) -> Iterator[_T]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def use_advantage(context: AdvantageContext):
    """Make ``context`` the current one inside a with block."""
    return _use(_advantage, context)


def use_loss(context: LossContext):
    """Make ``context`` the current one inside a with block."""
    return _use(_loss, context)


def computing() -> bool:
    """Whether advantages are being computed by a host: what it calls then is the base."""
    return _advantage.get() is not None


def advantage() -> AdvantageContext:
    """The current advantage context; an estimator of ours outside our trainer seam cannot go on."""
    context = _advantage.get()
    if context is None:
        raise RuntimeError(
            "verl-entropy: this estimator needs turns and entropy, which a trainer of verl gives with the plugin. "
            "Check `verl-entropy doctor`."
        )
    return context


def loss() -> LossContext:
    """The current loss context; a loss of ours outside our worker seam cannot go on."""
    context = _loss.get()
    if context is None:
        raise RuntimeError(
            "verl-entropy: this policy loss needs entropy and global counts, which only a training worker with the plugin "
            "gives. Check `verl-entropy doctor`."
        )
    return context
