# SPDX-License-Identifier: Apache-2.0
"""Register our estimators and policy losses in verl, never over somebody else's name."""

from __future__ import annotations

from types import ModuleType

from verl_entropy.config import registry
from verl_entropy.hosts.install import patched
from verl_entropy.log import say

REFUSED: dict[str, str] = {}
"""Names we could not register, with who holds them."""


def _free(table: dict, name: str, kind: str) -> bool:
    holder = table.get(name)
    if holder is None:
        return True
    REFUSED[name] = f"{holder.__module__}.{holder.__qualname__}"
    say(f"{kind} {name} is already registered by {REFUSED[name]}, which stays; verl-entropy's cannot be chosen in this run")
    return False


def _estimator(name: str):
    # row_ids, entropy and old_log_probs come with patches/verl-0.9.1 only.
    def estimator(
        token_level_rewards, response_mask, config=None, index=None, row_ids=None, entropy=None, old_log_probs=None, **kwargs
    ):
        from verl_entropy.hosts.common import advantage_side, context

        if row_ids is not None and not context.has_advantage():
            given = {"config": config, "entropy": entropy, "old_log_probs": old_log_probs}
            return patched.advantages(name, token_level_rewards, response_mask, index, row_ids, **given)
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
