# SPDX-License-Identifier: Apache-2.0
"""Adapters from the advantage context to the pure functions: estimators, transforms, columns for the workers."""

from __future__ import annotations

import dataclasses
import functools

import torch

from verl_entropy.batch.turns import Packed, nested_token_weight, padded
from verl_entropy.hosts.common.context import AdvantageContext
from verl_entropy.log import say
from verl_entropy.methods.estimators.equal_returns import ROUNDED, zero_equal_returns
from verl_entropy.methods.estimators.gigpo import gigpo
from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.heads.seal_loss import mixed_group_weight, success_label
from verl_entropy.methods.transforms.aem import aem, sign_mask
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft, entrocraft_switch, entropy_range
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r
from verl_entropy.methods.transforms.result import TransformResult

NOTICED = 1e-3
"""An advantage by rounding that is worth a warning."""

# ----------------------------------------------------------------------------- estimators


def _gigpo(ctx: AdvantageContext, s):
    return gigpo(ctx.turns, gamma=s.gamma, omega=s.omega, norm=s.norm, statistics=s.statistics, similarity=s.similarity)


def _loop(ctx: AdvantageContext, s):
    return loop(ctx.turns, statistics=s.statistics)


def _group_norm(ctx: AdvantageContext, s):
    return group_norm(ctx.turns, statistics=s.statistics, norm=s.norm, singleton=s.singleton)


ESTIMATORS = {"gigpo": _gigpo, "loop": _loop, "group_norm": _group_norm}


def estimate(name: str, ctx: AdvantageContext) -> torch.Tensor:
    """Advantages (R, T) of our estimator ``name``."""
    advantages_K, metrics = ESTIMATORS[name](ctx, ctx.plan.estimator.settings)
    ctx.metrics.update({f"verl_entropy/{name}/{key}": value for key, value in metrics.items()})
    return ctx.turns.to_tokens(advantages_K)


def settle_equal_returns(
    ctx: AdvantageContext, advantages_RT: torch.Tensor, return_R: torch.Tensor | None = None
) -> torch.Tensor:
    """The base's advantages without GRPO's rounding error on groups of equal returns; with it, and a word about it, if that was chosen.

    ``return_R``: the rows' returns, where the base compares rows of one turn; None: it compares trajectories.
    """
    if ctx.plan.base not in ROUNDED:
        return advantages_RT
    turns = ctx.turns
    compared = (turns.score_J, turns.group_J) if return_R is None else (return_R[turns.row_K], turns.group_K)
    fixed_RT, rounding = zero_equal_returns(advantages_RT, turns, *compared)
    ctx.metrics["verl_entropy/equal_returns/rounding"] = rounding
    if ctx.plan.zeroes_equal_returns:
        return fixed_RT
    if rounding > NOTICED:
        _warn_of_rounding()
    return advantages_RT


@functools.cache
def _warn_of_rounding() -> None:
    say(
        "WARNING: verl's GRPO gives groups whose trajectories all have the same return an advantage by rounding "
        "(verl_entropy/equal_returns/rounding). Set +algorithm.entropy.equal_returns=zero."
    )


# ----------------------------------------------------------------------------- transforms


def _aem(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    keep_RT, advantages_RT = None, padded(advantages)
    if s.sign_mask != "none":
        keep_RT = sign_mask(advantages_RT, ctx.entropy_RT, ctx.turns, drop=s.sign_mask)
    shaped_RT = aem(
        advantages_RT, ctx.entropy_RT, ctx.turns, temperature=s.temperature, min_range=s.min_range, min_group=s.min_group
    )
    return TransformResult(shaped_RT, keep_RT)


def _ea(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    return ea(advantages, ctx.turns, ctx.entropy_RT, alpha=s.alpha, kappa=s.kappa)


def _aepo(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    return aepo(advantages, ctx.turns, ctx.entropy_RT, alpha=s.alpha, clamp=s.clamp)


def _repo_r(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    zeta = ctx.info["repo_r"]["zeta"]
    return repo_r(advantages, ctx.turns, ctx.old_log_probs_RT, ctx.entropy_RT, zeta=zeta, center=s.center, keep_sign=s.keep_sign)


def _repo_d(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    return repo_d(
        advantages,
        ctx.turns,
        ctx.old_log_probs_RT,
        ctx.entropy_RT,
        zeta=ctx.info["repo_d"]["zeta"],
        center=s.center,
        scope=s.scope,
        clamp=s.clamp,
        skip_zero_groups=s.skip_zero_groups,
    )


def _entrocraft_with(function):
    def run(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
        low, high = entropy_range(
            ctx.step,
            s.total_steps or ctx.total_steps,
            schedule=s.schedule,
            start=(s.start_low, s.start_high),
            end=(s.end_low, s.end_high),
        )
        entropy = float("nan") if ctx.entropy is None else ctx.entropy
        return function(advantages, ctx.turns, entropy=entropy, low=low, high=high)

    return run


def _clip_b(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    return clip_b(
        advantages,
        ctx.turns,
        ctx.old_log_probs_RT,
        ctx.entropy_RT,
        mu=s.mu,
        two_sided=s.two_sided,
        max_frac=s.max_frac,
    )


def _clip_v(ctx: AdvantageContext, advantages: torch.Tensor | Packed, s) -> TransformResult:
    return clip_v(
        advantages,
        ctx.turns,
        ctx.old_log_probs_RT,
        ctx.entropy_RT,
        ctx.fields["vocab_centre"],
        mu=s.mu,
        two_sided=s.two_sided,
        max_frac=s.max_frac,
    )


TRANSFORMS = {
    "aem": _aem,
    "aepo": _aepo,
    "clip_b": _clip_b,
    "clip_v": _clip_v,
    "ea": _ea,
    "entrocraft": _entrocraft_with(entrocraft),
    "entrocraft_switch": _entrocraft_with(entrocraft_switch),
    "repo_d": _repo_d,
    "repo_r": _repo_r,
}


def apply_transforms(ctx: AdvantageContext, advantages_RT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the plan's transforms in order; the second result is a mask of tokens to keep, if any transform masks."""
    keep_RT, advantages, turns = None, advantages_RT, ctx.turns
    for choice in ctx.plan.transforms:
        result = TRANSFORMS[choice.name](ctx, advantages, choice.settings)
        advantages = result.advantages
        ctx.metrics.update({f"verl_entropy/{choice.name}/{key}": value for key, value in result.metrics.items()})
        if result.mask_RT is not None and result.mask_RT is not ctx.turns.mask_RT:
            advantages = padded(advantages)
            keep_RT = result.mask_RT if keep_RT is None else keep_RT & result.mask_RT
            # Later statistics are over what is left; the turns themselves stay.
            ctx.turns = dataclasses.replace(ctx.turns, mask_RT=ctx.turns.mask_RT & keep_RT)
    advantages_RT = padded(advantages)
    if not bool(torch.isfinite(advantages_RT[ctx.mask_RT]).all()):
        raise RuntimeError(
            f"verl-entropy: non-finite advantages after {ctx.plan.base} -> {[t.name for t in ctx.plan.transforms]} at step "
            f"{ctx.step}; check rewards and log-probs of this batch (verl's metric rollout_probs_diff, NaN in rm_scores)."
        )
    if keep_RT is not None and not bool((keep_RT & ctx.mask_RT).any()):
        # An empty batch has no mean: keep the tokens, without an advantage.
        ctx.turns = turns
        ctx.metrics["verl_entropy/empty_after_mask"] = 1.0
        return torch.zeros_like(advantages_RT), None
    return advantages_RT, keep_RT


# ----------------------------------------------------------------------------- columns for the workers


def worker_columns(ctx: AdvantageContext) -> dict[str, torch.Tensor]:
    """Fields that regulariser and head need in the training workers; names start with ``verl_entropy_``."""
    columns: dict[str, torch.Tensor] = {}
    plan, turns = ctx.plan, ctx.turns
    if plan.seal is not None:
        columns["verl_entropy_label"] = success_label(turns).float()
        if plan.seal.settings.skip_uniform_groups:
            columns["verl_entropy_head_weight"] = mixed_group_weight(turns)
    regularizer = plan.regularizer
    if regularizer is None:
        return columns
    if regularizer.name in ("epo", "entropy_bonus") and regularizer.settings.aggregation == "nested-mean":
        columns["verl_entropy_token_weight"] = nested_token_weight(turns)
    if regularizer.name == "epo" and regularizer.settings.history == "turn":
        columns["verl_entropy_turn"] = turns.to_tokens(turns.index_K.float())
    if regularizer.name == "siren":
        # the state's, which hbar is over, as far as a transform left them
        columns["verl_entropy_peak"] = (ctx.fields["peak"] & ctx.mask_RT).float()
    return columns
