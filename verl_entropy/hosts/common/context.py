# SPDX-License-Identifier: Apache-2.0
"""What registered estimators and losses see beyond verl's arguments, for the duration of one call."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from verl_entropy.batch.turns import Turns
from verl_entropy.config.plan import Plan


@dataclass
class AdvantageContext:
    """Advantage side, in the trainer's process. Every tensor is in the padded response layout."""

    plan: Plan
    step: int
    total_steps: int
    turns: Turns
    mask_RT: torch.Tensor
    entropy_RT: torch.Tensor | None
    """Entropy of the old-log-prob pass in nats, no gradient; None when that pass was bypassed."""
    old_log_probs_RT: torch.Tensor | None
    fields: dict[str, Any]
    """Whatever else the rows carry: extra_fields (environment), keys, and what our log-prob pass adds."""
    advantages_RT: torch.Tensor | None = None
    """Advantages after base and transforms; None before."""
    entropy: float | None = None
    """Mean entropy of the batch's trained tokens in nats; None when unknown or not finite."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the methods' states say for this iteration; sent to the workers."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class LossContext:
    """Loss side, in a training worker, for one micro-batch."""

    plan: Plan
    micro_batch: Any
    """The whole micro-batch (a TensorDict with every field of the queue)."""
    model_output: dict[str, Any]
    entropy_RT: torch.Tensor | None
    """Entropy with gradient in nats, or None when nothing asked for it."""
    mask_RT: torch.Tensor
    """Tokens that the policy loss reads (verl's response_mask)."""
    loss_mask_RT: torch.Tensor
    """Tokens counted in ``num_tokens`` (verl's loss_mask; rollout correction may thin the response_mask further)."""
    num_tokens: float
    """Trained tokens of the global mini-batch."""
    num_rows: float
    """Rows of the global mini-batch that have a trained token."""
    dp_size: int
    info: dict[str, Any]
    """What the driver sent along: step, corridor, coefficients."""
    token_means: dict[str, torch.Tensor] = field(default_factory=dict)
    """Per-token tensors whose mean over the global mini-batch becomes a metric."""
    token_sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """The same for what is summed over this micro-batch's trained tokens already."""


_advantage: ContextVar[AdvantageContext | None] = ContextVar("verl_entropy_advantage", default=None)
_loss: ContextVar[LossContext | None] = ContextVar("verl_entropy_loss", default=None)


@contextlib.contextmanager
def _use(variable: ContextVar, value):
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


def has_advantage() -> bool:
    """Whether an advantage context is current."""
    return _advantage.get() is not None


def advantage() -> AdvantageContext:
    """The current advantage context; an estimator of ours outside our trainer seam cannot go on."""
    context = _advantage.get()
    if context is None:
        raise RuntimeError(
            "verl-entropy: this estimator needs turns and entropy, which only verl's V1 trainer with the plugin gives. "
            "Set trainer.use_v1=True and check `verl-entropy doctor`."
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
