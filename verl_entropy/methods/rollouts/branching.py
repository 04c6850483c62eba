# SPDX-License-Identifier: Apache-2.0
"""Branching rollouts (ARPO, AEPO): part of a prompt's n leaves go on from turns at which the policy was unsure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_entropy.batch.turns import Packed, padded
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Metric, Rollout, setting
from verl_entropy.methods.result import TransformResult
from verl_entropy.methods.scheme import Moment, Scheme, TopLogProbs

RULES = ("paper", "released")


@dataclass(frozen=True)
class Branching:
    """Roots, branch points and shared turns of branching rollouts (AEPO, arXiv 2510.14545; ARPO, 2507.19849)."""

    rule: str = setting(
        "paper",
        "who branches: the paper's rule, or that of the authors' released code with its faults (see the functions)",
        choices=RULES,
    )
    roots: int | None = setting(
        None,
        "sessions of a prompt that start as roots, at most n (released scripts: 6 of 12, 8 of 16); null: by the entropies",
        ge=1,
    )
    beta: float = setting(
        0.5, "how fast the number of roots follows H_root - H_tool (released code; its equation is the paper's)"
    )
    alpha: float = setting(0.5, "branch probability without a change of entropy (rule=paper)")
    gamma: float = setting(0.2, "weight of the change of entropy")
    tau: float = setting(0.5, "threshold of the branch probability")
    penalty: float | None = setting(
        None, "P(l) = penalty l after l branches in a row; null: gamma (paper), 0.05 (released code); 0: none (ARPO)", ge=0.0
    )
    measure: str = setting(
        "sampled",
        "entropy of a turn: mean of -log p of the sampled tokens, or, as released, that of the 10 most likely words, summed, over ln V",
        choices=("sampled", "top10"),
    )
    vocabulary: int | None = setting(None, "V of measure=top10; null: 151936 (Qwen2.5 and Qwen3)", ge=2)
    tokens: int = setting(20, "first tokens of a turn that its entropy is of", ge=1)
    beam: int = setting(2, "leaves that go on from a branch point, the chain itself among them", ge=2)
    shared: str = setting(
        "each",
        "a turn that several leaves share is trained in each of them (released code), or once with the mean of their advantages",
        choices=("each", "mean"),
    )
    seed: int = setting(0, "of the draws of rule=released", ge=0)


# ----------------------------------------------------------------------------- how many roots


def paper_roots(n: int, root_entropy: float, tool_entropy: float, *, beta: float = 0.5) -> float:
    """The share of the budget that goes to whole trajectories, before rounding.

        m = n sigma(beta (H_root - H_tool))                            rule=paper: m roots, n - m branches

    H_root: entropy of the first turns; H_tool: of the turns after a tool result. Both come from the step before (the paper: an extra
    rollout of the prompt), so that nothing is sampled twice. Source: AEPO, arXiv 2510.14545, read through a note that quotes it.
    """
    return n / (1.0 + math.exp(-beta * (root_entropy - tool_entropy)))


def released_roots(n: int, root_entropy: float, tool_entropy: float, *, beta: float = 0.5) -> int:
    """The same in the authors' code, which rounds down and adds one.

        m = clip(int(n sigma(beta (H_root - H_tool))) + 1, 1, n)       rule=released

    Source: wangevan6/ARPO at adacf0c, ``vllm_rollout_with_tools.py``. Faults: the entropies there are sums over ln V, so small that m
    stays near n / 2 + 1; both shipped scripts switch the rule off (6 roots of 12, 8 of 16).
    """
    return min(max(int(paper_roots(n, root_entropy, tool_entropy, beta=beta)) + 1, 1), n)


# ----------------------------------------------------------------------------- when a chain branches


def paper_probability(entropy: float, first: float, streak: int, *, alpha: float, gamma: float, penalty: float) -> float:
    """Branch probability of a turn after a tool result.

        P_t = (alpha + gamma (H_t - H_first)) (1 - P(l)),   P(l) = min(penalty l, 1);   rule=paper: branch if P_t > tau

    H_first: the chain's first turn; l: decisions in a row in which this chain branched. ARPO is P(l) = 0. Source: AEPO, arXiv
    2510.14545 (P(l) = gamma l, one letter for both), and ARPO, arXiv 2507.19849.
    """
    return (alpha + gamma * (entropy - first)) * (1.0 - min(penalty * streak, 1.0))


def released_score(draw: float, entropy: float, first: float, streak: int, *, gamma: float, penalty: float = 0.05) -> float:
    """The score that decides in the authors' code.

        s = clip((u + gamma (H_t - H_first)) max(0, 1 - penalty l), 0, 1),   u uniform;   rule=released: branch if s >= tau

    Source: wangevan6/ARPO at adacf0c. Faults: entropy is nearly drowned by u; H_t is read before the last tool result, so that the
    branch begins one turn after the uncertain one; l counts rounds of the whole prompt, not of the chain; H_first is kept from the
    first batch ever by position in the batch, so it is another prompt's (here: the mean over the first batch). ARPO's code is the
    same without l.
    """
    return min(max((draw + gamma * (entropy - first)) * max(0.0, 1.0 - penalty * streak), 0.0), 1.0)


# ----------------------------------------------------------------------------- the entropy of a turn


def sampled_entropy(log_probs: Sequence[float], tokens: int = 20) -> float:
    """Estimate of a turn's entropy from what was sampled anyway, in nats per token; 0 without tokens.

        H = -mean log p(a_t), t among the first ``tokens``                   unbiased at temperature 1, top_p = 1 and top_k = -1

    ``log_probs``: of the sampled tokens, by the sampler. Source: ours; the papers take the entropy of the most likely words.
    """
    first = log_probs[:tokens]
    return -sum(first) / len(first) if first else 0.0


def top_entropy(top_log_probs: TopLogProbs, vocabulary: int, tokens: int = 20) -> float:
    """Entropy of the most likely words as the released code takes it; a sum over tokens, not a mean.

        H = -sum_t sum_k p_tk log p_tk / ln V                       k: the 10 most likely words, t: the first ``tokens`` tokens

    ``top_log_probs``: of each token those of its most likely words, largest first. Source: wangevan6/ARPO at adacf0c.
    """
    return -sum(math.exp(p) * p for row in top_log_probs[:tokens] for p in row[:10]) / math.log(vocabulary)


# ----------------------------------------------------------------------------- what an agent loop asks


def _scheme(s: Branching, told: Mapping[str, Any]) -> Scheme:
    paper = s.rule == "paper"
    penalty = s.penalty if s.penalty is not None else (s.gamma if paper else 0.05)
    root, tool = told.get("root"), told.get("tool")
    if root is None or tool is None:
        root = tool = 0.0  # nothing is measured yet, or no turn follows a tool result: half of the budget

    def roots(n: int) -> int:
        if s.roots is not None:
            return min(s.roots, n)
        if paper:
            return min(max(math.floor(paper_roots(n, root, tool, beta=s.beta) + 0.5), 1), n)
        return released_roots(n, root, tool, beta=s.beta)

    def entropy(log_probs: Sequence[float], top: TopLogProbs | None) -> float:
        if s.measure == "sampled":
            return sampled_entropy(log_probs, s.tokens)
        if top is None:
            raise RuntimeError(
                "branching.measure=top10: the rollout server gave no log-probs of the most likely words. Set measure=sampled."
            )
        return top_entropy(top, s.vocabulary or 151936, s.tokens)

    def branches(at: Moment) -> bool:
        if paper:
            return paper_probability(at.entropy, at.first, at.streak, alpha=s.alpha, gamma=s.gamma, penalty=penalty) > s.tau
        return released_score(at.draw, at.entropy, at.first, at.streak, gamma=s.gamma, penalty=penalty) >= s.tau

    first = None if paper else told.get("first")
    top = 10 if s.measure == "top10" else 0
    return Scheme(roots, entropy, branches, s.beam, not paper, not paper, not paper, top, first, s.seed)


# ----------------------------------------------------------------------------- advantage side


def turn_records(ctx: AdvantageContext) -> list[Mapping[str, Any]]:
    """The agent loop's record of each turn, in the order of ``ctx.turns``; empty dicts where it gives none."""
    extra = ctx.fields.get("extra_fields")
    if not extra:
        return [{}] * ctx.turns.num_turns
    return [record for row in dict.fromkeys(ctx.turns.row_K.tolist()) for record in extra[row].get("turns") or ()]


class Measured:
    """Entropies of the last step's turns, for the next step's number of roots."""

    of_each_batch = False

    def __init__(self, settings: Branching):
        self._now: dict[str, float | None] = {"root": None, "tool": None, "first": None}

    def step(self, ctx: AdvantageContext) -> dict[str, Any]:
        """Means over the turns that were sampled in their own leaf: first turns (root) and later ones (tool)."""
        index, records = ctx.turns.index_K.tolist(), turn_records(ctx)
        own = [(k, r) for k, r in zip(index, records, strict=True) if r.get("entropy") is not None and not r.get("copied")]
        found = {"root": [r["entropy"] for k, r in own if k == 0], "tool": [r["entropy"] for k, r in own if k > 0]}
        for name, values in found.items():
            self._now[name] = sum(values) / len(values) if values else None
            if values:
                ctx.metrics[f"verl_entropy/branching/{name}_entropy"] = self._now[name]  # type: ignore[assignment]
        if self._now["first"] is None:
            self._now["first"] = self._now["root"]
        if any("origin" in r for r in records):
            copied_J = {t for t, r in zip(ctx.turns.trajectory_K.tolist(), records, strict=True) if r.get("copied")}
            ctx.metrics["verl_entropy/branching/branched_leaves"] = len(copied_J) / max(1, ctx.turns.num_trajectories)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The three means in the unit of ``measure``; null where nothing was measured."""
        return dict(self._now)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Restore ``state_dict``."""
        for value in (values["root"], values["tool"], values["first"]):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"an entropy of {value}")
        self._now = {name: values[name] for name in self._now}


def once(ctx: AdvantageContext, advantages: Tensor | Packed, origin: Sequence[Any]) -> TransformResult:
    """Turns that several leaves share, trained once with the mean of the leaves' advantages.

        A'_t = mean over the leaves with the turn of A_t, in the first of them; the copies leave the loss       shared=mean

    ``origin``: of each turn (K,) who sampled it; None: it is shared with nobody. Turns of one prompt, origin and place in the episode
    are the same turn. Shapes: advantages and result (R, T).
    """
    turns = ctx.turns
    start_K, length_K = (x.tolist() for x in turns.segments)
    same: dict[Any, list[int]] = {}
    for k, key in enumerate(zip(turns.group_K.tolist(), origin, turns.index_K.tolist(), strict=True)):
        if key[1] is not None:
            same.setdefault(key, []).append(k)
    shared = [copies for copies in same.values() if len(copies) > 1]
    if not shared:
        return TransformResult(advantages, metrics={"copied_tokens": 0.0})
    flat_N, mask_RT = padded(advantages).clone().reshape(-1), turns.mask_RT.clone()
    kept_N, dropped = mask_RT.view(-1), 0
    for first, *copies in shared:
        if {length_K[k] for k in copies} != {length_K[first]}:
            raise RuntimeError(
                f"turns of {origin[first]} that are said to be equal have {[length_K[k] for k in (first, *copies)]} tokens"
            )
        at_LN = torch.stack([torch.arange(start_K[k], start_K[k] + length_K[k], device=flat_N.device) for k in (first, *copies)])
        trained_LN = kept_N[at_LN]
        mean_N = torch.where(trained_LN, flat_N[at_LN], 0.0).sum(0) / trained_LN.sum(0).clamp_min(1)
        flat_N[at_LN[0]] = mean_N
        dropped += int(trained_LN[1:].sum())
        kept_N[at_LN[1:].reshape(-1)] = False
    return TransformResult(flat_N.view(mask_RT.shape), mask_RT, {"copied_tokens": float(dropped)})


def _share(ctx: AdvantageContext, advantages: Tensor | Packed, s: Branching) -> TransformResult:
    if s.shared == "each":
        return TransformResult(advantages)
    return once(ctx, advantages, [record.get("origin") for record in turn_records(ctx)])


def _doubts(s: Branching, raw: Mapping[str, Any]) -> Iterator[str]:
    rollout = (raw.get("actor_rollout_ref") or {}).get("rollout") or {}
    temperature = float(rollout.get("temperature") or 1.0)
    if s.measure == "sampled" and temperature != 1.0:
        yield (
            f"actor_rollout_ref.rollout.temperature={temperature:g}: branching measures entropy by the log-probs of sampled tokens, which is "
            "unbiased at temperature 1 only. Set temperature=1."
        )
    n = int(rollout.get("n") or 1)
    if s.roots is not None and s.roots >= n:
        yield f"algorithm.entropy.branching.roots={s.roots}: all {n} sessions start as roots, so nothing branches. Set roots below rollout.n."


BRANCHING = Rollout(
    name="branching",
    summary="leaves of a prompt go on from turns at which the policy was unsure, instead of each from the start",
    when="long multi-turn episodes whose decisions hang on a few turns; fewer generated tokens for n leaves",
    cost="none measurable, but the live chains of a prompt wait for one another at each turn while leaves are left to branch; leaves of "
    "a branch share their beginning, so they differ less",
    source="AEPO, arXiv 2510.14545; ARPO, arXiv 2507.19849; wangevan6/ARPO @adacf0c",
    settings=Branching,
    function="verl_entropy.methods.rollouts.branching.paper_probability",
    equations=tuple(
        f"verl_entropy.methods.rollouts.branching.{name}"
        for name in ("paper_roots", "released_score", "released_roots", "sampled_entropy", "top_entropy", "once")
    ),
    needs=frozenset({"group", "sampled", "snapshot"}),
    needs_with={"measure": {"top10": "top_log_probs"}},
    doubts=_doubts,
    drops=True,
    keeps_with=("shared", "each"),
    metrics={
        "root_entropy": Metric("mean entropy of first turns, by the setting measure", "nats"),
        "tool_entropy": Metric("the same of later turns, those of shared beginnings counted once", "nats"),
        "branched_leaves": Metric("leaves that went on from a branch", "share"),
        "copied_tokens": Metric(
            "tokens of shared turns that left the loss, as they are trained in another leaf (shared=mean)", "tokens"
        ),
    },
    neutral={"roots": 1_000_000},
    state=Measured,
    apply=_scheme,
    share=_share,
)
