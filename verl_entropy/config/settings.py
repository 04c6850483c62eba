# SPDX-License-Identifier: Apache-2.0
"""Every setting of this package: typed, documented, bounded. Imports neither torch nor verl.

Where the keys live in verl's configuration:

    algorithm.entropy.*                               advantage side: transforms, estimators' settings, shared settings
    actor_rollout_ref.actor.policy_loss.*             loss side: regularizer and its settings, losses' settings
    actor_rollout_ref.actor.seal.*                    the auxiliary SEAL head

The class defaults are the papers' settings: choosing a method with no other key *is* the paper's method.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALGORITHM_PATH = "algorithm.entropy"
POLICY_LOSS_PATH = "actor_rollout_ref.actor.policy_loss"
SEAL_PATH = "actor_rollout_ref.actor.seal"


class ConfigError(ValueError):
    """A wrong setting; the message says the key, the value, what is allowed and the fix."""


def setting(default: Any, doc: str, *, ge=None, gt=None, le=None, lt=None, choices=None) -> Any:
    """A dataclass field with its documentation and bounds."""
    meta = {"doc": doc, "ge": ge, "gt": gt, "le": le, "lt": lt, "choices": choices}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)


# ----------------------------------------------------------------------------- estimators


@dataclass(frozen=True)
class GiGPO:
    """Group-in-group policy optimisation: episode advantage + omega x step advantage (arXiv 2505.10978)."""

    gamma: float = setting(0.95, "discount of the step return (Eq. 5)", ge=0.0, le=1.0)
    omega: float = setting(1.0, "weight of the step advantage (Eq. 8)", ge=0.0)
    norm: str = setting("mean_std", "F_norm: divide by the group's std, or by 1", choices=("mean_std", "mean"))
    statistics: str = setting(
        "trajectory", "group statistics over trajectories (paper) or rows (verl-agent's code)", choices=("trajectory", "row")
    )
    similarity: float | None = setting(
        None, "group observations whose difflib ratio reaches this; null: equal only", gt=0.0, le=1.0
    )


@dataclass(frozen=True)
class Loop:
    """Leave-one-out advantage of RLOO, the base of LOOP (REPO paper, sec. 2)."""

    statistics: str = setting("trajectory", "leave one trajectory or one row out", choices=("trajectory", "row"))


@dataclass(frozen=True)
class GroupNorm:
    """Score relative to the other rollouts of the prompt: GRPO (arXiv 2402.03300) and Dr.GRPO (arXiv 2503.20783)."""

    norm: str = setting("mean_std", "divide by the group's std (GRPO) or not (Dr.GRPO)", choices=("mean_std", "mean"))
    statistics: str = setting(
        "trajectory", "group statistics over trajectories (papers) or rows (verl-agent's code)", choices=("trajectory", "row")
    )
    singleton: str = setting("zero", "a group of one: advantage 0, or its raw score (verl's GRPO)", choices=("zero", "raw"))


# ----------------------------------------------------------------------------- transforms

CENTERS = ("exact", "batch_mean", "group_mean")


@dataclass(frozen=True)
class RepoR:
    """REPO-R: A (1 - zeta L) for A > 0 ("Entropy-Preserving Reinforcement Learning", sec. 4)."""

    zeta: float = setting(1e-3, "first value of the coefficient (sec. 4)", ge=0.0)
    zeta_min: float = setting(1e-5, "lower bound of the coefficient", gt=0.0)
    zeta_max: float = setting(1e-1, "upper bound of the coefficient", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    adaptive: bool = setting(True, "move zeta towards the target entropy; false: keep it")
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    bidirectional: bool = setting(False, "zeta may turn negative above the target (App. B)")
    flip: str = setting("reset", "magnitude after a change of sign: zeta_min, or kept", choices=("reset", "keep"))
    center: str = setting("exact", "centring of the log-probability: by the entropy, or by a mean", choices=CENTERS)
    keep_sign: bool = setting(False, "stop an advantage at 0 where zeta L > 1")


@dataclass(frozen=True)
class RepoD:
    """REPO-D: A - beta L, beta = zeta E[A L pi] ("Entropy-Preserving Reinforcement Learning", sec. 4, Cor. 1)."""

    zeta: float = setting(1e-3, "first value of the coefficient (sec. 4)", ge=0.0)
    zeta_min: float = setting(1e-3, "lower bound of the coefficient", gt=0.0)
    zeta_max: float = setting(10.0, "upper bound of the coefficient", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    adaptive: bool = setting(True, "move zeta towards the target entropy; false: keep it")
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    center: str = setting("exact", "centring of the log-probability: by the entropy, or by a mean", choices=CENTERS)
    scope: str = setting("batch", "what the expectation runs over", choices=("batch", "group", "per_token"))
    clamp: bool = setting(False, "stop beta at 0 where entropy is rising already")
    skip_zero_groups: bool = setting(True, "leave out groups whose advantages are all zero, which the paper drops")


@dataclass(frozen=True)
class EA:
    """Entropy-based advantage shaping: A + min(alpha H, |A| / kappa) (arXiv 2506.14758)."""

    alpha: float = setting(0.4, "weight of the entropy (.4 GRPO, .1 PPO)", ge=0.0)
    kappa: float = setting(2.0, "bound of the bonus, in parts of the advantage", ge=1.0)


@dataclass(frozen=True)
class Entrocraft:
    """Range of entropy outside of which experience is rejected (arXiv 2604.26326)."""

    schedule: str = setting("linear", "course of the range over training", choices=("fixed", "linear", "cosine"))
    start_low: float = setting(0.6, "lower edge at the start, nats", ge=0.0)
    start_high: float = setting(0.7, "upper edge at the start, nats", ge=0.0)
    end_low: float = setting(0.1, "lower edge at the end, nats", ge=0.0)
    end_high: float = setting(0.2, "upper edge at the end, nats", ge=0.0)
    total_steps: int | None = setting(None, "length of the schedule; null: trainer.total_training_steps", ge=1)


@dataclass(frozen=True)
class AepoAdvantage:
    """Entropy-aware advantage of AEPO: A (1 + alpha Hn) (arXiv 2510.14545)."""

    alpha: float = setting(0.2, "weight of the standardised entropy (authors' code)", ge=0.0)
    clamp: bool = setting(True, "keep the factor at or above 0")


@dataclass(frozen=True)
class ClipB:
    """Entropy-discriminator clipping, batch-normalised (arXiv 2602.03392)."""

    mu: float = setting(2.5, "drop beyond this many standard deviations (n = 16)", ge=0.0)
    two_sided: bool = setting(False, "drop on both sides, whatever the sign of the advantage")
    max_frac: float | None = setting(None, "drop at most this share of the tokens", gt=0.0, le=1.0)


@dataclass(frozen=True)
class ClipV:
    """Entropy-discriminator clipping, vocabulary-normalised (arXiv 2602.03392)."""

    mu: float = setting(8.5, "drop beyond this many standard deviations (n = 8)", ge=0.0)
    two_sided: bool = setting(False, "drop on both sides, whatever the sign of the advantage")
    max_frac: float | None = setting(1e-4, "drop at most this share of the tokens", gt=0.0, le=1.0)


@dataclass(frozen=True)
class AEM:
    """Adaptive entropy modulation (arXiv 2605.00425, Eqs. 13-15)."""

    temperature: float = setting(1.0, "lambda of Eq. 15; 0 switches the method off", ge=0.0)
    min_range: float = setting(1e-8, "groups whose entropies span less (nats), or only by fp32 rounding, keep weight 1", ge=0.0)
    min_group: int = setting(2, "groups with fewer turns keep weight 1", ge=1)
    sign_mask: str = setting(
        "none",
        "analysis of Eq. 16: drop turns whose advantage x relative entropy is positive, or negative",
        choices=("none", "positive", "negative"),
    )


# ----------------------------------------------------------------------------- regularisers


@dataclass(frozen=True)
class EPO:
    """Entropy-regularised policy optimisation: -lambda [H - beta_k P] (arXiv 2509.22576, Eqs. 4-7)."""

    entropy_coeff: float = setting(0.001, "lambda: weight of the entropy term (Tables 2-3)", ge=0.0)
    smooth_coeff: float = setting(
        0.1, "alpha: weight of the smoothing penalty (lambda_k in Tables 2-3: .1 ALFWorld, .05 ScienceWorld)", ge=0.0
    )
    kappa_low: float = setting(0.0, "lower edge of the entropy corridor, in units of its history mean", ge=0.0)
    kappa_high: float = setting(2.0, "upper edge of the entropy corridor, in units of its history mean", ge=0.0)
    penalty: str = setting(
        "hinge",
        "hinge: Eq. 5, with its gradient; indicator: Definition 9 and the released code, which has none",
        choices=("hinge", "indicator"),
    )
    weight: str = setting(
        "paper",
        "beta_k: paper (Eq. 7), released (the authors' code), constant (beta_start), off (EPO-Base)",
        choices=("paper", "released", "constant", "off"),
    )
    beta_start: float = setting(2.0, "b_s of Eq. 7", ge=0.0)
    beta_end: float = setting(1.0, "b_e of Eq. 7", ge=0.0)
    decay: float = setting(3.0, "lambda_d of Eq. 7", ge=0.0)
    total_steps: int | None = setting(None, "K of Eq. 7; null: trainer.total_training_steps", ge=1)
    entropy_decay: bool = setting(False, "ablation EPO-Decay: lambda times the released code's decay from 1 to .04")
    history: str = setting(
        "batch",
        "what the corridor is centred on: mean entropy of earlier steps (Eq. 5), or one mean per turn index",
        choices=("batch", "turn"),
    )
    aggregation: str = setting(
        "nested-mean",
        "nested-mean: trajectories, turns, tokens (Eq. 4); or one of verl's modes",
        choices=("nested-mean", "token-mean", "seq-mean-token-mean"),
    )


@dataclass(frozen=True)
class EntropyBonus:
    """Entropy bonus -coef H; adaptive: REPO's baseline "H bonus"."""

    coef: float = setting(1e-3, "weight of the entropy", ge=0.0)
    adaptive: bool = setting(False, "move the weight towards the target entropy, with REPO-R's controller")
    coef_min: float = setting(1e-5, "lower bound when adaptive", gt=0.0)
    coef_max: float = setting(1e-1, "upper bound when adaptive", gt=0.0)
    factor: float = setting(2.0, "factor of the controller's step", gt=1.0)
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)
    aggregation: str = setting(
        "token-mean", "how tokens are averaged", choices=("token-mean", "seq-mean-token-mean", "nested-mean")
    )


@dataclass(frozen=True)
class Siren:
    """Selective entropy regularisation: beta (Hbar - anchor)^2 on the peaks of the nucleus entropy (SIREN)."""

    beta: float = setting(0.005, "weight", ge=0.0)
    top_p: float = setting(0.8, "probability mass of the nucleus", gt=0.0, le=1.0)
    tau: float | None = setting(0.8, "quantile of the row above which a token is a peak; null: all tokens", ge=0.0, lt=1.0)
    crossing: str = setting(
        "include", "token that crosses top_p: in the nucleus (standard), or not (authors' code)", choices=("include", "exclude")
    )
    anchor: float | None = setting(None, "entropy to hold; null: that of the first iteration", gt=0.0)


# ----------------------------------------------------------------------------- losses and clip


@dataclass(frozen=True)
class Steer:
    """Clipped loss times a weight that falls with the token's predicted entropy change (arXiv 2510.10150)."""

    mode: str = setting("exp", "shape of the weight", choices=("exp", "linear"))
    w_min: float = setting(0.8, "smallest weight (release .8; a later version of the paper .7)", gt=0.0, le=1.0)
    w_max: float = setting(1.2, "largest weight of mode=linear", ge=1.0)
    range: str = setting(
        "batch",
        "extrema of the predicted change: of the batch, at the old policy; or of each micro-batch (authors' code)",
        choices=("batch", "micro_batch"),
    )


@dataclass(frozen=True)
class AepoLoss:
    """Entropy-balanced clipping of AEPO (arXiv 2510.14545); the bounds are verl's clip_ratio_low, _high and _c."""


@dataclass(frozen=True)
class Adapo:
    """ADAPO: the upper clip bound moves towards the target entropy ("Entropy-Preserving Reinforcement Learning", App. B)."""

    loss: str = setting("vanilla", "loss whose upper bound moves, when selected as loss_mode=adapo")
    eps_high: float = setting(0.28, "first upper bound", gt=0.0)
    eps_min: float = setting(0.2, "lower bound of it", gt=0.0)
    eps_max: float = setting(0.3, "upper bound of it", gt=0.0)
    factor: float = setting(1.01, "factor of the controller's step", gt=1.0)
    target: float | None = setting(None, "target entropy in nats; null: entropy of the first iteration", gt=0.0)


# ----------------------------------------------------------------------------- head


@dataclass(frozen=True)
class Seal:
    """Auxiliary success classifier on the last hidden states (arXiv 2605.27954, Eq. 3)."""

    alpha: float = setting(0.02, "weight of the loss (authors' README); 0: no head", ge=0.0)
    layers: int = setting(3, "linear layers of the head (authors' README: porj_layer=3)", ge=1, le=16)
    dropout: float = setting(0.1, "dropout between the layers, off in the log-prob pass", ge=0.0, lt=1.0)
    hidden_shift: str = setting(
        "predicting",
        "state that predicts the token (Lemma 3.2) or the token's own state (sec. 4.1)",
        choices=("predicting", "token"),
    )
    label: str = setting(
        "success",
        "what the head learns: success of the trajectory (Eq. 3), or the sign of each token's advantage (authors' code)",
        choices=("success", "advantage"),
    )
    skip_uniform_groups: bool = setting(False, "leave out groups that are all correct or all wrong")
    success_threshold: float = setting(0.0, "a trajectory without a success flag is correct if its score is above this")
    seed: int = setting(0, "seed of the head's initial weights", ge=0)


# ----------------------------------------------------------------------------- shared


@dataclass(frozen=True)
class Entropy:
    """Shared settings of the advantage side (``algorithm.entropy``)."""

    presets: dict = setting({}, "names of the chosen presets, set by +entropy=<name>")
    transforms: list | None = setting(None, "order of the transforms; null: those of the presets in the stated order")
    base: str = setting("grpo", "base estimator when a transform is given as algorithm.adv_estimator")
    log_probs: str = setting(
        "auto",
        "log-probs and entropy of the actor: chunked (one fp32 pass of this package), verl, or auto: "
        "chunked where flash-attn is missing",
        choices=("auto", "chunked", "verl"),
    )
    equal_returns: str | None = setting(
        None,
        "advantage under verl's GRPO of a group whose trajectories all have the same return: zero, or verl's rounding error of up "
        "to .11; null: zero with any method, verl's without one",
        choices=("zero", "verl"),
    )
    allow_missing_state: bool = setting(False, "start controllers and histories afresh when a checkpoint has none of ours")


# ----------------------------------------------------------------------------- parsing


def _check_type(value: Any, annotation: Any, path: str) -> Any:
    """``value`` as ``annotation`` (int accepted for float), or ConfigError."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        options = typing.get_args(annotation)
        if value is None and type(None) in options:
            return None
        return _check_type(value, next(o for o in options if o is not type(None)), path)
    kind = origin or annotation
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is list and isinstance(value, tuple):
        return list(value)
    if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
        raise ConfigError(f"{path}={value!r}: expected {kind.__name__}. Set {path}=<{kind.__name__}>.")
    return value


def _check_bounds(value: Any, meta: Mapping[str, Any], path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}={value}: must be a finite number.")
    if meta.get("choices") and value not in meta["choices"]:
        raise ConfigError(f"{path}={value!r}: allowed are {', '.join(map(str, meta['choices']))}.")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    rules = (("ge", ">=", value.__ge__), ("gt", ">", value.__gt__), ("le", "<=", value.__le__), ("lt", "<", value.__lt__))
    allowed = [f"{sign} {meta[name]}" for name, sign, _ in rules if meta.get(name) is not None]
    if not all(test(type(value)(meta[name])) for name, _, test in rules if meta.get(name) is not None):
        raise ConfigError(f"{path}={value}: must be {' and '.join(allowed)}.")


def parse(cls: type, values: Mapping[str, Any] | None, path: str) -> Any:
    """Build settings ``cls`` from a plain mapping; unknown keys, wrong types and out-of-range values raise ConfigError."""
    values = dict(values or {})
    values.pop("_target_", None)
    known = {f.name: f for f in dataclasses.fields(cls)}
    annotations = typing.get_type_hints(cls)
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {path}.{close[0]}?" if close else ""
            raise ConfigError(f"{path}.{key}: no such setting.{hint} Known: {', '.join(known)}.")
    checked = {}
    for key, value in values.items():
        value = _check_type(value, annotations[key], f"{path}.{key}")
        if value is not None:
            _check_bounds(value, known[key].metadata, f"{path}.{key}")
        checked[key] = value
    return cls(**checked)


def lookup(raw: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path of plain mappings; ``default`` where it is missing or null."""
    node: Any = raw
    for part in path.split("."):
        if not isinstance(node, Mapping) or node.get(part) is None:
            return default
        node = node[part]
    return node
