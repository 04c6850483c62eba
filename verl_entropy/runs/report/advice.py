# SPDX-License-Identifier: Apache-2.0
"""Symptoms of a run and the methods meant for them, each with the number and the figure that led to it.

Rules of thumb: they say where to look and what was made for it, not that it will help.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy.config import registry
from verl_entropy.config.settings import ALGORITHM_PATH, POLICY_LOSS_PATH, SEAL_PATH, lookup
from verl_entropy.runs.report.runs import ENTROPY, P, Run, load, without_steps
from verl_entropy.runs.report.text import printable
from verl_entropy.runs.runfile import RunFileError

TAIL = 20
"""Steps at the end of the run whose mean a rule looks at."""
LOW_ENTROPY = 0.05
"""Nats: as much as 7 % of the tokens between two equal choices (ln 2), the others certain. Above the detector's collapse_nats,
because advice is of use before all is lost."""
COLLAPSED = 0.5
EARLY_OVER_LATE = 1.5
FEW_GRADIENTS = 0.5
ONE_SIDED, CLIPPED = 3.0, 0.005
LESS_LIKELY, LESS_LIKELY_NATS = 0.25, 0.02
FEW_VALID = 0.8
REPEATED = 0.3
MISMATCH = 0.02
"""Thresholds of the rules: where a person who looks at the figure would stop at it. None is measured. In order: entropy at
the end over that at the start; entropy of early over late turns; share of groups without gradient; clipped above over below, and the
least share above; fall of the likelihood in parts and in nats per token; share of valid turns; share of repeated actions; mean
difference of probabilities."""


@dataclass(frozen=True)
class Advice:
    """One symptom."""

    symptom: str
    figure: str
    """Panel of the report, with the numbers."""
    why: str
    methods: tuple[str, ...]
    """Overrides to try, the likeliest first; without those that the run has."""


@dataclass(frozen=True)
class AdviceList:
    """Everything that the rules found in a run."""

    run: str
    items: list[Advice]
    not_checked: dict[str, str]
    """Rules whose metrics the run lacks, with those metrics."""
    problems: list[str]
    """What could not be read of the run."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for --json."""
        return asdict(self)

    def render(self, width: int = 80) -> str:
        """Readable text of at most ``width`` columns."""
        lines = []
        for i, item in enumerate(self.items, 1):
            for label, text in ((f"{i}. ", item.symptom), ("   seen in: ", item.figure), ("   ", item.why)):
                lines += textwrap.wrap(label + text, width, subsequent_indent="   ", drop_whitespace=True)
            lines += [f"   try: {method}" for method in item.methods]
            lines.append("")
        if not self.items:
            lines += ["no symptom that a rule looks for", ""]
        for name, keys in self.not_checked.items():
            lines += textwrap.wrap(f"not checked: {name} (no {keys})", width, subsequent_indent="   ")
        for text in self.problems:
            lines += textwrap.wrap(printable(f"problem: {text}"), width, subsequent_indent="   ")
        return "\n".join(lines).rstrip()


def _try(kind: str, *names: str) -> tuple[str, ...]:
    return tuple(registry.get(kind, name).key for name in names)


def _tail(run: Run, *keys: str) -> float:
    values = run.series(keys)[1][-TAIL:]
    return float(values.mean()) if len(values) else float("nan")


def _active(config: Mapping[str, Any]) -> set[str]:
    """Names of the methods that a run has, as far as its configuration is known."""
    listed = lookup(config, f"{ALGORITHM_PATH}.transforms")
    if not isinstance(listed, list):
        presets = lookup(config, f"{ALGORITHM_PATH}.presets")
        listed = [name for name in presets if presets[name]] if isinstance(presets, Mapping) else []
    chosen = [lookup(config, f"{POLICY_LOSS_PATH}.{key}") for key in ("clip_controller", "loss_mode", "regularizer")]
    names = {str(name) for name in (*listed, *chosen, lookup(config, "algorithm.adv_estimator"))}
    return names | {"seal"} if _reaches(lookup(config, f"{SEAL_PATH}.alpha"), 1e-12) else names


def _reaches(value: Any, least: float) -> bool:
    return isinstance(value, int | float) and value >= least


def _has(config: Mapping[str, Any], override: str) -> bool:
    """Whether a run has what ``override`` would set: the method, the word, or at least the number."""
    method = next((a for a in registry.ALGORITHMS if a.key == override), None)
    if method is not None:
        return method.name in _active(config)
    path, _, wanted = override.lstrip("+").partition("=")
    value = lookup(config, path)
    try:
        return _reaches(value, float(wanted))
    except ValueError:
        return str(value) == wanted


# ----------------------------------------------------------------------------- rules


def _collapse(run: Run) -> Advice | None:
    values = run.series(ENTROPY)[1]
    width = min(TAIL, len(values) // 2)
    if not width:
        return None
    start, end = float(np.median(values[:width])), float(np.median(values[-width:]))
    if end >= min(LOW_ENTROPY, COLLAPSED * start):
        return None
    return Advice(
        "entropy has collapsed",
        f"entropy: {start:.3g} nats at the start, {end:.3g} at the end",
        "Hardly anything is explored, and groups of equal answers give no gradient.",
        (*_try("transform", "repo_r"), *_try("clip", "adapo"), *_try("regularizer", "entropy_bonus")),
    )


def _eruption(run: Run) -> Advice | None:
    events = [e for e in run.detector.events if e.name == "eruption"]
    if not events:
        return None
    first, auc = events[0], _tail(run, P + "representation/probe_auc")
    known = "" if np.isnan(auc) else f"; separation: probe AUC {auc:.2f}"
    many = "entropy erupts again and again" if len(events) > 1 else "entropy erupts"
    return Advice(
        many,
        f"entropy: {len(events)} eruption(s), the first from step {first.onset} (seen at {first.step}, {first.level:.3g} nats)"
        + known,
        "SEAL traces eruptions to negative advantages that interfere with correct trajectories of like representation; the "
        "others hold entropy down from outside.",
        (*_try("head", "seal"), *_try("regularizer", "epo"), *_try("transform", "entrocraft")),
    )


def _early_growth(run: Run) -> Advice | None:
    early, late = _tail(run, P + "entropy_early/turns"), _tail(run, P + "entropy_late/turns")
    if not early > EARLY_OVER_LATE * late or _tail(run, P + "windows_overlap/turns") > 0.5:
        return None
    return Advice(
        "the first turns are far less certain than the last",
        f"early_late: {early:.3g} against {late:.3g} nats at the end of the run",
        "EPO's cascade: early turns explore and late ones inherit what they did.",
        (*_try("regularizer", "epo"), *_try("transform", "aem")),
    )


def _zero_variance(run: Run) -> Advice | None:
    share = _tail(run, P + "group/zero_variance")
    if not share > FEW_GRADIENTS:
        return None
    return Advice(
        "most groups give no gradient",
        f"group/zero_variance: {share:.0%} of the groups have equal scores at the end of the run",
        "Tasks are too easy or too hard for the group size; step-level credit or other tasks bring differences back.",
        (*_try("estimator", "gigpo"), "actor_rollout_ref.rollout.n=<more>"),
    )


def _one_sided_clip(run: Run) -> Advice | None:
    high, low = _tail(run, P + "clipfrac_high"), _tail(run, P + "clipfrac_low")
    values = run.series(ENTROPY)[1]
    if (
        not (high > ONE_SIDED * low and high > CLIPPED)
        or len(values) < 2
        or np.median(values[-TAIL:]) >= np.median(values[:TAIL])
    ):
        return None
    return Advice(
        "clipping cuts mostly rising tokens while entropy falls",
        f"clip: {high:.2%} above, {low:.2%} below at the end of the run",
        "The upper bound stops unlikely tokens from growing; a higher one keeps them.",
        (*_try("clip", "adapo"), "actor_rollout_ref.actor.clip_ratio_high=0.28"),
    )


def _likelihood_falls(run: Run) -> Advice | None:
    values = run.series((P + "likelihood/valid_log_prob_mean",))[1]
    if len(values) < 2 * TAIL:
        return None
    start, end = float(np.median(values[:TAIL])), float(np.median(values[-TAIL:]))
    signs = [e for e in run.detector.events if e.name == "sign_likelihood"]
    if not signs and end > start - max(LESS_LIKELY * abs(start), LESS_LIKELY_NATS):
        return None
    where = f"; fell out of its range at step {signs[0].step}" if signs else ""
    return Advice(
        "valid trajectories became less likely" + ("" if end < start else " for a time"),
        f"likelihood: {start:.3g} nats per token at first, {end:.3g} at last{where}",
        "An early sign of an eruption (SEAL, Fig. 5); negative advantages push down what they share with good trajectories.",
        (*_try("head", "seal"), *_try("transform", "aem")),
    )


def _invalid(run: Run) -> Advice | None:
    valid = _tail(run, P + "valid_action_ratio")
    if not valid < FEW_VALID:
        return None
    return Advice(
        "many turns are invalid",
        f"duplication: {1 - valid:.0%} of the turns at the end of the run",
        "Format errors rise with entropy and stay; a penalty per invalid turn, or a few supervised examples, comes first.",
        ("+data.env.invalid_action_penalty=0.1",),
    )


def _repeats(run: Run) -> Advice | None:
    share = _tail(run, P + "repeated_action_ratio")
    if not share > REPEATED:
        return None
    return Advice(
        "the agent repeats its actions",
        f"duplication: {share:.0%} of the actions equal the one before",
        "Credit per step tells a useful action from a repeated one in the same state.",
        _try("estimator", "gigpo"),
    )


def _mismatch(run: Run) -> Advice | None:
    gap = _tail(run, "training/rollout_probs_diff_mean")
    if not gap > MISMATCH:
        return None
    return Advice(
        "trainer and sampler disagree",
        f"training/rollout_probs_diff_mean: {gap:.3f} at the end of the run",
        "Entropy and ratios of the trainer are not those that sampled; check precision and weight updates first.",
        ("algorithm.rollout_correction.rollout_is=token",),
    )


def _step_change(run: Run) -> Advice | None:
    found = [e for e in run.detector.events if e.name == "step_change"]
    if not found:
        return None
    return Advice(
        "entropy jumped within one step",
        f"entropy: step change from step {found[0].onset} (seen at {found[0].step})",
        "More often a resume, other data, another temperature or a learning-rate spike than the policy: look at that step.",
        ("compare with `verl-entropy diff`",),
    )


RULES: tuple[tuple[str, tuple[str, ...], Callable[[Run], Advice | None]], ...] = (
    ("eruption", ENTROPY, _eruption),
    ("collapse", ENTROPY, _collapse),
    ("step change", ENTROPY, _step_change),
    ("likelihood of valid trajectories", (P + "likelihood/valid_log_prob_mean",), _likelihood_falls),
    ("early and late entropy", (P + "entropy_early/turns",), _early_growth),
    ("groups without variance", (P + "group/zero_variance",), _zero_variance),
    ("clip sides", (P + "clipfrac_high",), _one_sided_clip),
    ("invalid turns", (P + "valid_action_ratio",), _invalid),
    ("repeated actions", (P + "repeated_action_ratio",), _repeats),
    ("trainer-sampler mismatch", ("training/rollout_probs_diff_mean",), _mismatch),
)


def advise_run(run: Run) -> AdviceList:
    """``advise`` for a run that was read already."""
    items, missing = [], {}
    for name, keys, rule in RULES:
        if run.first_key(keys) is None:
            missing[name] = " or ".join(keys)
            continue
        found = rule(run)
        if found is not None:
            methods = tuple(method for method in found.methods if not _has(run.reader.config, method))
            items.append(replace(found, methods=methods))
    return AdviceList(run.name, items, missing, list(run.reader.problems))


def advise(path: str | Path) -> AdviceList:
    """Symptoms of the run at ``path``, with methods meant for them; RunFileError if it has no step."""
    (run,) = load([path])
    if unread := without_steps([run]):
        raise RunFileError(unread[0])
    return advise_run(run)
