# SPDX-License-Identifier: Apache-2.0
"""The table of algorithms: one entry each, read by the validator, the command line, the README table and the glue.

Imports neither torch nor verl; ``function`` names the pure function, and ``glue`` the adapter that feeds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_entropy.config import settings as config

KINDS = ("estimator", "transform", "loss", "clip", "regularizer", "head")


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
    """What it reads: entropy (old-log-prob pass), group (several rollouts), anchor (observations), grad_entropy (entropy with
    gradient), logits (own pass over them), vocab_centre and nucleus (computed in that pass)."""
    order: int = 0
    """Position among transforms when the order is not given."""
    state: bool = False
    """Keeps state between steps (saved in the checkpoint)."""
    conflicts: tuple[tuple[str, str], ...] = ()
    """Names it cannot run with, each with the reason."""

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
            "transform": f"+{config.ALGORITHM_PATH}.transforms=[{self.name}]",
            "loss": f"{config.POLICY_LOSS_PATH}.loss_mode={self.name}",
            "clip": f"+{config.POLICY_LOSS_PATH}.clip_controller={self.name}",
            "regularizer": f"+{config.POLICY_LOSS_PATH}.regularizer={self.name}",
            "head": f"+{config.SEAL_PATH}.alpha=0.02",
        }[self.kind]


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "gigpo",
        "estimator",
        config.GiGPO,
        "verl_entropy.methods.estimators.gigpo.gigpo",
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
        "verl_entropy.methods.estimators.loop.loop",
        "leave-one-out baseline over trajectories, no division by the std",
        "an unbiased base for LOOP, DAPO and REPO",
        "negligible",
        "REPO paper, sec. 2 (RLOO)",
        frozenset({"group"}),
    ),
    Algorithm(
        "group_norm",
        "estimator",
        config.GroupNorm,
        "verl_entropy.methods.estimators.group_norm.group_norm",
        "GRPO or Dr.GRPO with statistics over trajectories or rows",
        "to compare with verl-agent, whose group statistics run over rows",
        "negligible",
        "arXiv 2402.03300; arXiv 2503.20783",
        frozenset({"group"}),
    ),
    Algorithm(
        "entrocraft",
        "transform",
        config.Entrocraft,
        "verl_entropy.methods.transforms.entrocraft.entrocraft",
        "rejects the experience that would push entropy further out of a scheduled range",
        "a stated course of entropy over training",
        "negligible; rejected tokens are lost",
        "arXiv 2604.26326",
        frozenset({"entropy"}),
        order=10,
        conflicts=(("entrocraft_switch", "both react to the same range; choose the paper's filter or the released switch"),),
    ),
    Algorithm(
        "entrocraft_switch",
        "transform",
        config.Entrocraft,
        "verl_entropy.methods.transforms.entrocraft.entrocraft_switch",
        "raw positive or raw negative rewards outside the range, the base inside (the released code)",
        "to reproduce Entrocraft's code; rewards must be +1 and -1",
        "negligible",
        "lblaoke/entrocraft @26165bd",
        frozenset({"entropy"}),
        order=10,
    ),
    Algorithm(
        "ea",
        "transform",
        config.EA,
        "verl_entropy.methods.transforms.ea.ea",
        "adds a bounded bonus for entropy to every token's advantage",
        "exploration at uncertain tokens, simple baseline",
        "a few ms per batch on the CPU",
        "arXiv 2506.14758",
        frozenset({"entropy"}),
        order=30,
    ),
    Algorithm(
        "aepo",
        "transform",
        config.AepoAdvantage,
        "verl_entropy.methods.transforms.aepo.aepo",
        "weights tokens by their standardised entropy",
        "together with the loss of the same name",
        "a few ms per batch on the CPU",
        "arXiv 2510.14545",
        frozenset({"entropy"}),
        order=35,
    ),
    Algorithm(
        "repo_r",
        "transform",
        config.RepoR,
        "verl_entropy.methods.transforms.repo_r.repo_r",
        "boosts rare good actions; the coefficient follows the entropy of the first iteration",
        "entropy falls steadily; any base and clip",
        "a few ms per batch on the CPU",
        "REPO paper, sec. 4",
        frozenset({"entropy"}),
        order=40,
        state=True,
        conflicts=(("repo_d", "both would correct the same drift of entropy; choose one"),),
    ),
    Algorithm(
        "repo_d",
        "transform",
        config.RepoD,
        "verl_entropy.methods.transforms.repo_d.repo_d",
        "subtracts the centred log-probability in proportion to the predicted loss of entropy",
        "as repo_r, with a correction on every token",
        "a few ms per batch on the CPU",
        "REPO paper, sec. 4 and Cor. 1",
        frozenset({"entropy"}),
        order=45,
        state=True,
    ),
    Algorithm(
        "aem",
        "transform",
        config.AEM,
        "verl_entropy.methods.transforms.aem.aem",
        "weights each turn's advantage by its relative entropy inside the prompt group",
        "entropy collapses early or never comes down; any base estimator",
        "a few ms per batch on the CPU, no extra forward pass",
        "arXiv 2605.00425, Eqs. 13-15",
        frozenset({"entropy", "group"}),
        order=50,
    ),
    Algorithm(
        "clip_b",
        "transform",
        config.ClipB,
        "verl_entropy.methods.transforms.clip_b.clip_b",
        "drops the tokens whose update would move entropy most, centred on the batch",
        "rare tokens cause the swings",
        "a few ms per batch on the CPU",
        "arXiv 2602.03392",
        frozenset({"entropy"}),
        order=60,
    ),
    Algorithm(
        "clip_v",
        "transform",
        config.ClipV,
        "verl_entropy.methods.transforms.clip_v.clip_v",
        "as clip_b, centred on the policy's own expectation",
        "rare tokens cause the swings; sampler and trainer differ",
        "one more reduction over the logits in the old-log-prob pass",
        "arXiv 2602.03392, Thm 3.3",
        frozenset({"entropy", "logits", "vocab_centre"}),
        order=65,
    ),
    Algorithm(
        "steer",
        "loss",
        config.Steer,
        "verl_entropy.methods.losses.steer.steer",
        "clipped loss, weighted down where the update would move entropy most",
        "entropy collapses through few tokens",
        "none measurable",
        "arXiv 2510.10150; zz-haooo/STEER @b31df71",
        frozenset({"entropy"}),
    ),
    Algorithm(
        "aepo",
        "loss",
        config.AepoLoss,
        "verl_entropy.methods.losses.aepo.aepo",
        "PPO's value, but the gradient of good tokens above the clip bound is kept, bounded",
        "clip-higher loses the gradient of exploring tokens",
        "none measurable",
        "arXiv 2510.14545",
    ),
    Algorithm(
        "adapo",
        "clip",
        config.Adapo,
        "verl_entropy.methods.controllers.TargetEntropyController",
        "moves the upper clip bound of any loss towards the entropy of the first iteration",
        "DAPO's clip-higher drives entropy too high or not enough",
        "none",
        "REPO paper, App. B",
        frozenset({"entropy"}),
        state=True,
    ),
    Algorithm(
        "entropy_bonus",
        "regularizer",
        config.EntropyBonus,
        "verl_entropy.methods.regularizers.entropy_bonus.entropy_bonus",
        "plain entropy bonus, or with the adaptive coefficient of REPO's baseline",
        "baseline",
        "entropy with gradient",
        "REPO paper, sec. 5 (H bonus)",
        frozenset({"entropy", "grad_entropy"}),
        state=True,
    ),
    Algorithm(
        "siren",
        "regularizer",
        config.Siren,
        "verl_entropy.methods.regularizers.siren.siren_surrogate",
        "holds the nucleus entropy of each response's peaks at its first value",
        "a bonus raises the entropy of all tokens, not of the decisive ones",
        "one sort of the vocabulary per response token and pass",
        "Linn3a/siren @fa59a8d",
        frozenset({"entropy", "logits", "nucleus"}),
        state=True,
    ),
    Algorithm(
        "epo",
        "regularizer",
        config.EPO,
        "verl_entropy.methods.regularizers.epo.epo_regularizer",
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
        "verl_entropy.methods.heads.seal_loss.seal_loss",
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
