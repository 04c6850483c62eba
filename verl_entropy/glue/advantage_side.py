# SPDX-License-Identifier: Apache-2.0
"""Adapters from the advantage context to the pure functions: estimators, transforms, worker columns, state."""

from __future__ import annotations

from typing import Any

import torch

from verl_entropy.estimators.gigpo import gigpo
from verl_entropy.estimators.loop import loop
from verl_entropy.glue.context import AdvantageContext
from verl_entropy.plan import Plan
from verl_entropy.regularizers import epo
from verl_entropy.seal.loss import mixed_group_weight, success_label
from verl_entropy.transforms.aem import aem
from verl_entropy.turns import nested_token_weight

# ----------------------------------------------------------------------------- estimators


def _gigpo(ctx: AdvantageContext, s) -> torch.Tensor:
    advantages_K, metrics = gigpo(
        ctx.turns, gamma=s.gamma, omega=s.omega, norm=s.norm, statistics=s.statistics, similarity=s.similarity
    )
    ctx.metrics.update({f"verl_entropy/gigpo/{k}": v for k, v in metrics.items()})
    return advantages_K


def _loop(ctx: AdvantageContext, s) -> torch.Tensor:
    advantages_K, metrics = loop(ctx.turns, statistics=s.statistics)
    ctx.metrics.update({f"verl_entropy/loop/{k}": v for k, v in metrics.items()})
    return advantages_K


ESTIMATORS = {"gigpo": _gigpo, "loop": _loop}


def estimate(name: str, ctx: AdvantageContext) -> torch.Tensor:
    """Advantages (R, T) of our estimator ``name``."""
    return ctx.turns.to_tokens(ESTIMATORS[name](ctx, ctx.plan.estimator.settings))


# ----------------------------------------------------------------------------- transforms


def _aem(ctx: AdvantageContext, advantages_RT: torch.Tensor, s):
    return (
        aem(
            advantages_RT,
            ctx.entropy_RT,
            ctx.turns,
            temperature=s.temperature,
            min_range=s.min_range,
            min_group=s.min_group,
        ),
        None,
    )


TRANSFORMS = {"aem": _aem}


def apply_transforms(ctx: AdvantageContext, advantages_RT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the plan's transforms in order; the second result is a mask of tokens to keep, if any transform masks."""
    keep_RT = None
    for choice in ctx.plan.transforms:
        advantages_RT, mask = TRANSFORMS[choice.name](ctx, advantages_RT, choice.settings)
        if mask is not None:
            keep_RT = mask if keep_RT is None else keep_RT & mask
    if not bool(torch.isfinite(advantages_RT[ctx.mask_RT]).all()):
        raise RuntimeError(
            f"verl-entropy: non-finite advantages after {ctx.plan.base} -> {[t.name for t in ctx.plan.transforms]} at step "
            f"{ctx.step}; check rewards and log-probs of this batch (verl's metric rollout_probs_diff, NaN in rm_scores)."
        )
    return advantages_RT, keep_RT


# ----------------------------------------------------------------------------- columns for the workers


def worker_columns(ctx: AdvantageContext) -> dict[str, torch.Tensor]:
    """Fields that regulariser and head need in the training workers; names start with ``verl_entropy_``."""
    columns: dict[str, torch.Tensor] = {}
    turns = ctx.turns
    if ctx.plan.seal is not None:
        columns["verl_entropy_label"] = success_label(turns).float()
        if ctx.plan.seal.settings.skip_uniform_groups:
            columns["verl_entropy_head_weight"] = mixed_group_weight(turns)
    if ctx.plan.regularizer is not None and ctx.plan.regularizer.name == "epo":
        if ctx.plan.regularizer.settings.aggregation == "nested-mean":
            columns["verl_entropy_token_weight"] = nested_token_weight(turns)
        if ctx.plan.regularizer.settings.history == "turn":
            columns["verl_entropy_turn"] = turns.to_tokens(turns.index_K.float())
    return columns


# ----------------------------------------------------------------------------- state


class EpoState:
    """EPO's corridor and weight: the history of the batch entropies of earlier steps."""

    def __init__(self, settings):
        self.settings = settings
        self.history = epo.TurnEntropyHistory() if settings.history == "turn" else epo.EntropyHistory()

    def step(self, ctx: AdvantageContext, entropy: float | None) -> dict[str, Any]:
        """Corridor centre and beta_k of this step; ``k`` counts from 0 (Alg. 1)."""
        s, k = self.settings, ctx.step - 1
        total = s.total_steps or ctx.total_steps
        hbar = self.history.mean()
        beta = {
            "paper": lambda: epo.epo_beta(k, total, s.beta_start, s.beta_end, s.decay),
            "released": lambda: epo.epo_released_weight(k, total),
            "constant": lambda: s.beta_start,
            "off": lambda: 0.0,
        }[s.weight]()
        self._append(ctx, entropy)
        empty = hbar is None or (isinstance(hbar, list) and not hbar)
        ctx.metrics["verl_entropy/epo/beta"] = beta
        if isinstance(hbar, float):
            ctx.metrics["verl_entropy/epo/corridor_low"] = s.kappa_low * hbar
            ctx.metrics["verl_entropy/epo/corridor_high"] = s.kappa_high * hbar
        return {"hbar": None if empty else hbar, "beta": 0.0 if empty else beta}

    def _append(self, ctx: AdvantageContext, entropy: float | None) -> None:
        if self.settings.history == "turn":
            self.history.append(ctx.turns.mean(ctx.entropy_RT), ctx.turns.index_K)
        elif entropy is not None:
            self.history.append(entropy)

    def state_dict(self) -> dict[str, Any]:
        return self.history.state_dict()

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.history.load_state_dict(values)


STATEFUL = {"epo": EpoState}


def stateful_methods(plan: Plan) -> dict[str, Any]:
    """State objects of the chosen methods, by name."""
    return {c.name: STATEFUL[c.name](c.settings) for c in plan.choices if c.algorithm.state}
