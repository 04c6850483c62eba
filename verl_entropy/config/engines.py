# SPDX-License-Identifier: Apache-2.0
"""What a method needs of a training engine, and which engines of verl give it. Imports neither torch nor verl.

Log-probs, the columns of the batch, the entropy of the old-log-prob pass, counts over the mini-batch and a mask of the actor's own are
there with any engine that verl's trainer runs (``hosts/verl_engine/counts.py``). The rest is what an adapter of ours offers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_entropy.config import settings as config

if TYPE_CHECKING:  # the plan brings numpy, which a command that prints text does without
    from verl_entropy.config.plan import Plan
    from verl_entropy.methods.method import Method

NEEDS = {
    "hidden": "the model's hidden states",
    "grad_entropy": "entropy with its gradient",
    "logits": "a log-prob pass of verl-entropy's, which reads the logits",
}
"""Of ``Method.needs``, what verl's own engines do not give."""

ADAPTERS = {"fsdp": frozenset(NEEDS), "fsdp2": frozenset(NEEDS)}
"""What our engine for this ``actor.strategy`` offers (``hosts/verl_engine/engine.py``)."""

VENDORS = ("nvidia", "amd", "cpu")
"""Vendor names under which our engine is registered (verl's platforms of device cuda, and our cpu)."""


def engine_need(method: Method) -> str | None:
    """The key of ``NEEDS`` that the method has; None: any engine of verl will do."""
    asked = method.needs | ({"hidden"} if method.kind == "head" else set())
    return next((need for need in NEEDS if need in asked), None)


def engine_needs(plan: Plan) -> list[tuple[str, str]]:
    """(method or key, key of ``NEEDS``) of a plan; empty where any engine of verl will do."""
    found = [(choice.name, need) for choice in plan.choices if (need := engine_need(choice.method)) is not None]
    if plan.entropy.log_probs == "chunked":
        found.append((f"{config.ALGORITHM_PATH}.log_probs=chunked", "logits"))
    return found


def offering(need: str) -> list[str]:
    """The strategies whose engine of ours offers ``need``."""
    return [strategy for strategy, offers in ADAPTERS.items() if need in offers]


def where(method: Method) -> str:
    """The engines of verl that give the method what it needs, in words."""
    need = engine_need(method)
    return "every engine and sampler that verl's trainer runs" if need is None else ", ".join(offering(need))


def adapted(strategy: Any, vendor: str | None) -> bool:
    """Whether the training engine of this strategy is ours; ``vendor``: VERL_ENGINE_VENDOR, if set."""
    return strategy in ADAPTERS and (not vendor or vendor in VENDORS)


def loss_side(plan: Plan) -> bool:
    """Whether the plan does anything in the training workers."""
    drops = plan.drops_groups or any(c.method.drops_with(c.settings) for c in plan.choices)
    return bool(plan.head or plan.regularizer or plan.loss or plan.clip or drops or engine_needs(plan))
