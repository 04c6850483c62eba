# SPDX-License-Identifier: Apache-2.0
"""Register our estimators and policy losses in verl, never over somebody else's name."""

from __future__ import annotations

from types import ModuleType

from verl_entropy.config.plan import Plan
from verl_entropy.log import say
from verl_entropy.methods import registry

REFUSED: dict[str, str] = {}
"""Names we could not register, with who holds them."""


def _free(table: dict, name: str, kind: str) -> bool:
    holder = table.get(name)
    if holder is None:
        return True
    if holder.__module__.split(".")[0] == __package__.split(".")[0]:
        return False  # ours, registered before
    REFUSED[name] = f"{holder.__module__}.{holder.__qualname__}"
    say(f"{kind} {name} is already registered by {REFUSED[name]}, which stays; verl-entropy's cannot be chosen in this run")
    return False


def _estimator(name: str):
    def estimator(token_level_rewards, response_mask, config=None, index=None, **kwargs):
        from verl_entropy.hosts.common import advantage_side, context

        advantages_RT = advantage_side.estimate(context.advantage())
        return advantages_RT, advantages_RT

    estimator.__name__ = estimator.__qualname__ = f"verl_entropy_{name}"
    return estimator


def register(core_algos: ModuleType) -> None:
    """Register the registry's estimators and losses in ``verl.trainer.ppo.core_algos``."""
    for name in registry.names("estimator"):
        _register_estimator(core_algos, name)
    for name in registry.names("loss"):
        _register_loss(core_algos, name)


def register_outside(core_algos: ModuleType, chosen: Plan) -> None:
    """Register the estimator and the loss that the plan names as pkg.mod:NAME, under those words."""
    if chosen.estimator is not None and chosen.estimator.method.chosen_as:
        _register_estimator(core_algos, chosen.estimator.method.word)
    if chosen.loss is not None and chosen.loss.method.chosen_as:
        _register_loss(core_algos, chosen.loss.method.word)


def _register_estimator(core_algos: ModuleType, name: str) -> None:
    if _free(core_algos.ADV_ESTIMATOR_REGISTRY, name, "advantage estimator"):
        core_algos.register_adv_est(name)(_estimator(name))


def _register_loss(core_algos: ModuleType, name: str) -> None:
    if _free(core_algos.POLICY_LOSS_REGISTRY, name, "policy loss"):
        from verl_entropy.hosts.common import loss_side

        core_algos.register_policy_loss(name)(loss_side.policy_loss(name))
