# SPDX-License-Identifier: Apache-2.0
"""What is compared: worlds, their regimes, methods. A run is one of each and a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "recipes/bench/results"
QUICKSTART = ROOT / "verl_entropy/quickstart/grpo.json"
"""Plain GRPO in the healthy household, which the quickstart shows."""
MODEL = "VERL_ENTROPY_BENCH_MODEL"
"""Environment variable with the folder of the pretrained model that worlds on a card train; --model sets it."""
TUNING_SEEDS = 100
"""Regimes are chosen on seeds from here up; what is reported has lower ones."""


@dataclass(frozen=True)
class Method:
    """Presets of this package, settings of verl, or both, added to plain GRPO."""

    title: str
    presets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """``{held}`` in one is the world's ``held``."""
    filtered: bool = False
    """Its training success is that of the groups it kept: held-out success alone compares with other methods."""


_ACTOR = "actor_rollout_ref.actor"
_NO_STD, _NO_PENALTY = "algorithm.norm_adv_by_std_in_grpo=False", "+data.env.invalid_action_penalty=0"
_KL_LOSS = (f"{_ACTOR}.use_kl_loss=True", f"{_ACTOR}.kl_loss_coef=0.01", f"{_ACTOR}.kl_loss_type=low_var_kl")
BASE = "none"
METHODS = {
    BASE: Method("GRPO"),
    "dr_grpo": Method("GRPO, not divided by the std (Dr. GRPO)", overrides=(_NO_STD,)),
    "no_penalty": Method("GRPO, no penalty for invalid actions", overrides=(_NO_PENALTY,)),
    "dr_grpo-no_penalty": Method("Dr. GRPO, no penalty for invalid actions", overrides=(_NO_STD, _NO_PENALTY)),
    "kl": Method("GRPO, KL loss to the first policy", overrides=_KL_LOSS),
    "adam_beta2": Method("GRPO, Adam with beta2 .95", overrides=(f"{_ACTOR}.optim.betas=[0.9,0.95]",)),
    "dynamic_sampling": Method(
        "GRPO, dynamic sampling by success (DAPO)",
        overrides=("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"),
        filtered=True,
    ),
    "drop_by_success": Method(
        "GRPO, groups that succeed or fail as one left out", overrides=("+algorithm.entropy.equal_returns=drop_by_success",)
    ),
    "gigpo": Method("GiGPO", ("gigpo",)),
    "clip_higher": Method("clip-higher (DAPO)", overrides=(f"{_ACTOR}.clip_ratio_high=0.28",)),
    "clip_cov": Method("Clip-Cov (verl)", overrides=(f"{_ACTOR}.policy_loss.loss_mode=clip_cov",)),
    "kl_cov": Method("KL-Cov (verl)", overrides=(f"{_ACTOR}.policy_loss.loss_mode=kl_cov",)),
    "entropy_bonus": Method("entropy bonus, constant", ("entropy_bonus",)),
    "entropy_bonus_adaptive": Method("entropy bonus, adaptive", ("entropy_bonus_adaptive",)),
    "epo": Method("EPO", ("epo",)),
    "aem": Method("AEM", ("aem",)),
    "seal": Method("SEAL", ("seal",)),
    "repo_r": Method("REPO-R", ("repo_r",)),
    "repo_d": Method("REPO-D", ("repo_d",)),
    "adapo": Method("ADAPO", ("adapo",)),
    "steer": Method("STEER", ("steer",)),
    "entrocraft": Method("Entrocraft", ("entrocraft",)),
    "clip_b": Method("Clip_B", ("clip_b",)),
    "clip_v": Method("Clip_V", ("clip_v",)),
    "siren": Method("SIREN", ("siren",)),
    "aepo": Method("AEPO", ("aepo_update",)),
    "ea": Method("EA", ("ea",)),
    "held_bonus": Method("entropy held, by the bonus", ("entropy_bonus",), ("+algorithm.entropy.target={held}",)),
    "held_entropic": Method("entropy held, by EntroPIC's weights", ("entropic",), ("+algorithm.entropy.target={held}",)),
    "arpo": Method("branching rollouts (ARPO), 4 roots of 8", ("arpo",)),
    "arpo_2": Method("branching rollouts (ARPO), 2 roots of 8", ("arpo",), ("algorithm.entropy.branching.roots=2",)),
    "gigpo-aem": Method("GiGPO + AEM", ("gigpo", "aem")),
    "gigpo-seal": Method("GiGPO + SEAL", ("gigpo", "seal")),
    "gigpo-aem-seal": Method("GiGPO + AEM + SEAL", ("gigpo", "aem", "seal")),
    "gigpo-aem-seal-kl": Method("GiGPO + AEM + SEAL, KL loss to the first policy", ("gigpo", "aem", "seal"), _KL_LOSS),
    "gigpo_mean-aem-seal": Method(
        "GiGPO, not divided by the std, + AEM + SEAL", ("gigpo", "aem", "seal"), ("algorithm.entropy.gigpo.norm=mean",)
    ),
}


@dataclass(frozen=True)
class Regime:
    """Settings under which every method is trained."""

    steps: int
    overrides: tuple[str, ...]
    why: str
    """What it is, for the page."""
    candidate: bool = False
    """Tried on tuning seeds only."""


def _at(rate: str, steps: int, more: str = "", *, candidate: bool = False) -> Regime:
    """A regime that is a learning rate; ``more`` follows it in the regime's ``why``."""
    return Regime(steps, (f"{_ACTOR}.optim.lr={rate}",), f"learning rate {rate}{more}", candidate)


def _rates(steps: int, *rates: str) -> dict[str, Regime]:
    """Candidates for regimes: plain GRPO at these learning rates."""
    return {f"rate_{rate}": _at(rate, steps, candidate=True) for rate in rates}


@dataclass(frozen=True)
class World:
    """Where the agent acts. ``module`` has ``prepare(folder, seed)`` and ``words(folder, seed, run, steps, presets)``."""

    title: str
    module: str
    metric: str
    """Key of a split's success in verl's metrics."""
    episodes: int
    """Held-out episodes of each split."""
    text: str
    held: float
    """Entropy in nats that methods with a target hold: about that of the first steps."""
    splits: tuple[str, ...] = ("dev", "test")
    """Held-out splits; held-out success is their mean."""
    validations: int = 1
    """Of the training: at the end, and 2: in the middle, too; one more is made before it."""
    card: bool = False
    """Trains a pretrained model on a card, with vLLM."""
    threads: int = 600
    """Of one run under Ray, all of its processes together."""
    memory: int = 4
    """GB of one run, all of its processes together."""
    regimes: dict[str, Regime] = field(default_factory=dict)


WORLDS = {
    "household": World(
        title="household",
        module="bench.household",
        splits=("seen", "unseen"),
        validations=2,
        metric="val-core/household/{split}/acc/mean@1",
        episodes=128,
        held=0.15,
        text="The quickstart's world: a Llama of 0.2 M parameters, warm-started for each seed on turns of a noisy expert; 8 groups of 8 "
        "episodes a step, up to 8 turns each, about six updates a step. Training tasks never repeat; held out are new tasks in "
        "known houses (seen) and unknown houses (unseen).",
        regimes={
            "healthy": _at("1e-4", 30),
            "unstable": _at("6e-4", 60, ", the lowest at which GRPO learned and lost it again on both tuning seeds"),
            **_rates(60, "4e-4", "6e-4", "1e-3"),
        },
    ),
    "household_easy": World(
        title="larger household",
        module="bench.household_easy",
        splits=("seen", "unseen"),
        metric="val-core/household_easy/{split}/acc/mean@1",
        episodes=320,
        held=0.15,
        text="The household in its second size (`difficulty=easy`): a kitchen, a bedroom or a living room with four to seven receptacles, all "
        "six families of tasks, up to 12 turns; its receptacles stand in the prompt. The household's model and step size (8 groups of "
        "8 episodes). Held out are new tasks in known rooms (seen) and unknown rooms (unseen).",
        regimes=_rates(60, "1e-4", "3e-4", "6e-4"),
    ),
    "frozen_lake": World(
        title="frozen lake",
        module="bench.frozen_lake",
        metric="val-core/frozen_lake/{split}/acc/mean@1",
        episodes=320,
        held=0.5,
        text="Gymnasium's FrozenLake as text, a new 4 x 4 map every episode (a quarter holes, no slipping, up to 10 moves); the household's "
        "model and step size (8 groups of 8 episodes), thoughts of several wordings. Held out: maps that no training episode has.",
        regimes={
            "healthy": _at("3e-4", 60, ", at which GRPO learned nearly all on the tuning seeds"),
            "unstable": _at("1e-3", 60, ", at which GRPO learned and lost two fifths or all of it on the tuning seeds"),
            **_rates(60, "3e-4", "1e-3", "3e-3"),
        },
    ),
    "bandit": World(
        title="bandit",
        module="bench.bandit",
        metric="val-core/bandit/{split}/acc/mean@1",
        episodes=640,
        held=0.5,
        text="A two-armed bandit in the manner of RAGEN's: a safe arm pays .15, a bold one 1 in a quarter of all pulls, and success is to pull "
        "the bold one, whatever it paid; one pull an episode, 16 groups of 16 episodes a step, the rollouts of a group share their luck.",
        regimes={
            "unstable": _at(
                "3e-4",
                60,
                "; GRPO went to the safe arm at every rate tried, for in three groups of four the bold one paid nothing, and the "
                "division by the group's standard deviation lets the fourth count no more",
            ),
            **_rates(60, "3e-4", "1e-3", "3e-3"),
        },
    ),
    "sokoban": World(
        title="Sokoban",
        module="bench.sokoban",
        metric="val-core/sokoban/{split}/acc/mean@1",
        episodes=320,
        held=0.5,
        text="Sokoban as text, in the manner of RAGEN's: one box in a new 4 x 4 room with two walls, solved in 2 to 5 moves at the "
        "shortest, up to 10 moves; a box in a corner stays there. All else as in the frozen lake. Held out: rooms that no training "
        "episode has.",
        regimes={
            "healthy": _at("1e-4", 60, ", the only one tried at which GRPO learned on the tuning seeds (.05 and .11 held out)"),
            "unstable": _at(
                "1e-3", 60, ", at which GRPO lost on the tuning seeds all that the warm start had, within seven steps"
            ),
            **_rates(60, "1e-4", "3e-4", "1e-3"),
        },
    ),
    "frozen_lake_card": World(
        title="frozen lake, SmolLM2 on a card",
        module="bench.frozen_lake_card",
        metric="val-core/frozen_lake/{split}/acc/mean@1",
        episodes=256,
        held=0.25,
        text="The frozen lake for SmolLM2-135M-Instruct on a card that some runs share (FSDP2 in bf16, vLLM), warm-started for each seed on "
        "turns of the noisy expert; all else as in the lake on a CPU.",
        card=True,
        memory=12,
        regimes={
            "healthy": _at("1e-5", 40),
            "between": _at(
                "2e-5", 40, ", at which GRPO lost five sixths of its success on the tuning seed and won half of it back"
            ),
            "unstable": _at("3e-5", 40, ", the lowest at which GRPO learned and lost all on the tuning seed"),
            **_rates(40, "3e-6", "1e-5", "2e-5", "3e-5", "5e-5", "1e-4"),
        },
    ),
    "textworld_express_card": World(
        title="TextWorldExpress, SmolLM2 on a card",
        module="bench.textworld_express_card",
        metric="val-core/textworld_express/{split}/acc/mean@1",
        episodes=256,
        held=0.25,
        text="Two games of TextWorldExpress for SmolLM2-135M-Instruct (FSDP2 in bf16, vLLM): one object is brought to its usual place (twc), "
        "or a coin from another room into a box (mapreader); up to 12 turns, admissible actions in the prompt, 8 groups of 8 episodes a "
        "step, warm-started for each seed on turns of a noisy expert. Held out: games that no training episode has.",
        card=True,
        threads=4500,
        memory=20,
        regimes={
            "healthy": _at("1e-5", 40),
            "unstable": _at("5e-5", 40, ", the lowest tried at which GRPO lost of what it had on the tuning seed"),
            **_rates(40, "1e-5", "3e-5", "5e-5"),
        },
    ),
}


@dataclass(frozen=True)
class Job:
    """One training run."""

    world: str
    regime: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    def file(self, results: Path) -> Path:
        """Where its result is, once it ended."""
        return results / self.world / self.regime / f"{self.name}.json"

    def folder(self, work: Path) -> Path:
        """Where it is trained."""
        return work / self.world / self.regime / self.name

    def label(self) -> str:
        return f"{self.world}/{self.regime}/{self.name}"


def jobs(worlds: list[str], regimes: list[str], methods: list[str], seeds: list[int]) -> list[Job]:
    """All runs, the seeds of all methods one after the other: what is cut short has as many seeds of each method."""
    return [Job(w, r, m, s) for w in worlds for s in seeds for r in regimes if r in WORLDS[w].regimes for m in methods]
