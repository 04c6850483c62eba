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
BASE = "none"
METHODS = {
    BASE: Method("GRPO"),
    "dr_grpo": Method("GRPO, not divided by the std (Dr. GRPO)", overrides=(_NO_STD,)),
    "no_penalty": Method("GRPO, no penalty for invalid actions", overrides=(_NO_PENALTY,)),
    "dr_grpo-no_penalty": Method("Dr. GRPO, no penalty for invalid actions", overrides=(_NO_STD, _NO_PENALTY)),
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
    reading: str = ""
    """What its runs show, by hand, under their tables."""


def _at(rate: str, steps: int, more: str = "", *, reading: str = "", candidate: bool = False) -> Regime:
    """A regime that is a learning rate; ``more`` follows it in the regime's ``why``."""
    return Regime(steps, (f"{_ACTOR}.optim.lr={rate}",), f"learning rate {rate}{more}", candidate, reading)


def _rates(steps: int, *rates: str) -> dict[str, Regime]:
    """Candidates for regimes: plain GRPO at these learning rates."""
    return {f"rate_{rate}": _at(rate, steps, candidate=True) for rate in rates}


@dataclass(frozen=True)
class World:
    """Where the agent acts. ``module`` has ``prepare(folder, seed)`` and ``words(folder, seed, run, steps, presets)``."""

    title: str
    module: str
    splits: tuple[str, ...]
    """Held-out splits; held-out success is their mean."""
    metric: str
    """Key of a split's success in verl's metrics."""
    episodes: int
    """Held-out episodes of each split."""
    text: str
    held: float
    """Entropy in nats that methods with a target hold: about that of the first steps."""
    validations: int = 2
    """Of the training: at the end, and 2: in the middle, too; one more is made before it."""
    card: bool = False
    """Trains a pretrained model on a card, with vLLM."""
    threads: int = 600
    """Of one run under Ray, all of its processes together."""
    regimes: dict[str, Regime] = field(default_factory=dict)


WORLDS = {
    "household": World(
        title="household",
        module="bench.household",
        splits=("seen", "unseen"),
        metric="val-core/household/{split}/acc/mean@1",
        episodes=128,
        held=0.15,
        text="The quickstart's world: a Llama of 0.2 M parameters, warm-started for each seed on turns of a noisy expert; 8 groups of 8 "
        "episodes a step, up to 8 turns each, about six updates a step. Training tasks never repeat; held out are new tasks in "
        "known houses (seen) and unknown houses (unseen).",
        regimes={
            "healthy": _at("1e-4", 30),
            "unstable": _at(
                "6e-4",
                60,
                ", the lowest at which GRPO learned and lost it again on both tuning seeds",
                reading="No level of entropy decides here. Where GRPO lost everything, valid actions rose to .99 or 1 and entropy of "
                "wrong trajectories sank: in a group whose rollouts all fail, the penalty for invalid actions is the only difference, and "
                "dividing by the group's standard deviation makes it weigh as much as success elsewhere, so that the policy learns harmless "
                "actions. GiGPO, whose step-level part divides as well, got there first; most others ended there, too. Nothing that controls "
                "entropy prevents it reliably: REPO-R and GiGPO + AEM + SEAL kept success in three of five seeds each (the latter in one of "
                "these at a quarter of its entropy), AEM in two (in one of these at a quarter, too), GiGPO alone and STEER in one, EPO and "
                "SEAL in none of three; for held-out success at the end five seeds do not tell any of them from GRPO. A seed repeats the "
                "tasks and the warm start, not the run: REPO-R on seed 1 was lost within ten steps on a host of 16 cores (cut at its last "
                "validation, hence not in the table) and kept on two cores. Three controls take that cause away and cure nothing: without the "
                "division, without the penalty, and without both, no run ended there, but valid actions fell and runs were lost another way "
                "(without both two of two, while entropy rose to .3 and .9 nats). GiGPO + AEM + SEAL without the division was lost on one of "
                "two seeds, all its actions invalid, and entropy held at .15 nats on both of two. Dynamic sampling leaves those groups out "
                "(and those that all succeed) and samples others: it kept every seed, at the price in sampled groups that stands above. That "
                "it samples others is what counts: with such groups left out and no others sampled (`equal_returns=drop_by_success`) two of "
                "two runs were lost, valid actions fell to .15, and what was left for an update shrank from six groups to one or none. At "
                "this rate it takes more groups that tell success from failure in each update, and that is what dynamic sampling has. Dynamic "
                "sampling's entropy ends where GRPO's does, so a low entropy as such harmed nothing here; nor does a high one help: "
                "Entrocraft and the constant bonus raised it first and lost as early as any. `bash examples/box.sh` trains one run of GRPO "
                "and one of dynamic sampling, and shows them.",
            ),
            **_rates(60, "4e-4", "6e-4", "1e-3"),
        },
    ),
    "frozen_lake": World(
        title="frozen lake",
        module="bench.frozen_lake",
        splits=("dev", "test"),
        metric="val-core/frozen_lake/{split}/acc/mean@1",
        episodes=320,
        held=0.5,
        text="Gymnasium's FrozenLake as text, a new 4 x 4 map every episode (a quarter holes, no slipping, up to 10 moves); the household's "
        "model and step size (8 groups of 8 episodes), thoughts of several wordings. Held out: maps that no training episode has.",
        validations=1,
        regimes={
            "healthy": _at(
                "3e-4",
                60,
                ", at which GRPO learned nearly all on the tuning seeds",
                reading="On these seeds GRPO is not healthy here: it reaches .7 to .9 in training and keeps two thirds of it; the tuning "
                "seeds began from better policies (.5 held out, not .33 to .53). Branching with 4 roots looked better after three "
                "seeds (area +.095, +.078 to +.112), and the next two took that back; to GRPO's success of the same seed it needed 66, "
                "18, 32, 0 and 4 % fewer tokens. With 2 roots it samples a quarter less and lags on one of two seeds. The "
                "bonus that holds .5 nats, where GRPO goes to .4, ends above GRPO on all five seeds (by .03 to .30 held out), and five "
                "seeds do not tell that from chance; it takes 10 to 25 steps to be there, and on seed 0 a few steps moved the policy by .3 "
                "nats and success was gone, as in GRPO's own losses. EntroPIC's weights stood at their bound of .5 from step 7 on and "
                "moved nothing; bound at .9, they had trained on failures nearly alone from alpha .8 on and destroyed the policy at "
                "step 14 (seed 0, not in the tables).",
            ),
            "unstable": _at(
                "1e-3",
                60,
                ", at which GRPO learned and lost two fifths or all of it on the tuning seeds",
                reading="A run is lost here by single steps: valid actions stay near 1 and entropy falls slowly, while one step moves the "
                "policy by .1 to 1.5 nats a token and success jumps by a half. GRPO on seed 1 stood at .98 to 1 in steps 12 and 13, when a "
                "handful of failures was all that an update had, and at 0 for good from step 20 on. GRPO lost half of its success in training "
                "in 6 of 8 runs, GiGPO + AEM + SEAL in 1 of 8 (Fisher's exact test: p = .04), and it ends above GRPO held out. Both say that "
                "it helps here, not that it cures: its success still falls and comes back (seed 5: .78 to .01 to .46, at .01 nats), one run "
                "was lost, and seeds 5 to 7 were added once the first five looked better than GRPO's, which makes chance look smaller than it "
                "is. Which part does it is open: GiGPO alone kept 1 of 3 held out, SEAL 2 of 3, AEM 4 of 5. AEM on seed 4 and REPO-R on seed "
                "1 were lost in the first two steps, as Adam's first steps are as long as the learning rate allows whatever the gradient is. "
                "Dynamic sampling became slower and slower: its groups, one map each, won or failed as one, so that a step sampled 221 (seed "
                "0) and 778 groups (seed 1) for the eight that it trained on; the machine's time ended before its runs did.",
            ),
            **_rates(60, "3e-4", "1e-3", "3e-3"),
        },
    ),
    "bandit": World(
        title="bandit",
        module="bench.bandit",
        splits=("dev", "test"),
        metric="val-core/bandit/{split}/acc/mean@1",
        episodes=640,
        held=0.5,
        text="A two-armed bandit in the manner of RAGEN's: a safe arm pays .15, a bold one 1 in a quarter of all pulls, and success is to pull "
        "the bold one, whatever it paid; one pull an episode, 16 groups of 16 episodes a step, the rollouts of a group share their luck.",
        validations=1,
        regimes={
            "unstable": _at(
                "3e-4",
                60,
                "; GRPO went to the safe arm at every rate tried, for in three groups of four the bold one paid nothing, and the "
                "division by the group's standard deviation lets the fourth count no more",
                reading="Without that division (Dr. GRPO) all five seeds learn to pull the bold arm: the signal was at fault. What moves "
                "entropy changes nothing of it, one run of EPO, SEAL and REPO-R each, and three with entropy held at .5 nats. In these the "
                "guard took the push back while success fell; when success had been gone for 25 steps, the coefficient rose from .01 to .7 "
                "without effect, and at 1 to 2 entropy jumped, to 1.8 nats in one run. It is bound at 1 since.",
            ),
            **_rates(60, "3e-4", "1e-3", "3e-3"),
        },
    ),
    "frozen_lake_card": World(
        title="frozen lake, SmolLM2 on a card",
        module="bench.frozen_lake_card",
        splits=("dev", "test"),
        metric="val-core/frozen_lake/{split}/acc/mean@1",
        episodes=256,
        held=0.25,
        text="The frozen lake for SmolLM2-135M-Instruct on a card that some runs share (FSDP2 in bf16, vLLM), warm-started for each seed on "
        "turns of the noisy expert; all else as in the lake on a CPU.",
        validations=1,
        card=True,
        regimes={
            "healthy": _at("1e-5", 40),
            "between": _at(
                "2e-5",
                40,
                ", at which GRPO lost five sixths of its success on the tuning seed and won half of it back",
                reading="On seeds 0 to 2 GRPO lost nothing at this rate: the rate chosen on one tuning seed was too low to show what a remedy "
                "is worth. At 3e-5 the tuning seed shows how SmolLM2 is lost: success .77 at step 20, then within two steps every "
                "answer is invalid (valid actions 1 -> 0), at an entropy of .12 nats; all groups fail with equal returns from then "
                "on, the gradient is 0, and the run is dead. Three runs of dynamic sampling ended with the machine's time; they are "
                "among the cut runs.",
            ),
            "unstable": _at(
                "3e-5",
                40,
                ", the lowest at which GRPO learned and lost all on the tuning seed",
                reading="GRPO's entropy fell from .28 to .02 to .15 nats. On seed 2 it lost its success within two steps (.97 to .09 from step "
                "28 to 30, actions valid all the while) and began to win it back at step 37; on seed 1 it fell from .88 to .20 and came back; "
                "on seed 0 it lost nothing. With entropy held at .25 nats by the bonus no run fell like that: entropy stayed between .21 and "
                ".34, most of it a little above the target, for a coefficient of at most .1. GiGPO + AEM + SEAL fell and came back once "
                "(seed 1), REPO-R once (seed 0), with its coefficient at its bound in nearly every step after the eighth. Dynamic sampling "
                "ended highest on the two seeds that ended (.95 and .90; the third was cut at step 39, with no fall either) and sampled 35 to "
                "60 further groups a step for the eight that it trained on. Three seeds tell none of them from GRPO.",
            ),
            **_rates(40, "3e-6", "1e-5", "2e-5", "3e-5", "5e-5", "1e-4"),
        },
    ),
    "textworld_express_card": World(
        title="TextWorldExpress, SmolLM2 on a card",
        module="bench.textworld_express_card",
        splits=("dev", "test"),
        metric="val-core/textworld_express/{split}/acc/mean@1",
        episodes=256,
        held=0.25,
        text="Two games of TextWorldExpress for SmolLM2-135M-Instruct (FSDP2 in bf16, vLLM): one object is brought to its usual place (twc), "
        "or a coin from another room into a box (mapreader); up to 12 turns, admissible actions in the prompt, 8 groups of 8 episodes a "
        "step, warm-started for each seed on turns of a noisy expert. Held out: games that no training episode has.",
        validations=1,
        card=True,
        threads=4500,
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
