# SPDX-License-Identifier: Apache-2.0
"""The table of algorithms: one entry each, read by the validator, the command line, the README table and the glue.

Imports neither torch nor verl; ``function`` names the pure function, and ``glue`` the adapter that feeds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_entropy import config

KINDS = ("estimator", "transform", "loss", "regularizer", "head")


@dataclass(frozen=True)
class Algorithm:
    """One selectable method."""

    name: str
    kind: str
    settings: type
    function: str
    summary: str
    when: str
    cost: str
    source: str
    needs: frozenset[str] = frozenset()
    """What it reads: entropy (old-log-prob pass), group (more than one rollout), anchor (observations), grad_entropy, logits."""
    order: int = 0
    """Position among transforms when the order is not given."""
    state: bool = False
    """Keeps state between steps (saved in the checkpoint)."""

    @property
    def path(self) -> str:
        """Configuration path of the settings."""
        if self.kind in ("estimator", "transform"):
            return f"{config.ALGORITHM_PATH}.{self.name}"
        if self.kind == "head":
            return config.SEAL_PATH
        return f"{config.POLICY_LOSS_PATH}.{self.name}"

    @property
    def key(self) -> str:
        """The override that selects it."""
        return {
            "estimator": f"algorithm.adv_estimator={self.name}",
            "transform": f"{config.ALGORITHM_PATH}.transforms=[{self.name}]",
            "loss": f"{config.POLICY_LOSS_PATH}.loss_mode={self.name}",
            "regularizer": f"{config.POLICY_LOSS_PATH}.regularizer={self.name}",
            "head": f"{config.SEAL_PATH}.alpha=0.02",
        }[self.kind]


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "gigpo",
        "estimator",
        config.GiGPO,
        "verl_entropy.estimators.gigpo.gigpo",
        "episode advantage plus step advantage among turns that saw the same observation",
        "long episodes with sparse rewards whose states recur",
        "a few ms per batch on the CPU",
        "arXiv 2505.10978, Eqs. 3-8",
        frozenset({"group", "anchor"}),
    ),
    Algorithm(
        "loop",
        "estimator",
        config.Loop,
        "verl_entropy.estimators.loop.loop",
        "leave-one-out baseline over trajectories, no division by the std",
        "an unbiased base for LOOP, DAPO and REPO",
        "negligible",
        "REPO paper, sec. 2 (RLOO)",
        frozenset({"group"}),
    ),
    Algorithm(
        "aem",
        "transform",
        config.AEM,
        "verl_entropy.transforms.aem.aem",
        "weights each turn's advantage by its relative entropy inside the prompt group",
        "entropy collapses early or never comes down; any base estimator",
        "a few ms per batch on the CPU, no extra forward pass",
        "arXiv 2605.00425, Eqs. 13-15",
        frozenset({"entropy", "group"}),
        order=50,
    ),
    Algorithm(
        "epo",
        "regularizer",
        config.EPO,
        "verl_entropy.regularizers.epo.epo_regularizer",
        "entropy bonus plus a penalty for leaving a corridor around the entropy of earlier steps",
        "entropy of early turns runs away and late turns oscillate",
        "entropy with gradient; no further tensor of vocabulary size",
        "arXiv 2509.22576, Eqs. 4-7",
        frozenset({"entropy", "grad_entropy"}),
        state=True,
    ),
    Algorithm(
        "seal",
        "head",
        config.Seal,
        "verl_entropy.seal.loss.seal_loss",
        "auxiliary classifier that separates the representations of successful and failed trajectories",
        "entropy erupts in cycles, valid-action ratio and likelihood of correct trajectories fall",
        "under 1 % of the actor update; three d x d layers of parameters",
        "arXiv 2605.27954, Eq. 3",
    ),
)


def names(kind: str) -> list[str]:
    """Names of all algorithms of one kind."""
    return [a.name for a in ALGORITHMS if a.kind == kind]


def get(kind: str, name: str) -> Algorithm:
    """The algorithm ``name`` of ``kind``; ConfigError with what there is otherwise."""
    for algorithm in ALGORITHMS:
        if algorithm.kind == kind and algorithm.name == name:
            return algorithm
    raise config.ConfigError(f"{kind} {name!r} is unknown. Known: {', '.join(names(kind)) or 'none'}.")
