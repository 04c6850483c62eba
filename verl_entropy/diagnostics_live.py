# SPDX-License-Identifier: Apache-2.0
"""Metrics of every step from the old-log-prob pass: a few reductions over the batch, no extra forward pass."""

from __future__ import annotations

import torch

MAX_TURN_KEYS = 32
"""Turn indices that get their own metric; later turns only enter the means."""


def turn_metrics(ctx) -> dict[str, float]:
    """Success, turns per trajectory, valid turns, and entropy by turn index (nats)."""
    turns = ctx.turns
    if turns.num_trajectories == 0:
        return {}
    metrics = {
        "verl_entropy/success": float(turns.success_J.float().mean()),
        "verl_entropy/turns": turns.num_turns / turns.num_trajectories,
    }
    if turns.valid_K is not None:
        metrics["verl_entropy/valid_action_ratio"] = float(turns.valid_K.float().mean())
    if ctx.entropy_RT is not None:
        metrics.update(_turn_entropy(turns, ctx.entropy_RT))
    return metrics


def _turn_entropy(turns, entropy_RT: torch.Tensor) -> dict[str, float]:
    count = int(turns.index_K.max()) + 1
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, turns.index_K, turns.mean(entropy_RT).double())
    number = torch.bincount(turns.index_K, minlength=count)
    means = (total / number).tolist()
    return {f"verl_entropy/turn_entropy/{k}": v for k, v in enumerate(means[:MAX_TURN_KEYS])}
