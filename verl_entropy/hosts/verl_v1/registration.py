# SPDX-License-Identifier: Apache-2.0
"""Register our estimators and policy losses in verl, never over somebody else's name."""

from __future__ import annotations

from types import ModuleType

from verl_entropy.config import registry
from verl_entropy.log import say

REFUSED: dict[str, str] = {}
"""Names we could not register, with who holds them."""


def _free(table: dict, name: str, kind: str) -> bool:
    holder = table.get(name)
    if holder is None:
        return True
    REFUSED[name] = f"{holder.__module__}.{holder.__qualname__}"
    say(f"{kind} {name} is taken by {REFUSED[name]}; it is left as it is, and ours is not available under that name")
    return False


def _estimator(name: str):
    def estimator(token_level_rewards, response_mask, config=None, index=None, **kwargs):
        from verl_entropy.hosts.common import advantage_side, context

        advantages_RT = advantage_side.estimate(name, context.advantage())
        return advantages_RT, advantages_RT

    estimator.__name__ = estimator.__qualname__ = f"verl_entropy_{name}"
    return estimator


def register(core_algos: ModuleType) -> None:
    """Register everything of the table in ``verl.trainer.ppo.core_algos``."""
    for name in registry.names("estimator"):
        if _free(core_algos.ADV_ESTIMATOR_REGISTRY, name, "advantage estimator"):
            core_algos.register_adv_est(name)(_estimator(name))
    for name in registry.names("loss"):
        if _free(core_algos.POLICY_LOSS_REGISTRY, name, "policy loss"):
            from verl_entropy.hosts.common import loss_side

            core_algos.register_policy_loss(name)(loss_side.policy_loss(name))
