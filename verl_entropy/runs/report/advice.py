# SPDX-License-Identifier: Apache-2.0
"""Symptoms of a run and the methods meant for them, each with the number and the figure that led to it.

Rules of thumb: they say where to look and what was made for it, not that it will help.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from verl_entropy.config import checks
from verl_entropy.config import plan as plans
from verl_entropy.config.settings import ALGORITHM_PATH, POLICY_LOSS_PATH, SEAL_PATH, ConfigError, lookup
from verl_entropy.diagnostics.health import REPEATED as REPEATS
from verl_entropy.diagnostics.health import STEPS
from verl_entropy.diagnostics.settings import Live
from verl_entropy.methods import registry
from verl_entropy.methods.method import Method
from verl_entropy.runs.report.runs import ENTROPY, P, Run, load, without_steps
from verl_entropy.runs.report.text import printable
from verl_entropy.runs.runfile import RunFileError

RATE = "actor_rollout_ref.actor.optim.lr"
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
GONE, ALL_VALID = 0.05, 0.9
"""Thresholds of the rules: where a person who looks at the figure would stop at it. None is measured. In order: entropy at
the end over that at the start; entropy of early over late turns; share of groups without gradient; clipped above over below, and the
least share above; fall of the likelihood in parts and in nats per token; share of valid turns; share of repeated actions; mean
difference of probabilities; success that is gone and share of valid turns beside it."""


@dataclass(frozen=True)
class Advice:
    """One symptom."""

    symptom: str
    figure: str
    """Panel of the report, with the numbers."""
    why: str
    methods: tuple[str, ...]
    """Overrides to try, the likeliest first; without those that the run has."""
    sources: dict[str, str] = field(default_factory=dict)
    """Paper and section of those that are methods of ours."""


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
            for method in item.methods:
                source = f" ({item.sources[method]})" if method in item.sources else ""
                lines += textwrap.wrap(f"   try: {method}{source}", width, subsequent_indent="        ", break_long_words=False)
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


def active_methods(config: Mapping[str, Any]) -> set[str]:
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
    method = next((m for m in registry.methods() if m.key == override), None)
    if method is not None:
        return method.name in active_methods(config)
    path, _, wanted = override.lstrip("+").partition("=")
    if path == RATE:  # offered smaller than it is
        return False
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
    events = [e for e in run.detector.events if e.name in ("eruption", "runaway")]
    if not events:
        return None
    fell = [e.step for e in run.detector.events if e.name == "subsidence"]
    erupted = [e for e in events if e.name == "eruption"]
    away = events[-1].name == "runaway" and not (fell and fell[-1] > events[-1].step)
    first, auc = events[0], _tail(run, P + "representation/probe_auc")
    known = "" if np.isnan(auc) else f"; separation: probe AUC {auc:.2f}"
    wrong, correct = (_around(run, P + f"entropy_of/{which}", first.step) for which in ("wrong", "correct"))
    if not np.isnan(wrong + correct):
        known += f"; wrong trajectories {wrong:.3g} nats, correct ones {correct:.3g}"
    steps, success = run.series(NAMES_OF_SUCCESS)
    harmless = ""
    if len(before := success[steps <= first.onset]) and len(success) > len(before):
        known += f"; success {before[-5:].mean():.3g} before it, {success[-5:].mean():.3g} at the end"
        if success[-5:].mean() >= before[-5:].mean():
            harmless = "Success did not fall with it, so it may need nothing. "
    many = "entropy erupts again and again" if len(erupted) > 1 else "entropy erupts"
    return Advice(
        ("entropy runs away" if not erupted else f"{many} and does not come back") if away else many,
        f"entropy: {f'{len(erupted)} eruption(s), the first' if erupted else 'a steady rise'} from step {first.onset} (seen at {first.step}, "
        f"{first.level:.3g} nats); {run.series(ENTROPY)[1][-5:].mean():.3g} nats at the end" + known,
        f"{harmless}In the bench's household plain GRPO erupted at a learning rate of 6e-4 on both tuning seeds, in its wrong "
        "trajectories, and at 4e-4 on neither (recipes/bench): try a smaller step first. SEAL traces eruptions to negative advantages "
        "that interfere with correct trajectories of like representation; the others hold entropy down from outside.",
        (_smaller_step(run), *_try("head", "seal"), *_try("regularizer", "epo"), *_try("transform", "entrocraft")),
    )


def _around(run: Run, key: str, step: int) -> float:
    """Mean over the five steps that end with ``step``; NaN where there is no value."""
    steps, values = run.series((key,))
    near = values[(steps <= step) & (steps > step - 5)] if len(values) else values
    return float(near.mean()) if len(near) else float("nan")


def _smaller_step(run: Run) -> str:
    rate = lookup(run.reader.config, "actor_rollout_ref.actor.optim.lr")
    return (
        f"actor_rollout_ref.actor.optim.lr={rate / 2:g}" if _reaches(rate, 1e-12) else "actor_rollout_ref.actor.optim.lr=<less>"
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


def _sample_anew(run: Run) -> tuple[str, ...]:
    """DAPO's dynamic sampling by success, which verl's V1 trainer has; nothing where it is on or RayPPOTrainer runs."""
    config = run.reader.config
    if lookup(config, "algorithm.filter_groups.enable") or lookup(config, "trainer.use_v1") is False:
        return ()
    return ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc")


def _zero_variance(run: Run) -> Advice | None:
    share = _tail(run, P + "group/zero_variance")
    if not share > FEW_GRADIENTS:
        return None
    success = _tail(run, *NAMES_OF_SUCCESS)
    figure = f"group/zero_variance: {share:.0%} of the groups have equal scores at the end of the run"
    if not np.isnan(success):
        figure += f"; {run.first_key(NAMES_OF_SUCCESS)} {success:.3g}"
    if success > 0.8:
        return Advice(
            "most groups give no gradient: they are solved",
            figure,
            "All rollouts of a task succeed; nothing is left to learn from it. Harder tasks, or drop solved groups.",
            ("data.train_files=<harder tasks>", *_sample_anew(run)),
        )
    if success < 0.1:
        return Advice(
            "most groups give no gradient: they fail",
            figure,
            "No rollout of a task succeeds, so none can be preferred. A warm start, easier tasks or more rollouts come first; "
            "step-level credit has nothing to compare either.",
            (
                "actor_rollout_ref.rollout.n=<more>",
                "data.train_files=<easier tasks>",
                "actor_rollout_ref.model.path=<warm start>",
            ),
        )
    return Advice(
        "most groups give no gradient",
        figure,
        "Tasks are too easy or too hard for the group size; step-level credit or other tasks bring differences back.",
        (*_try("estimator", "gigpo"), "actor_rollout_ref.rollout.n=<more>", *_sample_anew(run)),
    )


def _one_sided_clip(run: Run) -> Advice | None:
    high, low = _tail(run, P + "clipfrac_high"), _tail(run, P + "clipfrac_low")
    values, adapts = run.series(ENTROPY)[1], "adapo" in active_methods(run.reader.config)  # which moves the upper bound itself
    if (
        not (high > ONE_SIDED * low and high > CLIPPED)
        or len(values) < 2
        or np.median(values[-TAIL:]) >= np.median(values[:TAIL])
    ):
        return None
    return Advice(
        "clipping cuts mostly rising tokens while entropy falls",
        f"clip: {high:.2%} above, {low:.2%} below at the end of the run",
        "The upper bound stops unlikely tokens from growing; a higher one keeps them (DAPO, arXiv 2503.14476, sec. 3.1: 0.28).",
        (*_try("clip", "adapo"), *(() if adapts else ("actor_rollout_ref.actor.clip_ratio_high=0.28",))),
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


NAMES_OF_SUCCESS = (P + "success", "critic/score/mean", "critic/rewards/mean", "critic/rewards/max")
FALLS, LEAST_SUCCESS = ((TAIL, TAIL, 0.6), (TAIL // 2, TAIL // 4, 0.25)), 0.1
"""A fall: steps of the best level, steps at the end, and the most that success at the end may be of that level, where it lasted or where it
is new and deep; and the least best level at which a fall is called one."""
SWITCHED_OFF = 0.0
HIGH_CLIP, HOT = 0.3, 1.3
"""Upper clip bound and sampling temperature from which a cause of rising entropy is named."""


def _non_finite(run: Run) -> Advice | None:
    """The reader stores NaN and infinite values as missing ones, so they are steps whose value is missing though the key is there."""
    worst: tuple[int, int, str] | None = None
    for key in (*ENTROPY, "actor/loss", "actor/pg_loss", "actor/grad_norm"):
        if key not in run.reader.keys:
            continue
        steps, values = run.reader.series(key)
        finite = np.isfinite(values)
        missing = int((~finite).sum())
        tail = finite[-min(TAIL, len(finite)) :]
        if missing and len(tail) and not tail.any():  # to the end: single gaps are steps that do not log this key
            first = int(steps[np.flatnonzero(finite)[-1] + 1]) if finite.any() else int(steps[0])
            if worst is None or first < worst[0]:
                worst = (first, missing, key)
    if worst is None:
        return None
    first, missing, key = worst
    usual = {
        "actor_rollout_ref.rollout.temperature": (1.0, 0.3, 1.3),
        "actor_rollout_ref.actor.optim.clip_grad": (1.0, 1e-3, 1.0),
    }
    odd = [f"{path}={fix}" for path, (fix, low, high) in usual.items() if not low <= _value(run, path, -1.0) <= high]
    start = not len(run.reader.steps) or first <= run.reader.steps[0]
    return Advice(
        "values are not finite" + (" from the first step" if start else ""),
        f"{key}: no finite value from step {first} to the end ({missing} steps)",
        "The settings or the model gave it: temperature (at 0 every log-prob is NaN), precision, weights."
        if start
        else "A NaN never goes away: look at the step before (temperature, learning rate, fp16), and go on from a checkpoint before it.",
        (*odd, _smaller_step(run)),
    )


def _value(run: Run, path: str, otherwise: float) -> float:
    """A number of the run's configuration."""
    value = lookup(run.reader.config, path)
    return float(value) if isinstance(value, int | float) else otherwise


def _ends_with(run: Run, key: str, condition: Callable[[float], bool]) -> int | None:
    """The first step of the stretch at the run's end in which the metric meets ``condition``; None for fewer than STEPS values."""
    steps, values = run.series((key,))
    first = len(values)
    while first and condition(values[first - 1]):
        first -= 1
    return int(steps[first]) if len(values) - first >= STEPS else None


def _no_gradient(run: Run) -> Advice | None:
    first = _ends_with(run, "actor/grad_norm", lambda norm: norm == 0.0)
    if first is None:
        return None
    equal = _tail(run, P + "group/zero_variance")
    known = "" if np.isnan(equal) else f"; {equal:.0%} of the groups have equal scores"
    return Advice(
        "the run is dead: no gradient",
        f"actor/grad_norm: 0 from step {first} to the end{known}",
        "Nothing is learned any more. Where all groups have equal scores, the tasks are why; else a transform drops every token, or "
        "advantages or the learning rate are 0.",
        ("check with `verl-entropy validate`", "data.train_files=<other tasks>"),
    )


def _templates(run: Run) -> Advice | None:
    settings = Live()
    for key in REPEATS:
        first = _ends_with(run, key, lambda share: share >= settings.template_share)
        entropy = _tail(run, *ENTROPY)
        if first is not None and not entropy <= settings.detector.collapse_nats:
            return Advice(
                "responses repeat one another while entropy stands",
                f"{key}: {_tail(run, key):.2f}, from step {first} to the end, at an entropy of {entropy:.3g} nats",
                "A collapse to templates, which entropy does not show: read the trajectories. Reward the single step, keep the policy near "
                "its reference, or give tasks that need different answers.",
                (*_try("estimator", "gigpo"), "actor_rollout_ref.actor.use_kl_loss=True", "data.train_files=<other tasks>"),
            )
    return None


def _inactive(run: Run) -> Advice | None:
    values = run.series((P + "active",))[1]
    if not len(values) or values.max() > SWITCHED_OFF:
        return None
    return Advice(
        "the chosen methods never did anything",
        f"active: 0 in all {len(values)} steps",
        "The workers did not load the plugin, or another loss took its place: the run was verl's alone.",
        ("check with `verl-entropy doctor`",),
    )


def _success_falls(run: Run) -> Advice | None:
    steps, values = run.series(NAMES_OF_SUCCESS)
    for width, last, share in FALLS:
        if len(values) < 2 * width:
            continue
        mean = np.convolve(values, np.ones(width) / width, mode="valid")
        best, end = int(mean.argmax()), float(values[-last:].mean())
        if mean[best] >= LEAST_SUCCESS and end <= share * mean[best]:
            half = steps[np.flatnonzero(values >= mean[best] / 2)[-1]]
            return Advice(
                "success fell",
                f"{run.first_key(NAMES_OF_SUCCESS)}: {mean[best]:.3g} around step {steps[best + width // 2]}, half of that last in step "
                f"{half}, {end:.3g} at the end",
                "Whatever entropy does, the policy got worse: take the checkpoint at the best level; a smaller step or a KL term keeps it.",
                (_smaller_step(run), "actor_rollout_ref.actor.use_kl_loss=True"),
            )
    return None


def _harmless(run: Run) -> Advice | None:
    """Success is lost to actions that are valid and do nothing."""
    key = P + "valid_action_ratio"
    valid, end, last = run.series((key,))[1], _tail(run, *NAMES_OF_SUCCESS), _tail(run, key)
    if len(valid) < 2 * TAIL or end > GONE or last < ALL_VALID or _success_falls(run) is None:
        return None
    return Advice(
        "valid actions instead of the task",
        f"duplication: valid actions {float(valid[:TAIL].mean()):.2f} at first, {last:.2f} at the end; success: {end:.2g} at the end",
        "Where a whole group fails, the penalty for invalid actions is all that tells its rollouts apart, and dividing by the group's standard "
        "deviation makes it weigh as much as success elsewhere: the policy learns harmless actions. So ended plain GRPO in the bench's unstable "
        "household (recipes/bench/README.md); sampling anew the groups whose rollouts all fail or all succeed kept every seed from it, leaving "
        "out the division did not. A smaller step helps, too.",
        (*_sample_anew(run), _smaller_step(run)),
    )


def _low_from_start(run: Run) -> Advice | None:
    values = run.series(ENTROPY)[1]
    if len(values) < TAIL or float(np.max(values[:TAIL])) >= LOW_ENTROPY or float(np.median(values)) >= LOW_ENTROPY:
        return None
    return Advice(
        "entropy is low from the start",
        f"entropy: {float(np.median(values[:TAIL])):.3g} nats in the first {TAIL} steps",
        "The model came with hardly any choice left (a long warm start?): there is nothing that could collapse. Start from an "
        "earlier checkpoint or sample hotter, then raise entropy (REPO, sec. 4: control from both sides).",
        ("actor_rollout_ref.rollout.temperature=1.2", "+entropy=repo_r_bidirectional", *_try("clip", "adapo")),
    )


def _causes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that lower what pushes entropy up in this run."""
    causes: list[str] = []
    active = active_methods(config)
    bonus = lookup(config, f"{POLICY_LOSS_PATH}.entropy_bonus.coef")
    if "entropy_bonus" in active:
        causes.append(
            f"{POLICY_LOSS_PATH}.entropy_bonus.coef={bonus / 10:g}" if _reaches(bonus, 1e-12) else "lower entropy_bonus.coef"
        )
    coeff = lookup(config, "actor_rollout_ref.actor.entropy_coeff")
    if _reaches(coeff, 1e-12) and not {"entropy_bonus", "epo", "siren"} & active:
        causes.append("actor_rollout_ref.actor.entropy_coeff=0")
    high = lookup(config, "actor_rollout_ref.actor.clip_ratio_high")
    if _reaches(high, HIGH_CLIP):
        causes.append("actor_rollout_ref.actor.clip_ratio_high=0.2")
    if _reaches(lookup(config, "actor_rollout_ref.rollout.temperature"), HOT):
        causes.append("actor_rollout_ref.rollout.temperature=1.0")
    if "repo_r" in active and not lookup(config, f"{ALGORITHM_PATH}.repo_r.bidirectional"):
        causes.append("+entropy=repo_r_bidirectional")  # REPO, App. B: one-sided, it goes on raising entropy above the target
    if "epo" in active and not lookup(config, f"{ALGORITHM_PATH}.presets.epo_corridor"):
        causes.append("+entropy=epo_corridor")  # the paper's values raise entropy above the corridor too
    return tuple(causes)


def _fit(config: Mapping[str, Any], item: Advice) -> Advice:
    """The advice as it is valid with what the run has: without what it has or what is refused beside that; and it says what failed."""
    active = active_methods(config)
    by_key = {m.key: m for m in registry.methods()}
    had = [m for m in item.methods if _has(config, m)]
    kept = []
    sources = {}
    for method in item.methods:
        algorithm = by_key.get(method)
        if method in had or (algorithm is not None and (_refused(algorithm, active) or not _runs_with(config, algorithm))):
            continue
        if algorithm is not None:
            listed = [m.name for m in registry.methods("transform") if m.name in active] if algorithm.kind == "transform" else []
            method = method.replace(f"[{algorithm.name}]", f"[{','.join([*listed, algorithm.name])}]")  # beside those of the run
            sources[method] = algorithm.source
        kept.append(method)
    why, symptom = item.why, item.symptom
    names = [by_key[m].name if m in by_key else m for m in had]
    if names:
        why += (
            f" The run had {', '.join(names)} already, and that did not prevent it: look at its strength before adding another."
        )
    if "erupt" in symptom or "runs away" in symptom:
        causes = _causes(config)
        if causes:
            why = "This run pushes entropy up itself; lower that first. " + why
        if names:
            kept = [*kept, "+entropy=repo_r_bidirectional"] if not {"repo_r", "repo_d"} & active else kept
        kept = [*causes, *kept]
    return replace(item, why=why, methods=tuple(dict.fromkeys(kept)), sources=sources)


def _runs_with(config: Mapping[str, Any], algorithm: Method) -> bool:
    """Whether our checks, which pass the run's configuration, pass it with ``algorithm`` too; True where they cannot say."""
    raw: dict[str, Any] = deepcopy(dict(config))
    if lookup(raw, "actor_rollout_ref.actor.strategy") is None:  # not the whole configuration
        return True
    try:
        checks.check(plans.read(raw), raw)
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError):
        return True
    path, _, value = algorithm.key.lstrip("+").partition("=")
    *parents, last = path.split(".")
    node = raw
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = [algorithm.name] if value.startswith("[") else 0.02 if algorithm.kind == "head" else value
    try:
        checks.check(plans.read(raw), raw)
    except ConfigError:
        return False
    return True


def _refused(algorithm: Method, active: set[str]) -> bool:
    """Whether our checks refuse ``algorithm`` beside the methods of the run: two owners of the entropy term, or a conflict."""
    others = [m for m in registry.methods() if m.name in active]
    if algorithm.kind == "regularizer" and any(a.kind == "regularizer" and a.name != algorithm.name for a in others):
        return True
    pairs = [(algorithm, a) for a in others] + [(a, algorithm) for a in others]
    return any(name == other.name for one, other in pairs for name in one.conflicts)


RULES: tuple[tuple[str, tuple[str, ...], Callable[[Run], Advice | None]], ...] = (
    ("success", NAMES_OF_SUCCESS, _success_falls),
    ("valid actions without success", (P + "valid_action_ratio",), _harmless),
    ("eruption", ENTROPY, _eruption),
    ("low entropy", ENTROPY, _low_from_start),
    ("collapse", ENTROPY, _collapse),
    ("step change", ENTROPY, _step_change),
    ("likelihood of valid trajectories", (P + "likelihood/valid_log_prob_mean",), _likelihood_falls),
    ("early and late entropy", (P + "entropy_early/turns",), _early_growth),
    ("groups without variance", (P + "group/zero_variance",), _zero_variance),
    ("gradient", ("actor/grad_norm",), _no_gradient),
    ("repeated responses", tuple(REPEATS), _templates),
    ("clip sides", (P + "clipfrac_high",), _one_sided_clip),
    ("invalid turns", (P + "valid_action_ratio",), _invalid),
    ("repeated actions", (P + "repeated_action_ratio",), _repeats),
    ("trainer-sampler mismatch", ("training/rollout_probs_diff_mean",), _mismatch),
)


def advise_run(run: Run) -> AdviceList:
    """``advise`` for a run that was read already."""
    items, missing = [], {}
    for rule in (_non_finite, _inactive):  # of every run: what they look for is a value that is absent or always zero
        found = rule(run)
        if found is not None:
            items.append(_fit(run.reader.config, found))
    for name, keys, rule in RULES:
        if run.first_key(keys) is None:
            missing[name] = " or ".join(keys)
            continue
        found = rule(run)
        if found is not None:
            items.append(_fit(run.reader.config, found))
    if run.first_key(ENTROPY) is None and not items:
        items.append(
            Advice(
                "the run has no entropy",
                f"none of {', '.join(ENTROPY)} has a value in {len(run.reader.steps)} steps",
                "Nothing can be said about it without.",
                ("+algorithm.entropy.diagnostics.enabled=true",),
            )
        )
    return AdviceList(run.name, items, missing, list(run.reader.problems))


def advise(path: str | Path) -> AdviceList:
    """Symptoms of the run at ``path``, with methods meant for them; RunFileError if it has no step."""
    (run,) = load([path])
    if unread := without_steps([run]):
        raise RunFileError(unread[0])
    return advise_run(run)
