# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of every step, from what the trainer has in memory anyway: old log-probs, their entropy, advantages, turns.

No forward pass. Every function below says which metrics it gives; formula, unit and source of each are in ``diagnostics.glossary``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl_entropy.batch.numerics import group_range
from verl_entropy.batch.turns import Turns
from verl_entropy.diagnostics import likelihood, predictors, text, windows
from verl_entropy.diagnostics.glossary import LIVE, PREFIX
from verl_entropy.diagnostics.health import HEALTH, Health
from verl_entropy.diagnostics.phases import PHASES, SIGNS, PhaseDetector
from verl_entropy.diagnostics.settings import ACTIONS, Live

POLICY_GAP = "training/rollout_probs_diff_mean"
OTHER_POLICY = 0.05
"""A ``POLICY_GAP`` beyond rounding: bf16 gives .012 and less, a step that was sampled with another run's weights .07 to .17."""
MAX_TURN_KEYS = 32
"""Turn indices that get their own metric; later turns only enter the means."""
_STEPS: list[Callable] = []


def gives(*keys: str) -> Callable:
    """Have the decorated function computed in every step; ``keys``: the metrics that it gives, each described in ``glossary.LIVE``."""
    if unknown := [key for key in keys if key not in LIVE]:
        raise ValueError(f"metrics {unknown} have no formula, unit and source. Add them to diagnostics.glossary.LIVE.")

    def enter(function: Callable) -> Callable:
        _STEPS.append(function)
        return function

    return enter


@dataclass
class Inputs:
    """What the functions read, computed once per step."""

    turns: Turns
    settings: Live
    entropy_RT: Tensor | None
    log_prob_RT: Tensor | None
    advantages_RT: Tensor | None
    centre_RT: Tensor | None
    trained_RT: Tensor
    """Tokens whose advantages train: the mask after transforms."""
    actions: list[list[dict]]
    """Per trajectory the environment's records of its turns, in order."""
    texts: Sequence[str] | None
    valid_J: Tensor | None
    _means: dict[str, Tensor] = field(default_factory=dict)

    def mean_K(self, name: str) -> Tensor:
        """Token mean per turn of a field, fp32 [K]."""
        if name not in self._means:
            self._means[name] = self.turns.mean(getattr(self, name))
        return self._means[name]

    def classes(self) -> dict[str, Tensor]:
        """Members of the classes of trajectories that are not empty, bool [J]."""
        found = {"correct": self.turns.success_J, "wrong": ~self.turns.success_J, "valid": self.valid_J}
        return {name: member for name, member in found.items() if member is not None and bool(member.any())}


# ----------------------------------------------------------------------------- episodes


@gives("success", "turns", "valid_action_ratio")
def episodes(x: Inputs) -> dict[str, float]:
    turns = x.turns
    found = {"success": float(turns.success_J.float().mean()), "turns": turns.num_turns / turns.num_trajectories}
    if turns.valid_K is not None:
        found["valid_action_ratio"] = float(turns.valid_K.float().mean())
    return found


# ----------------------------------------------------------------------------- entropy


@gives("turn_entropy/<k>")
def turn_entropy(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None:
        return {}
    index_K = x.turns.index_K
    count = int(index_K.max()) + 1
    total = torch.zeros(count, dtype=torch.float64, device=index_K.device)
    total.index_add_(0, index_K, x.mean_K("entropy_RT").double())
    means = (total / torch.bincount(index_K, minlength=count)).tolist()
    return {f"turn_entropy/{k}": value for k, value in enumerate(means[:MAX_TURN_KEYS])}


@gives("entropy_early/turns", "entropy_late/turns", "windows_overlap/turns")
def early_late_turns(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None:
        return {}
    turns = x.turns
    length_J = torch.bincount(turns.trajectory_K, minlength=turns.num_trajectories)
    found = windows.window_means(x.mean_K("entropy_RT"), turns.index_K, length_J, turns.trajectory_K, x.settings.early_late)
    return {"entropy_early/turns": found.early, "entropy_late/turns": found.late, "windows_overlap/turns": found.overlap}


@gives("entropy_early/tokens", "entropy_late/tokens")
def early_late_tokens(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None:
        return {}
    early, late = _end_tokens(x.entropy_RT, x.turns, x.settings.early_late)
    return {"entropy_early/tokens": early, "entropy_late/tokens": late}


def _end_tokens(entropy_RT: Tensor, turns: Turns, n: int) -> tuple[float, float]:
    """Means over trajectories of their first and last ``n`` trained tokens; only the tokens in these windows are read.

    Source: EPO, appendix B.4.1 (n = 10), which contradicts the caption of Fig. 1 and 7 (steps of the trajectory); hence both.
    """
    start_K, length_K = turns.segments
    ends_K = length_K.cumsum(0)
    first = torch.searchsorted(turns.trajectory_K, torch.arange(turns.num_trajectories + 1, device=turns.device))
    ends = torch.cat([ends_K.new_zeros(1), ends_K])
    begin_J, end_J = ends[first[:-1]], ends[first[1:]]
    offset = torch.arange(n, device=turns.device)
    flat = entropy_RT.reshape(-1)

    def window(rank_JN: Tensor, inside_JN: Tensor) -> float:
        rank = rank_JN.clamp(0, max(int(ends[-1]) - 1, 0))
        turn = torch.searchsorted(ends_K, rank, right=True)
        value = flat[start_K[turn] + rank - ends[turn]].double()
        total = torch.where(inside_JN, value, 0.0).sum(1)
        return float((total / inside_JN.sum(1)).mean())

    early = begin_J[:, None] + offset
    late = end_J[:, None] - 1 - offset
    return window(early, early < end_J[:, None]), window(late, late >= begin_J[:, None])


@gives("response_entropy/mean", "response_entropy/std", "response_entropy/p10", "response_entropy/p50", "response_entropy/p90")
def response_entropy(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None:
        return {}
    value_K = x.mean_K("entropy_RT").double()
    quantiles = np.percentile(value_K.cpu().numpy(), (10, 50, 90))
    found = {"mean": float(value_K.mean()), "std": float(value_K.std(correction=0))}
    found.update(zip(("p10", "p50", "p90"), map(float, quantiles), strict=True))
    return {f"response_entropy/{name}": value for name, value in found.items()}


@gives("entropy_of/correct", "entropy_of/wrong", "entropy_of/valid")
def entropy_of_classes(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None:
        return {}
    _, mean_J = likelihood.per_trajectory(x.mean_K("entropy_RT"), x.turns)
    return {f"entropy_of/{name}": float(mean_J[member].mean()) for name, member in x.classes().items()}


# ----------------------------------------------------------------------------- likelihood


@gives(
    "likelihood/correct_log_prob_sum",
    "likelihood/correct_log_prob_mean",
    "likelihood/wrong_log_prob_sum",
    "likelihood/wrong_log_prob_mean",
    "likelihood/valid_log_prob_sum",
    "likelihood/valid_log_prob_mean",
)
def likelihood_of_classes(x: Inputs) -> dict[str, float]:
    if x.log_prob_RT is None:
        return {}
    total_J, mean_J = likelihood.per_trajectory(x.mean_K("log_prob_RT"), x.turns)
    found = {}
    for name, member in x.classes().items():
        found[f"likelihood/{name}_log_prob_sum"] = float(total_J[member].mean())
        found[f"likelihood/{name}_log_prob_mean"] = float(mean_J[member].mean())
    return found


# ----------------------------------------------------------------------------- predictors


@gives("predictor/repo", "predictor/covariance", "predictor/discriminator")
def predicted_change(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None or x.log_prob_RT is None or x.advantages_RT is None:
        return {}
    mask, advantages, log_prob = x.trained_RT, x.advantages_RT, x.log_prob_RT
    found = {
        "predictor/repo": predictors.repo_predictor(advantages, log_prob, x.entropy_RT, mask),
        "predictor/covariance": predictors.covariance_predictor(advantages, log_prob, mask),
    }
    if x.centre_RT is not None:
        found["predictor/discriminator"] = predictors.discriminator_predictor(
            advantages, log_prob, x.entropy_RT, x.centre_RT, mask
        )
    return {name: float(value) for name, value in found.items()}


@gives("aem_drift/surprisal", "aem_drift/surprisal_per_token", "aem_drift/entropy_proxy", "aem_drift/martingale")
def aem_drift(x: Inputs) -> dict[str, float]:
    if x.entropy_RT is None or x.log_prob_RT is None or x.advantages_RT is None:
        return {}
    found = predictors.aem_drift_of_turns(x.mean_K("advantages_RT"), x.mean_K("log_prob_RT"), x.mean_K("entropy_RT"), x.turns)
    return {f"aem_drift/{name}": float(value) for name, value in found.items()}


# ----------------------------------------------------------------------------- groups, actions, text


@gives("group/zero_variance", "group/effective_batch", "group/singletons")
def group_statistics(x: Inputs) -> dict[str, float]:
    turns = x.turns
    low_J, high_J = group_range(turns.score_J, turns.group_J, turns.num_groups)
    size = torch.bincount(turns.group_J, minlength=turns.num_groups)
    same = torch.zeros_like(size, dtype=torch.bool).index_fill_(0, turns.group_J[low_J == high_J], True)
    return {
        "group/zero_variance": float(same.float().mean()),
        "group/effective_batch": float(size[~same].sum()),
        "group/singletons": float((size == 1).float().mean()),
    }


@gives("repeated_action_ratio", "action_duplication")
def repeated_actions(x: Inputs) -> dict[str, float]:
    lists = [[turn["action"] for turn in turns if turn.get("action") is not None] for turns in x.actions]
    lists = [actions for actions in lists if actions]
    pairs = sum(len(actions) - 1 for actions in lists)
    if not lists:
        return {}
    same = sum(a == b for actions in lists for a, b in pairwise(actions))
    distinct = [1.0 - len(set(actions)) / len(actions) for actions in lists]
    return {"repeated_action_ratio": same / pairs if pairs else 0.0, "action_duplication": sum(distinct) / len(distinct)}


@gives("invalid_turn_ratio", "valid_trajectory_ratio")
def validity(x: Inputs) -> dict[str, float]:
    if x.turns.valid_K is None or x.valid_J is None:
        return {}
    return {
        "invalid_turn_ratio": float((~x.turns.valid_K).float().mean()),
        "valid_trajectory_ratio": float(x.valid_J.float().mean()),
    }


@gives("format_error_ratio", "inadmissible_action_ratio")
def turn_errors(x: Inputs) -> dict[str, float]:
    records = [turn for turns in x.actions for turn in turns if "valid" in turn and "admissible" in turn]
    if not records:
        return {}
    wrong = sum(not turn["valid"] and bool(turn["admissible"]) for turn in records)
    return {
        "format_error_ratio": wrong / len(records),
        "inadmissible_action_ratio": sum(not turn["admissible"] for turn in records) / len(records),
    }


@gives("duplication")
def duplication(x: Inputs) -> dict[str, float]:
    if not x.texts:
        return {}
    every = max(math.ceil(len(x.texts) / x.settings.max_texts), 1)
    return {"duplication": text.mean_sentence_duplication(x.texts[::every])}


# ----------------------------------------------------------------------------- over steps


def _records(ctx: Any) -> list[list[dict]]:
    """The environment's records of the turns of each trajectory, in order; empty where the agent loop gives none."""
    extra, turns = ctx.fields.get("extra_fields"), ctx.turns
    if not extra:
        return []
    rows = turns.row_K.tolist()
    found: list[list[dict]] = [[] for _ in range(turns.num_trajectories)]
    previous = -1
    for row, trajectory in zip(rows, turns.trajectory_K.tolist(), strict=True):
        if row != previous:  # turns of a row are neighbours
            found[trajectory] += extra[row].get("turns") or []
        previous = row
    return found


def step_diagnostics(ctx: Any, settings: Live | None = None, texts: Sequence[str] | None = None) -> dict[str, float]:
    """Metrics of one step from its advantage context; those whose inputs are missing or undefined are left out.

    ``texts``: decoded responses for the duplication of sentences.
    """
    if ctx.turns.num_turns == 0:
        return {}
    inputs = Inputs(
        turns=ctx.turns,
        settings=settings or Live(),
        entropy_RT=ctx.entropy_RT,
        log_prob_RT=ctx.old_log_probs_RT,
        advantages_RT=ctx.advantages_RT,
        centre_RT=ctx.fields.get("vocab_centre"),
        trained_RT=ctx.mask_RT.bool() & (ctx.turns.turn_RT >= 0),
        actions=_records(ctx),
        texts=texts,
        valid_J=likelihood.valid_trajectories(ctx.turns),
    )
    found: dict[str, float] = {}
    with torch.no_grad():
        for function in _STEPS:
            found.update(function(inputs))
    return {PREFIX + name: value for name, value in found.items() if math.isfinite(value)}


class LiveDiagnostics:
    """``step_diagnostics`` and what needs earlier steps: the realised change, sums, phases. State is plain JSON."""

    def __init__(self, settings: Live | None = None):
        self.settings = settings or Live()
        self.detector = PhaseDetector(self.settings.detector)
        self.health = Health(self.settings.template_share, self.settings.detector.collapse_nats)
        self._resumed = False
        self.cumulative = windows.CumulativeEntropy()
        self._entropy: float | None = None
        self._predicted: dict[str, float] = {}
        self._agreement: dict[str, list[int]] = {}
        self.action = "none"
        """The strongest of what ``on_eruption`` and its like ask for after this step; "none" unless something was seen in it."""
        self.reason = "eruption"
        """The event that asks for it."""
        self.messages: list[str] = []
        """What was seen in this step, for the console."""

    def step(self, ctx: Any, texts: Sequence[str] | None = None, extra: dict[str, float] | None = None) -> dict[str, float]:
        """Metrics of this step; ``extra``: metrics computed elsewhere (``verl_entropy/interference/drift_negative``)."""
        metrics = step_diagnostics(ctx, self.settings, texts)
        metrics.update(self._change(ctx.entropy, metrics))
        if self._resumed:
            self.detector.resumed()
        events = self.detector.update(
            ctx.step,
            ctx.entropy,
            interference_negative=(extra or {}).get(PREFIX + "interference/drift_negative"),
            valid_log_prob=metrics.get(PREFIX + "likelihood/valid_log_prob_mean"),
        )
        self.messages = [
            f"verl-entropy: {e.name.replace('_', ' ')} at step {e.step} (from step {e.onset}; level {e.level:.4g})"
            + (self._drivers(metrics) if e.name == "eruption" else "")
            for e in events
            if e.name != "steady"
        ]
        self.action = "none"
        self._ask([e.name for e in events])
        if self._resumed:
            metrics[PREFIX + "resumed"] = 1.0
            self._resumed = False
        metrics[PREFIX + "phase"] = float(PHASES.index(self.detector.phase))
        metrics[PREFIX + "eruptions"] = float(sum(event.name == "eruption" for event in self.detector.events))
        for name in SIGNS:
            metrics[f"{PREFIX}sign/{name.removeprefix('sign_')}"] = float(self.detector.signs[name])
        return metrics

    def resumed(self) -> None:
        """Tell that the next step comes after a resume."""
        self._resumed = True

    def complete(self, step: int, metrics: dict[str, Any]) -> None:
        """Look at the metrics of a complete step, the update's too; adds the state of each event to them."""
        found = self.health.update(metrics)
        self.action = "none"
        self.messages = [f"verl-entropy: {name.replace('_', ' ')} at step {step} ({reason})" for name, reason in found]
        self._ask([name for name, _ in found])
        for name in HEALTH:
            metrics[f"{PREFIX}event/{name}"] = float(self.health.on[name])

    def _ask(self, names: Sequence[str]) -> None:
        for name in names:
            action = self.settings.action_on(name)
            if ACTIONS.index(action) > ACTIONS.index(self.action):
                self.action, self.reason = action, name

    def _drivers(self, metrics: dict[str, float]) -> str:
        """What goes along with an eruption: early signs that are on, and predictors that say rising."""
        along = [name.removeprefix("sign_") for name in SIGNS if self.detector.signs[name]]
        rising = [k.rsplit("/", 1)[1] for k, v in metrics.items() if k.startswith(PREFIX + "predictor/") and v > 0]
        return f"; early signs: {', '.join(along) or 'none'}; predictors of a rise: {', '.join(rising) or 'none'}"

    def _change(self, entropy: float | None, metrics: dict[str, float]) -> dict[str, float]:
        found = {}
        if entropy is not None:
            found["cumulative_entropy"] = self.cumulative.update(entropy)
        if entropy is not None and self._entropy is not None:
            found["entropy_change"] = entropy - self._entropy
            moved = self._predicted if found["entropy_change"] != 0.0 else {}
            for name, value in moved.items():
                history = self._agreement.setdefault(name, [])
                history.append(int(value * found["entropy_change"] > 0))
                del history[: -self.settings.agreement_window]
                found[f"predictor_agreement/{name}"] = sum(history) / len(history)
        prefix = PREFIX + "predictor/"
        self._entropy = entropy
        self._predicted = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
        return {PREFIX + name: value for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain JSON values."""
        return {
            "detector": self.detector.state_dict(),
            "health": self.health.state_dict(),
            "cumulative": self.cumulative.state_dict(),
            "entropy": self._entropy,
            "predicted": dict(self._predicted),
            "agreement": {name: list(values) for name, values in self._agreement.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict``; a missing or surplus key is an error."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"state of the diagnostics has keys {sorted(state)}: expected {sorted(self.state_dict())}.")
        self.detector.load_state_dict(state["detector"])
        self.health.load_state_dict(state["health"])
        self.cumulative.load_state_dict(state["cumulative"])
        self._entropy, self._predicted = state["entropy"], dict(state["predicted"])
        self._agreement = {name: list(values) for name, values in state["agreement"].items()}


def turn_columns(ctx: Any) -> dict[str, Any]:
    """Per-turn arrays for the run file: ids, length, entropy, log-prob, advantage, reward, valid."""
    turns = ctx.turns
    columns: dict[str, Any] = {
        "trajectory": turns.trajectory_K.int(),
        "group": turns.group_K.int(),
        "turn": turns.index_K.int(),
        "tokens": turns.lengths_K.int(),
        "success": turns.success_J[turns.trajectory_K],
    }
    for name, value_RT in (("entropy", ctx.entropy_RT), ("log_prob", ctx.old_log_probs_RT), ("advantage", ctx.advantages_RT)):
        if value_RT is not None:
            columns[name] = turns.mean(value_RT)
    for name, value_K in (("reward", turns.reward_K), ("valid", turns.valid_K)):
        if value_K is not None:
            columns[name] = value_K
    return {name: value.cpu().numpy() for name, value in columns.items()}


MAX_PROMPT_CHARS = 4000
"""Of a stored prompt: its first and last halves, for the end holds what the agent sees now; prompts repeat the history."""
_CONTEXT = 8
"""Tokens before a token that are decoded with it: enough for a tokenizer to know whether a space belongs between them."""


def pieces(ids: list[int], decode: Callable[[list[int]], str]) -> list[str]:
    """The text of each token such that they join to ``decode(ids)``; a character of several tokens is the last one's."""
    found, start, done = [], 0, ""
    for end in range(1, len(ids) + 1):
        whole = decode(ids[start:end])
        if not whole.startswith(done) or (whole.endswith("\ufffd") and end < len(ids)):
            found.append("")  # the bytes of a character that is not complete, or a text that the next token changes
            continue
        found.append(whole[len(done) :])
        if end - start >= 2 * _CONTEXT:
            start = end - _CONTEXT
            whole = decode(ids[start:end])
        done = whole
    return found


def trajectories(
    ctx: Any,
    responses_RT: Tensor,
    decode: Callable[[list[int]], str],
    limit: int = 8,
    chosen: Sequence[int] | None = None,
    prompts: Sequence[Tensor] | None = None,
) -> list[dict[str, Any]]:
    """Trajectories for ``RunWriter.step(samples=...)``: at most ``limit``, the ``chosen`` ones or evenly spaced in the batch.

    Of every turn: what the agent saw (``prompt``, ``observation``), its text as tokens with their spaces, ``thought`` and ``action``,
    the reward, and per token entropy, log-prob, advantage before and after the transforms, the ratio trainer to sampler and which
    tokens a transform dropped, as far as the batch has them.

    Args:
        responses_RT: token ids of the rows, padded like ``ctx.mask_RT``.
        decode: token ids to text (``tokenizer.decode``); called once per turn and per token of the chosen ones.
        prompts: token ids of the rows' prompts, without padding.
    """
    turns, count = ctx.turns, ctx.turns.num_trajectories
    records, found = _records(ctx), []
    extra = ctx.fields.get("extra_fields")
    if chosen is None:
        chosen = sorted({round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)} if count else ())
    for j in map(int, chosen[:limit]):
        sample: dict[str, Any] = {"trajectory": j, "score": float(turns.score_J[j]), "success": bool(turns.success_J[j])}
        sample.update(group=int(turns.group_J[j]), turns=[])
        seen: dict[int, int] = {}
        for k in (turns.trajectory_K == j).nonzero().flatten().tolist():
            row = int(turns.row_K[k])
            place = turns.turn_RT[row] == k
            index = int(turns.index_K[k])
            record = records[j][index] if records and index < len(records[j]) else {}
            if extra and not sample["turns"]:
                sample.update({key: str(extra[row][key]) for key in ("task", "task_type") if extra[row].get(key)})
            turn = _turn_told(ctx, row, place, responses_RT[row][place].tolist(), decode)
            turn.update(_turn_seen(row, place, responses_RT, decode, prompts, seen.get(row)))
            seen[row] = int(place.nonzero()[-1]) + 1
            turn.update({key: record[key] for key in _RECORDED if record.get(key) not in (None, "")})
            sample["turns"].append(turn)
        found.append(sample)
    return found


_RECORDED = ("observation", "reward", "penalty", "valid", "admissible", "action", "cut")
"""What a trajectory keeps of the environment's record of a turn."""


def _turn_told(ctx: Any, row: int, place: Tensor, ids: list[int], decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """What the agent said in a turn, and what the batch has of its tokens."""
    turn: dict[str, Any] = {"text": decode(ids), "tokens": pieces(ids, decode)}
    if "</think>" in turn["text"]:
        turn["thought"] = turn["text"].split("</think>")[0].split("<think>")[-1].strip()
    for name, value_RT in (("entropy", ctx.entropy_RT), ("log_prob", ctx.old_log_probs_RT)):
        if value_RT is not None:
            turn[name] = [round(v, 4) for v in value_RT[row][place].tolist()]
    before_RT = ctx.fields.get("base_advantages")
    for name, listed, value_RT in (
        ("advantage", "advantages", ctx.advantages_RT),
        ("advantage_before", "advantages_before", before_RT),
    ):
        if value_RT is None:
            continue
        value_T = value_RT[row][place].float()
        turn[name] = float(value_T.mean())
        if float(value_T.max() - value_T.min()) > 1e-6:  # otherwise the turn's says it all
            turn[listed] = [round(v, 4) for v in value_T.tolist()]
    sampler_RT = ctx.fields.get("rollout_log_probs")
    if sampler_RT is not None and ctx.old_log_probs_RT is not None:
        ratio_T = (ctx.old_log_probs_RT[row][place] - sampler_RT[row][place]).exp()
        turn["ratio"] = [round(v, 4) for v in ratio_T.tolist()]
    trained_T = ctx.mask_RT[row][place].bool()
    if not bool(trained_T.all()):
        turn["dropped"] = (~trained_T).int().tolist()
    return turn


def _turn_seen(
    row: int,
    place: Tensor,
    responses_RT: Tensor,
    decode: Callable[[list[int]], str],
    prompts: Sequence[Tensor] | None,
    end_before: int | None,
) -> dict[str, str]:
    """What the agent saw before a turn: the row's prompt, or in a row of several turns what came since the turn before."""
    if end_before is not None:
        between = responses_RT[row][end_before : int(place.nonzero()[0])].tolist()
        return {"observation": decode(between)} if between else {}
    if prompts is None:
        return {}
    text = decode(prompts[row].tolist())
    half = MAX_PROMPT_CHARS // 2
    return {"prompt": text if len(text) <= MAX_PROMPT_CHARS else f"{text[:half]}\n[...]\n{text[-half:]}"}
