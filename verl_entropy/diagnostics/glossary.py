# SPDX-License-Identifier: Apache-2.0
"""Entries of the glossary for metrics that are not computed in ``live``: of the methods, of the sampled pass, and those of verl's own
that belong to the picture. The whole glossary is ``live.GLOSSARY``.
"""

from __future__ import annotations

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
        "share of the prompt groups whose trajectories all have the same return, dropped from the loss",
        "share",
        "algorithm.entropy.equal_returns=drop",
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

ENTRIES: list[Entry] = [
    *(Entry(PREFIX + key, *rest) for key, rest in _OURS.items()),
    *(
        Entry(f"{PREFIX}{method.name}/{name}", metric.formula, metric.unit, metric.source or method.source)
        for method in registry.methods()
        for name, metric in method.metrics.items()
    ),
    *(Entry(PREFIX + key, *rest, _LEMMA if key.startswith("inter") else "SEAL, Fig. 3") for key, rest in _SAMPLED.items()),
    *(Entry(key, *rest) for key, rest in _VERL.items()),
]
