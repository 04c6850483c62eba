# SPDX-License-Identifier: Apache-2.0
"""The glossary: every metric of ours, and those of verl's own that belong to the picture. Imports nothing: printing it must not cost
the four seconds that torch takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_entropy.methods import registry

PREFIX = "verl_entropy/"


@dataclass(frozen=True)
class Entry:
    """One metric of the glossary; ``<...>`` in the key stands for an index or a name."""

    key: str
    formula: str
    unit: str
    source: str


_OURS = {
    "entropy": ("mean entropy of the trained tokens before the update", "nats", "ours"),
    "entropy_target": ("entropy to hold in this step (algorithm.entropy.target)", "nats", "ours"),
    "hold/guarded": ("1 while the held coefficient goes back because success fell below its best", "0 or 1", "ours"),
    "hold/effect": ("change of ln H in a step by one unit of the held coefficient, as estimated", "nats/nats", "ours"),
    "entropy_not_finite": ("share of the trained tokens without a finite entropy, where there are any", "share", "ours"),
    "active": ("1 where the plugin's loss ran in the training workers", "0 or 1", "ours"),
    "resumed": ("1 in the first step after a resume; left out in the others", "0 or 1", "ours"),
    "event/non_finite": ("1 while entropy, loss or gradient norm is not finite", "0 or 1", "diagnostics.health"),
    "event/dead": ("1 while there is no gradient or every group has equal returns", "0 or 1", "diagnostics.health"),
    "event/template_collapse": ("1 while responses repeat one another and entropy stands", "0 or 1", "diagnostics.health"),
    "timing_s/queue": ("time of the plugin's reads and writes in verl's queue, in the trainer's process", "seconds", "ours"),
    "timing_s/turns": ("time to make turns of a batch's rows, which every method starts from", "seconds", "ours"),
    "timing_s/advantages": ("time of base estimator and transforms", "seconds", "ours"),
    "timing_s/diagnostics": ("time of the diagnostics in the trainer's process", "seconds", "ours"),
    "clipfrac_high": ("share of trained tokens with ratio > 1 + eps_high and A > 0", "share", "REPO paper, A.1"),
    "clipfrac_low": ("share of trained tokens with ratio < 1 - eps_low and A < 0", "share", "REPO paper, A.1"),
    "equal_returns/dropped_groups": (
        "share of the prompt groups whose trajectories all have the same return (or success), dropped from the loss",
        "share",
        "algorithm.entropy.equal_returns=drop, =drop_by_success",
    ),
    "equal_returns/rounding": (
        "largest advantage that verl's GRPO gives by rounding to a group whose trajectories all have the same return; set to 0 with "
        "algorithm.entropy.equal_returns=zero",
        "advantage",
        "ours",
    ),
    "episodes/ended/<reason>": (
        "episodes that the environment terminated or truncated, that reached max_turns, had no_room for a turn or ended with a cut answer",
        "share",
        "ours",
    ),
    "rollout/generated_tokens": ("response tokens that were sampled for the batch's episodes", "tokens", "ours"),
    "rollout/reused_tokens": (
        "response tokens that a leaf took over from the one it branched from (rollout methods)",
        "tokens",
        "ours",
    ),
    "rollout/cached_share": (
        "prompt tokens that the sampler had in its cache; of vLLM, and under a rollout method",
        "share of prompt tokens",
        "verl's num_cached_tokens",
    ),
    "rollout/branch_cached_share": (
        "the same, of the first prompt of each leaf that went on from another one: what branching leaves to the cache",
        "share of prompt tokens",
        "verl's num_cached_tokens",
    ),
    "episodes/cut_answers": ("answers that the token limit cut: not executed", "share of turns", "ours"),
    "episodes/cut_prompts": ("prompts that lost words of the observation", "share of turns", "ours"),
    "empty_after_mask": ("1 where the transforms dropped every token; the step then trains nothing", "0 or 1", "ours"),
}
_LEMMA = "SEAL, Lemma 3.2 and 3.3"
_COSTLY = "sampled trajectories, every costly_every steps"
_SAMPLED = {
    "representation/within_correct": (f"mean cosine of two correct trajectories' mean last hidden states ({_COSTLY})", "cosine"),
    "representation/within_wrong": ("the same for two wrong trajectories", "cosine"),
    "representation/between": ("the same for a correct and a wrong trajectory", "cosine"),
    "representation/ratio": ("between / mean of the two within; near 1: the classes overlap", "ratio"),
    "representation/distance": ("Euclidean distance of the class means", "norm"),
    "representation/probe_auc": ("held-out AUC of a linear probe for correct; .5: no separation", "AUC"),
    "interference/drift": (
        f"sum_j A_j c_j over the rollouts of a prompt, mean over prompts: pull on the mean log-likelihood ({_COSTLY})",
        "nats per unit of step",
    ),
    "interference/drift_positive": ("its part from positive advantages", "nats per unit of step"),
    "interference/drift_negative": ("its part from negative advantages; falling: they push harder", "nats per unit of step"),
    "interference/cosine": ("mean cosine of the output-layer gradients of two trajectories of a prompt group", "cosine"),
}
_MISMATCH = "verl; needs actor_rollout_ref.rollout.calculate_log_probs=True"
_VERL = {
    "actor/entropy": ("entropy before the update, by verl's loss_agg_mode", "nats", "verl"),
    "actor/pg_clipfrac": ("share of tokens that the policy loss clips", "share", "verl"),
    "training/rollout_probs_diff_mean": ("mean |pi_trainer - pi_sampler| of the sampled tokens", "probability", _MISMATCH),
    "training/rollout_probs_diff_max": ("largest |pi_trainer - pi_sampler|", "probability", _MISMATCH),
    "training/rollout_probs_diff_std": ("standard deviation of |pi_trainer - pi_sampler|", "probability", _MISMATCH),
    "training/rollout_actor_probs_pearson_corr": ("correlation of pi_trainer and pi_sampler", "correlation", _MISMATCH),
}

_FIG5 = "SEAL, Fig. 5 and 10 (sum or mean is not said there)"
LIVE: dict[str, tuple[str, str, str]] = {
    "success": ("share of trajectories that reached their goal", "share", "ours"),
    "turns": ("turns per trajectory", "turns", "ours"),
    "valid_action_ratio": ("share of turns with right tags and an admissible action", "share", "SEAL, B.5"),
    "turn_entropy/<k>": ("mean over the k-th turns (from 0) of their mean token entropy", "nats", "EPO, Fig. 1"),
    "entropy_early/turns": ("mean entropy of the first n turns, mean over trajectories", "nats", "EPO, arXiv 2509.22576, Fig. 1"),
    "entropy_late/turns": ("the same for the last n turns", "nats", "EPO, Fig. 1"),
    "windows_overlap/turns": ("share of trajectories shorter than 2 n turns: early and late overlap", "share", "ours"),
    "entropy_early/tokens": ("mean entropy of the first n trained tokens of the episode", "nats", "EPO, App. B.4.1 (n = 10)"),
    "entropy_late/tokens": ("the same for the last n tokens", "nats", "EPO, App. B.4.1"),
    "response_entropy/mean": ("mean over responses (turns) of their mean token entropy", "nats", "AEM, arXiv 2605.00425, sec. 3"),
    "response_entropy/std": ("standard deviation over responses (ddof 0)", "nats", "AEM, sec. 3"),
    "response_entropy/p10": ("10th percentile over responses", "nats", "ours"),
    "response_entropy/p50": ("median over responses", "nats", "ours"),
    "response_entropy/p90": ("90th percentile over responses", "nats", "ours"),
    "entropy_of/correct": (
        "mean over correct trajectories of their mean token entropy",
        "nats",
        "SEAL, arXiv 2605.27954, sec. 3",
    ),
    "entropy_of/wrong": ("the same for wrong trajectories", "nats", "SEAL, sec. 3"),
    "entropy_of/valid": ("the same for trajectories whose every turn was valid", "nats", "SEAL, sec. 3"),
    "likelihood/correct_log_prob_sum": ("mean over correct trajectories of sum_t log pi", "nats", _FIG5),
    "likelihood/correct_log_prob_mean": ("mean over correct trajectories of mean_t log pi", "nats", _FIG5),
    "likelihood/wrong_log_prob_sum": ("the sum for wrong trajectories", "nats", _FIG5),
    "likelihood/wrong_log_prob_mean": ("the mean for wrong trajectories", "nats", _FIG5),
    "likelihood/valid_log_prob_sum": ("the sum for valid trajectories", "nats", _FIG5),
    "likelihood/valid_log_prob_mean": ("the mean for valid trajectories", "nats", _FIG5),
    "predictor/repo": (
        "-mean(A L pi), L = log pi + H: predicted change of entropy, positive rises",
        "nats per unit of step",
        "REPO paper, Cor. 1",
    ),
    "predictor/covariance": ("-Cov(A, log pi)", "nats per unit of step", "Cui et al., arXiv 2505.22617"),
    "predictor/discriminator": (
        "-mean(A (S - N)); only where vocab_centre is computed (clip_v)",
        "nats per unit of step",
        "arXiv 2602.03392, Thm 3.3",
    ),
    "aem_drift/surprisal": ("mean A (S - group mean of S), S = -log pi(response)", "nats", "AEM, Thm 3.2"),
    "aem_drift/surprisal_per_token": ("the same with S / length", "nats", "AEM, Thm 3.2"),
    "aem_drift/entropy_proxy": ("mean A (mean token entropy - its group mean)", "nats", "AEM, its proxy"),
    "aem_drift/martingale": ("mean A (S - sum_t H_t) / length: the noise that the proxy leaves out", "nats", "AEM, C.4"),
    "group/zero_variance": (
        "share of prompt groups whose trajectories all have the same score",
        "share",
        "DAPO, arXiv 2503.14476",
    ),
    "group/effective_batch": ("trajectories in the other groups: those that can train", "trajectories", "DAPO"),
    "group/singletons": ("share of groups with one trajectory", "share", "ours"),
    "repeated_action_ratio": ("share of turns (after the first) whose action equals the one before", "share", "ours"),
    "action_duplication": ("1 - distinct actions / turns, mean over trajectories", "share", "ours"),
    "invalid_turn_ratio": ("share of turns with wrong tags or an inadmissible action", "share", "SEAL, B.5"),
    "valid_trajectory_ratio": ("share of trajectories whose every turn was valid", "share", "SEAL, sec. 3"),
    "format_error_ratio": (
        "share of turns that are invalid although their action was admissible or not looked at",
        "share",
        "SEAL, B.5",
    ),
    "inadmissible_action_ratio": ("share of turns whose action the environment does not allow", "share", "ours"),
    "duplication": (
        "share of a response's sentences that occur in it more than once, mean over responses",
        "share",
        "SEAL, sec. 3.3 and B.5",
    ),
}
"""What ``diagnostics.live`` computes in every step from the batch."""
_OVER_STEPS = {
    "cumulative_entropy": ("sum over steps of the mean token entropy", "nats", "REPO paper, E.3"),
    "entropy_change": (
        "entropy now minus at the step before: what the last update did, to compare with its predictors",
        "nats",
        "ours",
    ),
    "predictor_agreement/<name>": (
        "share of the last steps where the predictor had the sign of the change that followed",
        "share",
        "ours",
    ),
    "phase": ("0 warmup, 1 descent, 2 eruption, 3 subsidence, 4 steady", "index", "diagnostics.phases, after SEAL"),
    "eruptions": ("eruptions seen so far", "count", "diagnostics.phases"),
    "sign/interference": ("1 while the interference of negative advantages falls out of its range", "0 or 1", "SEAL, Fig. 4"),
    "sign/likelihood": ("1 while the likelihood of valid trajectories falls out of its range", "0 or 1", "SEAL, Fig. 5"),
}

GLOSSARY: list[Entry] = [
    *(Entry(PREFIX + key, *rest) for key, rest in {**_OURS, **LIVE, **_OVER_STEPS}.items()),
    *(
        Entry(f"{PREFIX}{method.name}/{name}", metric.formula, metric.unit, metric.source or method.source)
        for method in registry.methods()
        for name, metric in method.metrics.items()
    ),
    *(Entry(PREFIX + key, *rest, _LEMMA if key.startswith("inter") else "SEAL, Fig. 3") for key, rest in _SAMPLED.items()),
    *(Entry(key, *rest) for key, rest in _VERL.items()),
]

COMPACT = frozenset(
    (
        *("entropy", "entropy_change", "entropy_early/turns", "entropy_late/turns", "response_entropy/std"),
        *("entropy_of/correct", "entropy_of/wrong", "success", "turns", "valid_action_ratio", "repeated_action_ratio"),
        *(
            "duplication",
            "likelihood/valid_log_prob_mean",
            "group/zero_variance",
            "predictor/repo",
            "phase",
            "active",
            "entropy_target",
            "hold/guarded",
        ),
        *("interference/drift_negative", "representation/probe_auc", "clipfrac_high", "clipfrac_low"),
    )
)
"""What ``diagnostics.profile=compact`` sends to verl's loggers of what the diagnostics compute."""
_FLAGS = ("event/", "sign/", "eruptions", "resumed", "empty_after_mask", "entropy_not_finite")
_CHOSEN = tuple(f"{name}/" for name in dict.fromkeys(key.split("/")[0] for key in (m.name for m in registry.methods())))


def compact(metrics: dict[str, float]) -> dict[str, float]:
    """``metrics`` of a step as the compact profile has them.

    Metrics of verl and of the chosen methods stay. Of the diagnostics stay some twenty keys, and flags while they are not 0: those that
    are 0 throughout a run never appear.
    """
    kept = {}
    for key, value in metrics.items():
        name = key.removeprefix("actor/").removeprefix(PREFIX)
        ours = key.startswith((PREFIX, f"actor/{PREFIX}"))
        if not ours or name in COMPACT or name.startswith(_CHOSEN) or (name.startswith(_FLAGS) and value != 0):
            kept[key] = value
    return kept


def find(key: str) -> Entry | None:
    """The glossary's entry of a metric as it is logged or, shorter, without "actor/" and "verl_entropy/"; None without one."""
    for name in (key, PREFIX + key.removeprefix("actor/").removeprefix(PREFIX)):
        for entry in GLOSSARY:
            if re.fullmatch(re.sub(r"<\w+>", "[^/]+", re.escape(entry.key)), name):
                return entry
    return None
