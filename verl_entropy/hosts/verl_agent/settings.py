# SPDX-License-Identifier: Apache-2.0
"""Plan of a verl-agent run: read, checked against the rest of its configuration, and written where its processes find it.

The keys are those of the verl route. verl-agent compares estimator and loss names with fixed lists, so the configuration that
it sees holds names of its own, and ``actor_rollout_ref.actor.verl_entropy.chosen`` keeps what was asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_entropy.config import checks, plan
from verl_entropy.config.settings import ALGORITHM_PATH, POLICY_LOSS_PATH, ConfigError, lookup
from verl_entropy.diagnostics.settings import ACTING
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS_PATH
from verl_entropy.hosts.verl_agent.fingerprints import COMMIT, VERSION
from verl_entropy.methods import registry

ESTIMATORS = ("gae", "grpo", "grpo_passk", "gigpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo")
"""verl-agent's own, the members of its ``AdvantageEstimator``."""

LOSSES = ("vanilla", "gspo")
"""verl-agent's own loss modes."""

ROW_STATISTICS = ("grpo", "grpo_passk", "gigpo", "rloo", "reinforce_plus_plus_baseline")
"""Estimators of verl-agent whose group statistics run over rows, one per turn (``compute_mean_std_cross_steps``)."""

KEY = "verl_entropy"


def _container(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True, throw_on_missing=False) if OmegaConf.is_config(node) else node


def read_plan(raw: Mapping[str, Any]) -> plan.Plan:
    """The plan. ``adv_estimator=gigpo`` is verl-agent's own unless the preset or its section is given."""
    chosen = plan.read(raw)
    ours = lookup(raw, "algorithm.entropy", {})
    if chosen.base == "gigpo" and "gigpo" not in lookup(ours, "presets", {}) and "gigpo" not in ours:
        chosen = dataclasses.replace(chosen, estimator=None)
    return chosen


def plan_of(actor: DictConfig) -> plan.Plan | None:
    """The plan kept in a prepared ``actor_rollout_ref.actor``, or None where nothing of ours was chosen."""
    if KEY not in actor:
        return None
    return read_plan(_container(actor[KEY].chosen))


# ----------------------------------------------------------------------------- checks


def _refuse(condition: bool, setting: str, reason: str, fix: str) -> None:
    if condition:
        raise ConfigError(f"{setting}: {reason} {fix}")


def _check_engine(raw: Mapping[str, Any]) -> None:
    arr = "actor_rollout_ref"
    strategy = lookup(raw, f"{arr}.actor.strategy")
    _refuse(
        strategy not in ("fsdp", "fsdp2"),
        f"{arr}.actor.strategy={strategy}",
        "verl-agent's Megatron actor has a loss of its own, in which no loss can be chosen and no entropy term added.",
        f"Set {arr}.actor.strategy=fsdp or fsdp2.",
    )
    for role in ("actor", "ref"):
        size = int(lookup(raw, f"{arr}.{role}.ulysses_sequence_parallel_size", 1))
        _refuse(
            size > 1,
            f"{arr}.{role}.ulysses_sequence_parallel_size={size}",
            "each rank then holds a part of every sequence, and logits, hidden states and counts would be those of the part.",
            f"Set {arr}.{role}.ulysses_sequence_parallel_size=1.",
        )
    _refuse(
        bool(lookup(raw, f"{arr}.model.use_fused_kernels", False)),
        f"{arr}.model.use_fused_kernels=True",
        f"verl-agent {COMMIT} imports verl.models.transformers.dense_common for it, which is not in its tree, and the fused head "
        "gives no logits.",
        f"Set {arr}.model.use_fused_kernels=False.",
    )
    _refuse(
        bool(lookup(raw, f"{arr}.rollout.multi_turn.enable", False)),
        f"{arr}.rollout.multi_turn.enable=True",
        "a row then holds several turns of verl's tool loop, and verl-entropy reads verl-agent's rows of one turn.",
        f"Set {arr}.rollout.multi_turn.enable=False; env.max_steps bounds the turns.",
    )


def _check_advantages(chosen: plan.Plan, raw: Mapping[str, Any]) -> None:
    if chosen.estimator is None and chosen.base not in ESTIMATORS:
        known = sorted({*ESTIMATORS, *registry.names("estimator"), *registry.names("transform")})
        raise ConfigError(f"algorithm.adv_estimator={chosen.base}: not known. Known: {', '.join(known)}.")
    if chosen.loss is None and chosen.loss_mode not in LOSSES:
        known = sorted({*LOSSES, *registry.names("loss"), *registry.names("clip")})
        raise ConfigError(f"{POLICY_LOSS_PATH}.loss_mode={chosen.loss_mode}: not known. Known: {', '.join(known)}.")
    _refuse(
        chosen.rollout is not None,
        f"algorithm.entropy.rollout={chosen.rollout.name if chosen.rollout else None}",
        "verl-agent samples its rollouts itself, each from the start.",
        "Leave it out (of AEPO, +entropy=aepo_update is the part without its rollout), or use verl's trainer with stepwise_env.",
    )
    checks.check_group_size(chosen, raw, "env.rollout.n", ROW_STATISTICS, "task")
    _refuse(
        bool(lookup(raw, "algorithm.use_pf_ppo", False)),
        "algorithm.use_pf_ppo=True",
        "it draws the rows anew after the advantages, and turns would be lost or doubled.",
        "Set algorithm.use_pf_ppo=False.",
    )
    ours = chosen.estimator is not None or bool(chosen.transforms) or chosen.head is not None
    _refuse(
        ours and bool(lookup(raw, "reward_model.enable", False)),
        "reward_model.enable=True",
        "a trajectory's score is read from the environment's return, which a reward model replaces row by row.",
        "Set reward_model.enable=False.",
    )


def _check_diagnostics(chosen: plan.Plan) -> None:
    s = chosen.diagnostics
    for event in ACTING:
        action = s.action_on(event)
        _refuse(
            s.enabled and action not in ("none", "warn"),
            f"{DIAGNOSTICS_PATH}.on_{event}={action}",
            "verl-agent's training loop can be neither stopped nor made to save from outside.",
            f"Set {DIAGNOSTICS_PATH}.on_{event}=warn.",
        )
    _refuse(
        s.enabled and s.run_file.folder is not None,
        f"{DIAGNOSTICS_PATH}.run_file.folder={s.run_file.folder}",
        "run files are written on the verl route only; here the metrics go to trainer.logger.",
        f"Leave {DIAGNOSTICS_PATH}.run_file.folder out.",
    )


def check(chosen: plan.Plan, raw: Mapping[str, Any]) -> None:
    """ConfigError on the first thing that would fail later or do nothing in silence."""
    _check_engine(raw)
    _check_advantages(chosen, raw)
    _check_diagnostics(chosen)
    # The rest is common to both routes; there the group size is rollout.n, which verl-agent keeps at 1.
    common = copy.deepcopy({k: raw[k] for k in ("algorithm", "actor_rollout_ref", "trainer") if k in raw})
    common["actor_rollout_ref"].setdefault("rollout", {})["n"] = max(int(lookup(raw, "env.rollout.n", 1)), 2)
    checks.check(chosen, common)


# ----------------------------------------------------------------------------- prepare


def prepare(config: DictConfig) -> plan.Plan | None:
    """Check ``config`` and make it one that verl-agent accepts; None, and nothing touched, if nothing of ours is chosen."""
    raw = _container(config)
    chosen = read_plan(raw)
    if not chosen.active:
        return None
    check(chosen, raw)
    actor = raw["actor_rollout_ref"]["actor"]
    heads = {m.name for m in registry.methods("head")} | ({chosen.head.name} if chosen.head is not None else set())
    kept = {
        "algorithm": {k: raw["algorithm"][k] for k in ("adv_estimator", "entropy") if k in raw["algorithm"]},
        "actor_rollout_ref": {"actor": {k: actor[k] for k in ("policy_loss", "head", *heads) if actor.get(k) is not None}},
    }
    with open_dict(config):
        config.actor_rollout_ref.actor[KEY] = {"chosen": kept, "penalty": penalty_of(raw)}
        # grpo: no critic, and none of the slow step returns of verl-agent's gigpo
        config.algorithm.adv_estimator = "grpo" if chosen.estimator is not None else chosen.base
        config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla" if chosen.loss is not None else chosen.loss_mode
    return chosen


def penalty_of(raw: Mapping[str, Any]) -> float:
    """Penalty of an invalid action, 0 where verl-agent takes none."""
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    return float(lookup(actor, "invalid_action_penalty_coef", 0.0)) if lookup(actor, "use_invalid_action_penalty", True) else 0.0


# ----------------------------------------------------------------------------- banner


def _coefficient(chosen: plan.Plan | None, raw: Mapping[str, Any], overrides: list[str]) -> str:
    value = float(lookup(raw, "actor_rollout_ref.actor.entropy_coeff", 0.0))
    line = f"effective entropy_coeff {value:g}"
    given = any(o.lstrip("+").startswith("actor_rollout_ref.actor.entropy_coeff=") for o in overrides)
    if value and not given:
        line += " (a default of verl-agent, not your setting: actor_rollout_ref.actor.entropy_coeff=0 switches it off)"
    if chosen is not None and chosen.regularizer is not None:
        return f"{line}, entropy term owned by {chosen.regularizer.name}"
    return line


def statistics(chosen: plan.Plan) -> str | None:
    """What the group statistics of the base run over; None where it has none."""
    if chosen.estimator is not None:
        kind = chosen.estimator.settings.statistics
        return (
            "rows, one per turn, copies counted, as verl-agent's code does" if kind == "row" else "trajectories, copies left out"
        )
    if chosen.base in ROW_STATISTICS:
        return "rows, one per turn, copies counted: long episodes weigh more (verl-agent's own)"
    return None


def banner(chosen: plan.Plan | None, config: DictConfig, overrides: list[str], order: list[str]) -> list[str]:
    """Lines that say what the run does about entropy; ``order`` are those of the order self-check."""
    raw = _container(config)
    head = f"verl-agent {COMMIT} (verl {VERSION}), {_coefficient(chosen, raw, overrides)}"
    if chosen is None:
        name = f"algorithm.adv_estimator={lookup(raw, 'algorithm.adv_estimator')}"
        return [head, f"nothing of verl-entropy is chosen ({name} is verl-agent's own): it runs as it is"]
    whose = "verl-entropy's" if chosen.estimator is not None else "verl-agent's own"
    over = statistics(chosen)
    lines = [head, f"base {chosen.base}: {whose}; " + (f"group statistics over {over}" if over else "no group statistics")]
    described = [line for line in chosen.describe() if not line.startswith("diagnostics:")]
    watched = "those of every step that need no text and no gradient" if chosen.diagnostics.enabled else "off"
    return [*lines, *described, f"diagnostics: {watched}", *hint(chosen), *order]


def hint(chosen: plan.Plan) -> list[str]:
    """Notes on settings that surprise."""
    if chosen.base == "gigpo" and chosen.estimator is None:
        return [f"note: adv_estimator=gigpo is verl-agent's own; +entropy=gigpo or +{ALGORITHM_PATH}.gigpo.* selects ours"]
    return []
