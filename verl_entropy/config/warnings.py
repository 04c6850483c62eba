# SPDX-License-Identifier: Apache-2.0
"""What a configuration allows but a user should know: precision, memory, and numbers that mean something else than they seem to.

What would make a run fail or do nothing is refused by ``checks``. Works on plain mappings; imports neither torch nor verl.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_entropy.config import memory, presets, startup
from verl_entropy.config.plan import Plan
from verl_entropy.config.settings import lookup


def _precision(plan: Plan, raw: Mapping[str, Any]) -> Iterator[str]:
    actor = "actor_rollout_ref.actor"
    if lookup(raw, "actor_rollout_ref.model.use_fused_kernels", False):
        backend = lookup(raw, "actor_rollout_ref.model.fused_kernel_options.impl_backend", "torch")
        if backend != "triton":
            yield (
                f"actor_rollout_ref.model.use_fused_kernels=True ({backend} backend): entropy comes out in bf16, rounded by up to "
                "0.4 %. Set fused_kernel_options.impl_backend=triton, or use_fused_kernels=False."
            )
    param = memory.param_dtype(raw)
    if param == "fp16":
        yield f"{actor}.fsdp_config.mixed_precision.param_dtype={param}: logits beyond 65504 overflow; entropy and log-probs are fp32."
    rollout = str(lookup(raw, "actor_rollout_ref.rollout.dtype", "bfloat16"))
    rollout = memory.DTYPES.get(rollout, rollout)
    if rollout not in (param, "auto"):
        yield (
            f"actor_rollout_ref.rollout.dtype={rollout}, but the trainer computes in {param}: the policy that samples is not the one "
            "that is trained. Make them equal, or watch training/rollout_probs_diff_mean."
        )


def _memory(plan: Plan, raw: Mapping[str, Any], has_flash: bool) -> Iterator[str]:
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    with_gradient = "grad_entropy" in plan.needs or float(actor.get("entropy_coeff") or 0.0) != 0.0
    path = memory.path_of(raw, plan.entropy.log_probs, has_flash)
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    if with_gradient and path in ("eager", "rows_chunked"):
        chunks = ", and chunking does not lower what training keeps" if path == "rows_chunked" else ""
        yield (
            f"entropy with gradient on verl's eager path keeps 8 bytes per token and word of the vocabulary{chunks}. "
            f"Set +algorithm.entropy.log_probs=chunked, or {fsdp}.use_torch_compile=True with use_remove_padding=True."
        )
    if path not in ("chunked", memory.OTHER, *memory.WITHOUT_LOGITS) and not has_flash:
        yield (
            "algorithm.entropy.log_probs=verl without flash-attn: verl computes log-probs in a Python loop over tokens. "
            "Set algorithm.entropy.log_probs=auto."
        )


def _meaning(plan: Plan, raw: Mapping[str, Any]) -> Iterator[str]:
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    coeff = float(actor.get("entropy_coeff") or 0.0)
    controls = [c.name for c in plan.choices if c.method.steers]
    if coeff != 0.0 and controls:
        yield (
            f"actor_rollout_ref.actor.entropy_coeff={coeff}: verl's own bonus pushes beside {', '.join(controls)}, which steers "
            "entropy itself. Set it to 0."
        )
    rollout = lookup(raw, "actor_rollout_ref.rollout", {})
    top_p, top_k = float(rollout.get("top_p") or 1.0), int(rollout.get("top_k") or -1)
    if top_p < 1.0 or top_k > 0:
        yield (
            f"rollout.top_p={top_p:g}, top_k={top_k}: the sampler draws from a cut distribution, but entropy and log-probs are of "
            "the whole one. Set top_p=1 and top_k=-1."
        )
    epochs = int(actor.get("ppo_epochs") or 1)
    if epochs > 1 and "entropy" in plan.needs:
        yield f"actor.ppo_epochs={epochs}: entropies of the old-log-prob pass are reused in every epoch, further off each time."
    steered = [c.name for c in plan.choices if c.method.state is not None and (c.method.steers or c is plan.regularizer)]
    if len(steered) > 1:
        yield f"{', '.join(steered)} each steer entropy by a history of their own; check that their targets agree."


def _setting(plan: Plan, raw: Mapping[str, Any]) -> Iterator[str]:
    for path in plan.unused:
        yield f"{path} is set, but that method is not chosen, so it does nothing. Choose the method, or remove the section."
    mode = lookup(raw, "trainer.v1.trainer_mode")
    if mode == "separate_async" and plan.active:
        yield "trainer.v1.trainer_mode=separate_async: the same code path as the other modes, but not run in this package's tests."
    anchored = [c.name for c in plan.choices if "anchor" in c.method.needs]
    if anchored and lookup(raw, "actor_rollout_ref.rollout.agent.default_agent_loop") == "single_turn_agent":
        yield (
            f"{anchored[0]} compares turns by their observations, and rollout.agent.default_agent_loop=single_turn_agent gives none: unless the "
            "data set names another loop, the first step fails. Set default_agent_loop=stepwise_env (or span_env) and +data.env.name."
        )
    for name, key, value, now, other in presets.replaced(plan.presets, raw):
        if other is not None and key != "algorithm.adv_estimator":
            yield (
                f"{key}={now}: preset {name} sets {value} for its paper's method, and {other}, which comes after it, replaces that. Put "
                f"{name} last in +entropy=[...], or set {key} to what is meant."
            )
    if not plan.active:
        yield "nothing of verl-entropy is chosen: verl runs as it is. Choose for example +entropy=[gigpo,aem]."


def risks(plan: Plan, raw: Mapping[str, Any], has_flash: bool) -> list[str]:
    """One sentence or two each: what to know and what to do about it."""
    found = (
        _setting(plan, raw),
        startup.odd(plan, raw),
        _meaning(plan, raw),
        _precision(plan, raw),
        _memory(plan, raw, has_flash),
    )
    return [text for part in found for text in part]
