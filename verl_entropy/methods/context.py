# SPDX-License-Identifier: Apache-2.0
"""What a method sees of a step: the batch on the advantage side, a micro-batch on the loss side. Hosts fill these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from verl_entropy.batch.numerics import aggregate
from verl_entropy.batch.turns import Turns


@dataclass
class AdvantageContext:
    """Advantage side, in the trainer's process. Every tensor is in the padded response layout (R, T)."""

    plan: Any
    """The run's ``config.plan.Plan``, for hosts; a method gets its settings."""
    step: int
    total_steps: int
    turns: Turns
    mask_RT: Tensor
    entropy_RT: Tensor | None
    """Entropy of the old-log-prob pass in nats, no gradient; None when that pass was bypassed."""
    old_log_probs_RT: Tensor | None
    fields: dict[str, Any]
    """Whatever else the rows carry: extra_fields (environment), keys, and the methods' outputs of the log-prob pass."""
    advantages_RT: Tensor | None = None
    """Advantages after base and transforms; None before."""
    entropy: float | None = None
    """Mean entropy of the batch's trained tokens in nats; None when unknown or not finite."""
    target: float | None = None
    """Entropy in nats to hold in this step (``algorithm.entropy.target``); None: none is asked for."""
    target_guard: float | None = None
    """``algorithm.entropy.target_guard``."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the methods' states say for this iteration, by method; sent to the workers."""
    metrics: dict[str, float] = field(default_factory=dict)

    def success(self) -> float | None:
        """Share of the trajectories that reached their goal; None without one."""
        success_J = self.turns.success_J
        return float(success_J.float().mean()) if len(success_J) else None

    def entropies(self) -> Tensor:
        """Entropy of the old-log-prob pass in nats, (R, T), no gradient; RuntimeError where that pass was bypassed."""
        if self.entropy_RT is None:
            raise RuntimeError(_missing("entropy"))
        return self.entropy_RT

    def log_probs(self) -> Tensor:
        """Log-probabilities of the sampled tokens in the old-log-prob pass, (R, T); RuntimeError where that pass was bypassed."""
        if self.old_log_probs_RT is None:
            raise RuntimeError(_missing("log-probabilities"))
        return self.old_log_probs_RT


def _missing(what: str) -> str:
    return (
        f"verl-entropy: this batch has no {what} of the old-log-prob pass, which bypass mode leaves out. "
        "Set algorithm.rollout_correction.bypass_mode=False."
    )


@dataclass(frozen=True)
class ClipBounds:
    """How far the ratio may go below and above 1, and the dual clip's c (None: none)."""

    low: float
    high: float
    dual: float | None


@dataclass
class LossContext:
    """Loss side, in a training worker, for one micro-batch."""

    plan: Any
    micro_batch: Any
    """The whole micro-batch, for hosts; a method asks ``column`` and ``output``."""
    model_output: dict[str, Any]
    entropy_RT: Tensor | None
    """Entropy with gradient in nats, or None when nothing asked for it."""
    mask_RT: Tensor
    """Tokens that the policy loss reads (verl's response_mask)."""
    loss_mask_RT: Tensor
    """Tokens counted in ``num_tokens`` (verl's loss_mask; rollout correction may thin the response_mask further)."""
    num_tokens: float
    """Trained tokens of the global mini-batch."""
    num_rows: float
    """Rows of the global mini-batch that have a trained token."""
    dp_size: int
    info: dict[str, Any]
    """What the driver sent along: step, and what each method's state said."""
    read_output: Callable[[str], Tensor] | None = None
    """A method's output of the update's forward pass, by name, (R, T)."""
    totals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each of our (R, T) columns over the global mini-batch: the sum, and the rows with a value above 0."""
    token_means: dict[str, Tensor] = field(default_factory=dict)
    """Per-token tensors (R, T) whose mean over the global mini-batch becomes a metric."""
    token_sums: dict[str, Tensor] = field(default_factory=dict)
    """The same for what is summed over this micro-batch's trained tokens already."""
    whole_mask_RT: Tensor | None = None
    """``mask_RT`` before a transform dropped tokens from the policy's loss; None: none did. A head reads these."""
    whole_loss_mask_RT: Tensor | None = None
    """``loss_mask_RT`` before that."""
    whole_tokens: float | None = None
    """``num_tokens`` before that."""

    @property
    def head_tokens(self) -> float:
        """Tokens of the global mini-batch that a head reads, at least 1."""
        return max(self.num_tokens if self.whole_tokens is None else self.whole_tokens, 1.0)

    def head_allowed(self) -> Tensor:
        """Of the head's tokens in row order, which rollout correction did not reject; (N,), bool."""
        if self.whole_mask_RT is None or self.whole_loss_mask_RT is None:
            return self.mask_RT[self.loss_mask_RT]
        return self.whole_mask_RT[self.whole_loss_mask_RT]

    def column(self, name: str) -> Tensor:
        """A column of the driver: (R,), or padded to the response layout (R, T)."""
        value = self.micro_batch[f"verl_entropy_{name}"]
        if not value.is_nested:
            return value
        return torch.nested.to_padded_tensor(value, padding=0.0, output_size=tuple(self.mask_RT.shape))

    def entropies(self) -> Tensor:
        """Entropy with gradient in nats, (R, T); RuntimeError where the update computed none. The method needs ``grad_entropy``."""
        if self.entropy_RT is None:
            raise RuntimeError(
                "verl-entropy: this micro-batch has no entropy with gradient. Set actor_rollout_ref.actor.calculate_entropy=true."
            )
        return self.entropy_RT

    def output(self, name: str) -> Tensor:
        """What the method computed from the logits in this forward pass, (R, T)."""
        if self.read_output is None:
            raise RuntimeError(f"verl-entropy: this host gives no {name} of the logits in the update.")
        return self.read_output(name)

    def old_entropy(self) -> Tensor:
        """Entropy of the old-log-prob pass, (R, T), fp32, no gradient."""
        value = self.micro_batch["entropy"]
        return torch.nested.to_padded_tensor(value, padding=0.0, output_size=tuple(self.mask_RT.shape)).float()

    def aggregate(self, x_RT: Tensor, mode: str, mask_RT: Tensor | None = None, num_rows: float | None = None) -> Tensor:
        """This micro-batch's share of the aggregate over the global mini-batch; nested-mean reads the column ``token_weight``."""
        nested = mode == "nested-mean"
        return aggregate(
            x_RT,
            self.mask_RT if mask_RT is None else mask_RT,
            mode,
            num_tokens=self.num_tokens,
            num_rows=self.num_rows if num_rows is None else num_rows,
            dp_size=self.dp_size,
            weight=self.column("token_weight") if nested else None,
            weight_sum=self.totals["token_weight"][0] if nested else None,
        )
