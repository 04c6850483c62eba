# SPDX-License-Identifier: Apache-2.0
"""What a plan needs from the rest of verl's configuration, checked before Ray starts. Works on plain mappings."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from verl_entropy.config import engines
from verl_entropy.config import settings as config
from verl_entropy.config.plan import Plan
from verl_entropy.config.settings import ALGORITHM_PATH, ConfigError, lookup
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS_PATH
from verl_entropy.methods import registry

UNCLIPPED = ("gpg", "sapo", "dro", "kl_cov")
"""Losses of verl that do not read ``clip_ratio_high``."""

# Estimators of verl whose advantage compares the rollouts of one prompt.
GROUP_BASES = ("grpo", "rloo", "opo", "grpo_passk", "gpg", "rloo_vectorized", "grpo_vectorized", "gdpo")


def _lora_rank(raw: Mapping[str, Any]) -> int:
    model = lookup(raw, "actor_rollout_ref.model", {})
    return int(lookup(model, "lora.rank", 0) or lookup(model, "lora_rank", 0) or 0)


def sequence_parallel(raw: Mapping[str, Any]) -> int:
    """Ranks that share a sequence in the actor."""
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    keys = ("fsdp_config.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size")
    return max(int(lookup(actor, key, 1) or 1) for key in keys)


def _check_presets(plan: Plan) -> None:
    taken: dict[str, str] = {}
    for name in plan.entropy.presets:
        kinds = [m.kind for m in registry.methods(name=name) if m.kind != "transform"]
        for kind in kinds:
            if kind in taken:
                raise ConfigError(f"+entropy=[{taken[kind]},{name}]: both set the {kind}, and a run has one. Choose one of them.")
            taken[kind] = name
    chosen = {c.name for c in plan.choices}
    for choice in plan.choices:
        for other, reason in choice.method.conflicts.items():
            if other in chosen:
                raise ConfigError(f"{choice.name} with {other}: {reason}.")


def _check_trainer(plan: Plan, raw: Mapping[str, Any]) -> None:
    if not lookup(raw, "trainer.use_v1", False):
        _check_ray_trainer(raw)
        if plan.rollout is not None:
            raise ConfigError(
                f"algorithm.entropy.rollout={plan.rollout.name}: verl's RayPPOTrainer hands its sessions to the agent loop without a place "
                "where they can wait for one another. Set trainer.use_v1=True (verl 0.9), or leave it out."
            )
    _check_engine(plan, raw)
    if lookup(raw, "distillation.enabled", False):
        raise ConfigError(
            "distillation.enabled=True: its loss replaces verl's ppo_loss, in which verl-entropy works and shows that it does. "
            "Set distillation.enabled=False, or choose nothing of verl-entropy."
        )


def _check_engine(plan: Plan, raw: Mapping[str, Any]) -> None:
    """The training engine gives what the chosen methods need of it."""
    strategy, vendor = lookup(raw, "actor_rollout_ref.actor.strategy"), os.environ.get("VERL_ENGINE_VENDOR")
    for name, need in engines.engine_needs(plan):
        says, known = f"{name} needs {engines.NEEDS[need]}", engines.offering(need)
        if strategy not in known:
            raise ConfigError(
                f"actor_rollout_ref.actor.strategy={strategy}: {says}, and verl-entropy has that with {' and '.join(known)} only. "
                f"Set actor_rollout_ref.actor.strategy={known[-1]}, or leave {name} out."
            )
        if not engines.adapted(strategy, vendor):
            raise ConfigError(
                f"VERL_ENGINE_VENDOR={vendor}: {says}, and that vendor's engine is not ours. Unset it, use one of "
                f"{', '.join(engines.VENDORS)}, or leave {name} out."
            )
    if lookup(raw, "actor_rollout_ref.actor.megatron.dynamic_context_parallel", False) and engines.loss_side(plan):
        raise ConfigError(
            "actor_rollout_ref.actor.megatron.dynamic_context_parallel=True: every rank then holds the whole mini-batch, so that counts "
            "over the ranks would take each row several times. Set it to False."
        )


def _check_ray_trainer(raw: Mapping[str, Any]) -> None:
    """What verl's RayPPOTrainer cannot do; only 0.7 has the first key, whose other workers have a loss and an engine of their own."""
    legacy = lookup(raw, "trainer.use_legacy_worker_impl", "disable")
    if legacy != "disable":
        raise ConfigError(
            f"trainer.use_legacy_worker_impl={legacy}: verl-entropy works in verl's engine workers, not in the older dp_actor. "
            "Set trainer.use_legacy_worker_impl=disable."
        )
    if "use_legacy_worker_impl" in lookup(raw, "trainer", {}) and not lookup(
        raw, "actor_rollout_ref.model.use_remove_padding", True
    ):
        raise ConfigError(
            "actor_rollout_ref.model.use_remove_padding=False: the engine workers of verl 0.7 mask padded rows by the response's length. "
            "Set actor_rollout_ref.model.use_remove_padding=True."
        )
    plane, neo = lookup(raw, "trainer.data_plane", "classic"), lookup(raw, "trainer.use_neoproto", False)
    if plane != "classic" or neo:
        raise ConfigError(
            f"trainer.data_plane={plane}, trainer.use_neoproto={neo}: this batch of verl's branch neo is references to columns kept "
            "elsewhere, and verl-entropy reads and writes columns. Set trainer.data_plane=classic and leave use_neoproto out."
        )
    if lookup(raw, "algorithm.use_pf_ppo", False):
        raise ConfigError(
            "algorithm.use_pf_ppo=True: it draws the rows anew after the advantages, and turns would be lost or doubled. "
            "Set algorithm.use_pf_ppo=False."
        )


def _check_advantages(plan: Plan, raw: Mapping[str, Any]) -> None:
    bypass = lookup(raw, "algorithm.rollout_correction.bypass_mode", False)
    entropy_users = [c.name for c in plan.choices if "entropy" in c.method.needs]
    if bypass and entropy_users:
        raise ConfigError(
            f"algorithm.rollout_correction.bypass_mode=True skips the old-log-prob pass, whose entropy {', '.join(entropy_users)} "
            "needs. Set algorithm.rollout_correction.bypass_mode=False."
        )
    check_group_size(plan, raw, "actor_rollout_ref.rollout.n", GROUP_BASES, "prompt")


def check_group_size(plan: Plan, raw: Mapping[str, Any], key: str, bases: Sequence[str], group: str) -> None:
    """Refuse one rollout per ``group`` where the base, if it is of ``bases``, or a method compares several."""
    n = int(lookup(raw, key, 1))
    users = [c.name for c in plan.choices if "group" in c.method.needs]
    if plan.base in bases and plan.base not in users:
        users.append(plan.base)
    if n < 2 and users:
        raise ConfigError(
            f"{key}={n}: {', '.join(users)} compares rollouts of one {group}, and a group of one has nothing to compare with. "
            f"Set {key}=8 (the papers' group size)."
        )


TOP_LOG_PROBS = ("hf",)
"""Samplers that give log-probs of other words than the sampled one; verl's vLLM and SGLang servers ask for that one alone."""
OWN_LOOPS = ("stepwise_env", "span_env", "tool_agent_branching")
VERL_LOOPS = ("single_turn_agent", "tool_agent")


def _check_rollout(plan: Plan, raw: Mapping[str, Any]) -> None:
    """A sampler and an agent loop that give what the chosen methods need of them."""
    rollout = lookup(raw, "actor_rollout_ref.rollout", {})
    users = {need: ", ".join(c.name for c in plan.choices if need in c.needs) for need in plan.needs}
    if "sampled" in users and not rollout.get("calculate_log_probs", False):
        raise ConfigError(
            f"actor_rollout_ref.rollout.calculate_log_probs={rollout.get('calculate_log_probs', False)}: the sampler then gives no "
            f"log-probs of its tokens, which {users['sampled']} needs. Set actor_rollout_ref.rollout.calculate_log_probs=True."
        )
    if "top_log_probs" in users and rollout.get("name") not in TOP_LOG_PROBS:
        setting = next(
            f"{c.method.path}.{name}" for c in plan.choices for name in c.method.needs_with if "top_log_probs" in c.needs
        )
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={rollout.get('name')}: verl's server gives the log-prob of the sampled token alone, and "
            f"{users['top_log_probs']} asks for those of the most likely words. Set {setting}=sampled, or rollout.name=hf (a CPU)."
        )
    loop = lookup(rollout, "agent.default_agent_loop")
    if "snapshot" in users and loop in VERL_LOOPS:
        raise ConfigError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop={loop}: verl's own loop cannot go on from another session's turn, so "
            f"{users['snapshot']} would do nothing. Set default_agent_loop="
            + ("tool_agent_branching." if loop == "tool_agent" else f"{' or '.join(OWN_LOOPS)}.")
        )
    if "top_log_probs" in users and loop == "tool_agent_branching":
        raise ConfigError(
            f"actor_rollout_ref.rollout.agent.default_agent_loop={loop}: verl's tool loop keeps the log-prob of the sampled token alone, and "
            f"{users['top_log_probs']} asks for those of the most likely words. Set its measure to sampled."
        )


def _check_loss(plan: Plan, raw: Mapping[str, Any]) -> None:
    coeff = float(lookup(raw, "actor_rollout_ref.actor.entropy_coeff", 0.0))
    if plan.regularizer is not None and coeff != 0.0:
        raise ConfigError(
            f"actor_rollout_ref.actor.entropy_coeff={coeff}: {config.POLICY_LOSS_PATH}.regularizer={plan.regularizer.name} owns "
            "the entropy term, and two would add up. Set actor_rollout_ref.actor.entropy_coeff=0."
        )
    if plan.entropy.log_probs == "verl" and "logits" in plan.needs:
        users = [c.name for c in plan.choices if "logits" in c.method.needs]
        raise ConfigError(
            f"{config.ALGORITHM_PATH}.log_probs=verl: {', '.join(users)} reads the logits in our pass. "
            f"Set {config.ALGORITHM_PATH}.log_probs=auto."
        )
    if plan.clip is not None and plan.loss_mode in UNCLIPPED:
        raise ConfigError(
            f"{config.POLICY_LOSS_PATH}.loss_mode={plan.loss_mode}: has no upper clip bound, which {plan.clip.name} moves, so it would "
            "do nothing. Set loss_mode=vanilla or gspo."
        )
    fused = lookup(raw, "actor_rollout_ref.model.use_fused_kernels", False)
    if fused and plan.entropy.log_probs == "chunked":
        raise ConfigError(
            f"{config.ALGORITHM_PATH}.log_probs=chunked: the fused head of actor_rollout_ref.model.use_fused_kernels=True gives no "
            "logits to it. Set one of them otherwise."
        )
    needs_logits = bool({"hidden", "grad_entropy", "logits"} & plan.needs)
    if fused and needs_logits:
        raise ConfigError(
            "actor_rollout_ref.model.use_fused_kernels=True: the fused head returns bf16 entropy and no logits or hidden "
            "states. Set actor_rollout_ref.model.use_fused_kernels=False."
        )


def _check_head(plan: Plan, raw: Mapping[str, Any]) -> None:
    if plan.head is None:
        return
    rank = _lora_rank(raw)
    if rank > 0:
        raise ConfigError(
            f"actor_rollout_ref.model.lora_rank={rank}: the head is not trained under LoRA yet (the adapter owns which "
            "parameters train and which are saved). Set actor_rollout_ref.model.lora_rank=0, or leave the head out."
        )
    sp = sequence_parallel(raw)
    if sp > 1:
        raise ConfigError(
            f"ulysses_sequence_parallel_size={sp}: the head reads whole sequences, and a shard has a part. Set it to 1."
        )


def _check_diagnostics(plan: Plan, raw: Mapping[str, Any]) -> None:
    s = plan.diagnostics
    if s.enabled and s.run_file.folder is not None and not s.run_file.folder.strip():
        raise ConfigError(f"{DIAGNOSTICS_PATH}.run_file.folder={s.run_file.folder!r}: give a folder, or null for none.")
    bypass = lookup(raw, "algorithm.rollout_correction.bypass_mode", False)
    asked = [event for event in ("eruption", "runaway", "collapse") if s.action_on(event) != "none"]
    if s.enabled and asked and bypass:
        raise ConfigError(
            f"{DIAGNOSTICS_PATH}.on_{asked[0]}={s.action_on(asked[0])}: the detector reads the entropy of the old-log-prob pass, which "
            "algorithm.rollout_correction.bypass_mode=True skips. Set one of them otherwise."
        )


def _check_bounds(plan: Plan) -> None:
    """Settings that must fit each other."""
    for choice in plan.choices:
        s, path = choice.settings, choice.method.path
        for low, high in choice.method.ordered:
            if getattr(s, low) > getattr(s, high):
                raise ConfigError(
                    f"{path}.{low}={getattr(s, low)}: above {high}={getattr(s, high)}. Set {low} to at most {high}."
                )
        if choice.method.bounded is None or not getattr(s, "adaptive", True):
            continue
        name, low, high = choice.method.bounded
        if not getattr(s, low) <= getattr(s, name) <= getattr(s, high):
            raise ConfigError(
                f"{path}.{name}={getattr(s, name)}: it is moved between {low}={getattr(s, low)} and {high}={getattr(s, high)}, and must "
                f"start there. Set {name} or the bounds" + (f", or {path}.adaptive=false." if hasattr(s, "adaptive") else ".")
            )


def _check_target(plan: Plan) -> None:
    """An entropy to hold: a number or a schedule, and one chosen method whose coefficient can follow it."""
    target, path = plan.entropy.target, f"{ALGORITHM_PATH}.target"
    if target is None:
        return
    if isinstance(target, list):
        points = [p for p in target if isinstance(p, list) and len(p) == 2 and all(type(v) in (int, float) for v in p)]
        if not target or len(points) < len(target) or any(not 0.0 < p[1] < math.inf for p in points):
            raise ConfigError(
                f"{path}={target}: a schedule is a list of [step, nats] with nats > 0. Write for example [[0,0.5],[100,0.2]]."
            )
        if any(a[0] >= b[0] for a, b in itertools.pairwise(points)):
            raise ConfigError(f"{path}={target}: the steps of a schedule must rise. Sort its points.")
    able = ", ".join(m.name for m in registry.methods() if m.hold is not None)
    holding = [c for c in plan.choices if c.method.hold is not None]
    if len(holding) != 1:
        found = (
            f"{', '.join(c.name for c in holding)} would pull at once; choose one"
            if holding
            else "no chosen method can follow it"
        )
        raise ConfigError(
            f"{path}={target}: {found}. One of {able} moves its coefficient for it, for example +entropy=[entropy_bonus]."
        )
    own = [c for c in plan.choices if getattr(c.settings, "target", None) is not None]
    if own:
        raise ConfigError(
            f"{path}={target}: {own[0].method.path}.target={own[0].settings.target} is another target. Set one of them to null."
        )


def check(plan: Plan, raw: Mapping[str, Any]) -> None:
    """Raise ConfigError on the first thing that would make the run fail later or do nothing in silence."""
    _check_presets(plan)
    _check_bounds(plan)
    _check_target(plan)
    _check_trainer(plan, raw)
    _check_advantages(plan, raw)
    _check_rollout(plan, raw)
    _check_loss(plan, raw)
    _check_head(plan, raw)
    _check_diagnostics(plan, raw)
