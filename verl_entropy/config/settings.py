# SPDX-License-Identifier: Apache-2.0
"""The shared settings, and how settings are read: typed, documented, bounded. Those of a method are in its file.

Where the keys live in verl's configuration:

    algorithm.entropy.*                               advantage side: transforms, estimators' settings, shared settings
    actor_rollout_ref.actor.policy_loss.*             loss side: regularizer and its settings, losses' settings
    actor_rollout_ref.actor.<head>.*                  the auxiliary head, for example seal

The class defaults are the papers' settings: choosing a method with no other key *is* the paper's method.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_entropy.methods.method import ACTOR_PATH, ALGORITHM_PATH, POLICY_LOSS_PATH, ConfigError, setting

__all__ = [
    "ACTOR_PATH",
    "ALGORITHM_PATH",
    "POLICY_LOSS_PATH",
    "SEAL_PATH",
    "ConfigError",
    "Entropy",
    "lookup",
    "parse",
    "setting",
]

SEAL_PATH = f"{ACTOR_PATH}.seal"


# ----------------------------------------------------------------------------- shared


@dataclass(frozen=True)
class Entropy:
    """Shared settings of the advantage side (``algorithm.entropy``)."""

    presets: dict = setting(
        {}, "names of the chosen presets, set by +entropy=<name>; false: a method that a preset of another name chooses"
    )
    transforms: list | None = setting(None, "order of the transforms; null: those of the presets in the stated order")
    base: str = setting("grpo", "base estimator when a transform is given as algorithm.adv_estimator")
    rollout: str | None = setting(
        None, "how the rollouts of a prompt are sampled: a rollout method's name; null: verl's n samples"
    )
    log_probs: str = setting(
        "auto",
        "log-probs and entropy of the actor: chunked (one fp32 pass of this package), verl, or auto: "
        "chunked where flash-attn is missing",
        choices=("auto", "chunked", "verl"),
    )
    equal_returns: str | None = setting(
        None,
        "a group whose trajectories all have the same return: zero advantage under verl's GRPO, or verl's rounding error of up to .11; "
        "drop: it leaves the loss and its denominator under any estimator (REPO, sec. 4); drop_by_success: so does a group that succeeds or "
        "fails as one, though penalties or partial rewards tell its trajectories apart; null: zero with any method, verl's without one",
        choices=("zero", "verl", "drop", "drop_by_success"),
    )
    target: float | list | None = setting(
        None,
        "entropy in nats to hold, or a schedule [[step, nats],...] with straight lines between its points; the coefficient of the one chosen "
        "method that can is moved for it",
        gt=0.0,
    )
    target_guard: float | None = setting(
        0.2,
        "relative loss of success, running mean against its best, from which the held coefficient goes back towards no effect; null: never",
        gt=0.0,
        lt=1.0,
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
        kinds = [o for o in options if o is not type(None)]
        return _check_type(value, next((o for o in kinds if isinstance(value, o)), kinds[0]), path)
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
    rules = (("ge", ">=", operator.ge), ("gt", ">", operator.gt), ("le", "<=", operator.le), ("lt", "<", operator.lt))
    allowed = [f"{sign} {meta[name]}" for name, sign, _ in rules if meta.get(name) is not None]
    if not all(test(value, type(value)(meta[name])) for name, _, test in rules if meta.get(name) is not None):
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
