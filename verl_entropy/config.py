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


# ----------------------------------------------------------------------------- transforms


@dataclass(frozen=True)
class AEM:
    """Adaptive entropy modulation (arXiv 2605.00425, Eqs. 13-15)."""

    temperature: float = setting(1.0, "lambda of Eq. 15; 0 switches the method off", ge=0.0)
    min_range: float = setting(1e-8, "groups whose entropies span less (nats) keep weight 1", ge=0.0)
    min_group: int = setting(2, "groups with fewer turns keep weight 1", ge=1)


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


# ----------------------------------------------------------------------------- head


@dataclass(frozen=True)
class Seal:
    """Auxiliary success classifier on the last hidden states (arXiv 2605.27954, Eq. 3)."""

    alpha: float = setting(0.02, "weight of the loss (authors' README); 0: the head trains nothing", ge=0.0)
    layers: int = setting(3, "linear layers of the head (authors' README: porj_layer=3)", ge=1, le=16)
    dropout: float = setting(0.1, "dropout between the layers, off in the log-prob pass", ge=0.0, lt=1.0)
    hidden_shift: str = setting(
        "predicting",
        "state that predicts the token (Lemma 3.2) or the token's own state (sec. 4.1)",
        choices=("predicting", "token"),
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
    log_probs: str = setting(
        "auto",
        "log-probs and entropy of the actor: chunked (one fp32 pass of this package), verl, or auto: "
        "chunked where flash-attn is missing",
        choices=("auto", "chunked", "verl"),
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
