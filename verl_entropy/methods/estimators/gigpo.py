# SPDX-License-Identifier: Apache-2.0
"""Group-in-group policy optimisation (GiGPO, arXiv 2505.10978)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verl_entropy.batch.numerics import center_by_group
from verl_entropy.batch.turns import Turns
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.method import Estimator, Metric, setting
from verl_entropy.methods.result import RowScores


@dataclass(frozen=True)
class GiGPO:
    """Group-in-group policy optimisation: episode advantage + omega x step advantage (arXiv 2505.10978)."""

    gamma: float = setting(0.95, "discount of the step return (Eq. 5)", ge=0.0, le=1.0)
    omega: float = setting(1.0, "weight of the step advantage (Eq. 8)", ge=0.0)
    norm: str = setting("mean_std", "F_norm: divide by the group's std, or by 1", choices=("mean_std", "mean"))
    statistics: str = setting(
        "trajectory", "group statistics over trajectories (paper) or rows (verl-agent's code)", choices=("trajectory", "row")
    )
    similarity: float | None = setting(
        None, "group observations whose difflib ratio reaches this; null: equal only", gt=0.0, le=1.0
    )


def gigpo(
    turns: Turns,
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    norm: str = "mean_std",
    statistics: str = "trajectory",
    similarity: float | None = None,
    singleton: str = "zero",
    eps: float = 1e-6,
) -> tuple[Tensor, dict[str, float]]:
    """Episode advantage plus step advantage among turns with the same observation; (K,), fp32.

        A   = A^E + omega A^S                                                                 Eq. 8
        A^E = (R(tau) - mean) / F     over the trajectories of a prompt                       Eq. 3
        A^S = (R_t - mean) / F        over the turns of a prompt with the same observation    Eqs. 6-7
        R_t = sum_{k >= t} gamma^(k - t) r_k                                                  Eq. 5

    F is std + eps (ddof 1) or 1. A^S of an observation seen once is 0, and so is any group without variance.

    The authors' code (verl-agent) is ``statistics="row"``: mean and std of A^E over rows, so that long
    trajectories weigh more, and ``singleton="raw"``: the raw score for a group of one. Its default norm is
    "mean", and the score of a row there holds the penalty of that row alone; here a trajectory has one score.

    Args:
        gamma: discount of the step return.
        omega: weight of A^S; 0 needs no observations.
        norm: "mean_std" or "mean".
        statistics: "trajectory" or "row" (a turn counts as a row).
        similarity: group observations whose difflib ratio reaches this, in (0, 1]; None: equal ones only.
        singleton: advantage of a prompt group of one, "zero" or "raw".

    Returns:
        A_K, and metrics by short name (``verl_entropy/gigpo/<name>``).
    """
    episode_K = episode_advantage(turns, norm=norm, statistics=statistics, singleton=singleton, eps=eps)
    if omega == 0:
        return episode_K.float(), {}
    return_K = step_returns(turns, gamma)
    anchor_K = anchor_groups(turns, similarity)
    num_anchors = int(anchor_K.max()) + 1 if turns.num_turns else 0
    step_K = omega * center_by_group(return_K, anchor_K, num_anchors, norm=norm, eps=eps)
    return (episode_K + step_K).float(), _metrics(episode_K, step_K, return_K, anchor_K, num_anchors)


def episode_advantage(
    turns: Turns,
    *,
    norm: str = "mean_std",
    statistics: str = "trajectory",
    singleton: str = "zero",
    eps: float = 1e-6,
) -> Tensor:
    """A^E of Eq. 3; (K,), fp64. With ``statistics="trajectory"`` and "mean_std" this is GRPO."""
    if statistics == "trajectory":
        advantage_J = center_by_group(turns.score_J, turns.group_J, turns.num_groups, norm=norm, eps=eps, singleton=singleton)
        return advantage_J[turns.trajectory_K]
    if statistics == "row":
        score_K = turns.score_J[turns.trajectory_K]
        return center_by_group(score_K, turns.group_K, turns.num_groups, norm=norm, eps=eps, singleton=singleton)
    raise ValueError(f"statistics={statistics!r}: allowed are 'trajectory' and 'row'.")


def step_returns(turns: Turns, gamma: float) -> Tensor:
    """R_t = sum_{k >= t} gamma^(k - t) r_k - penalty_t (Eq. 5; the penalty is not discounted); (K,), fp64.

    Without rewards per turn the score of the trajectory is the reward of its last turn. That score holds the
    penalties of the trajectory already; a turn's own penalty is taken off its own return all the same, so
    that the turn is told apart from others with the same observation.
    """
    reward_K = turns.reward_K
    if reward_K is None:
        last_K = torch.ones_like(turns.trajectory_K, dtype=torch.bool)
        last_K[:-1] = turns.trajectory_K[1:] != turns.trajectory_K[:-1]
        reward_K = torch.where(last_K, turns.score_J[turns.trajectory_K], 0.0)
    return_K = discounted_returns(reward_K, turns.trajectory_K, gamma)
    return return_K if turns.penalty_K is None else return_K - turns.penalty_K


def discounted_returns(reward_K: Tensor, trajectory_K: Tensor, gamma: float) -> Tensor:
    """Discounted sum to the end of the trajectory, whose turns are adjacent; (K,) -> (K,), fp64.

    Doubling scan: after s rounds each turn holds the return of its next 2^s turns, so a trajectory of n turns
    takes log2(n) rounds.

    >>> rewards, trajectory = torch.tensor([0.0, 0.0, 10.0, 0.0, 4.0]), torch.tensor([0, 0, 0, 1, 1])
    >>> discounted_returns(rewards, trajectory, gamma=0.5).tolist()
    [2.5, 5.0, 10.0, 2.0, 4.0]
    """
    return_K, span = reward_K.double(), 1
    while span < len(return_K):
        same_K = trajectory_K[span:] == trajectory_K[:-span]
        if not bool(same_K.any()):
            break
        ahead_K = torch.where(same_K, return_K[span:], 0.0)
        return_K = torch.cat([return_K[:-span] + gamma**span * ahead_K, return_K[-span:]])
        span *= 2
    return return_K


# ----------------------------------------------------------------------------- observations


def anchor_groups(turns: Turns, similarity: float | None = None) -> Tensor:
    """Dense id of the group of turns that acted on the same observation of one prompt (Eq. 6); (K,), long.

    With ``similarity`` an observation joins the first group whose first member it resembles (difflib ratio).
    Distinct observations are visited by the earliest turn that saw them, then by text, so the order of the
    rows does not matter (the authors' code visits them in batch order).
    """
    if not turns.num_turns:
        return torch.zeros(0, dtype=torch.long, device=turns.device)
    if turns.anchor_K is None:
        raise ValueError(
            "GiGPO needs the observation of every turn and got none (turn_fields without 'anchor'). Let the "
            "agent loop set 'anchor', or set algorithm.entropy.gigpo.omega=0 for the episode advantage alone."
        )
    group_K = turns.group_K.cpu().numpy()
    ids: dict[Hashable, int] = {}
    anchor_K = np.fromiter((ids.setdefault(_hashable(a), len(ids)) for a in turns.anchor_K), np.int64, turns.num_turns)
    pair_K = group_K * max(len(ids), 1) + anchor_K
    first_K, dense_K = np.unique(pair_K, return_index=True, return_inverse=True)[1:]
    if similarity is not None:
        dense_K = _merge_similar(turns, [turns.anchor_K[k] for k in first_K], similarity, first_K, dense_K)
    return torch.as_tensor(dense_K, device=turns.device)


def _merge_similar(turns: Turns, texts: list[Any], similarity: float, first_K: np.ndarray, dense_K: np.ndarray) -> np.ndarray:
    if not 0 < similarity <= 1:
        raise ValueError(f"similarity={similarity}: must be in (0, 1], or None for equal observations only.")
    other = next((t for t in texts if not isinstance(t, str)), None)
    if other is not None:
        raise ValueError(f"similarity={similarity} compares texts, got a {type(other).__name__}. Set similarity to null.")
    group = turns.group_K.cpu().numpy()[first_K]
    earliest = np.full(len(texts), np.iinfo(np.int64).max)
    np.minimum.at(earliest, dense_K, turns.index_K.cpu().numpy())
    merged = np.empty(len(texts), dtype=np.int64)
    founders: dict[int, list[tuple[int, SequenceMatcher]]] = {}
    for i in sorted(range(len(texts)), key=lambda i: (group[i], earliest[i], texts[i])):
        own = founders.setdefault(int(group[i]), [])
        merged[i] = next((founder for founder, matcher in own if _resembles(matcher, texts[i], similarity)), i)
        if merged[i] == i:
            own.append((i, SequenceMatcher(None, "", texts[i])))
    return np.unique(merged, return_inverse=True)[1][dense_K]


def _resembles(matcher: SequenceMatcher, text: str, similarity: float) -> bool:
    matcher.set_seq1(text)  # the two upper bounds are cheap and settle most pairs
    bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return all(ratio() >= similarity for ratio in bounds)


def _hashable(anchor: Any) -> Hashable:
    """A key that is equal exactly for equal observations of one type: 1, True and 1.0 are three, numpy's scalars Python's own."""
    if isinstance(anchor, np.generic):
        anchor = anchor.item()
    if isinstance(anchor, float):
        return float, "nan" if anchor != anchor else anchor  # NaN is not equal to itself, and the same observation all the same
    if isinstance(anchor, str | bytes):
        return anchor
    if isinstance(anchor, int):
        return type(anchor), anchor
    if isinstance(anchor, Tensor):
        anchor = anchor.detach().cpu().numpy()
    if isinstance(anchor, np.ndarray):
        if anchor.dtype == object:
            return anchor.shape, tuple(_hashable(a) for a in anchor.ravel())
        return anchor.shape, anchor.dtype.str, anchor.tobytes()
    if isinstance(anchor, list | tuple):
        return list, tuple(_hashable(a) for a in anchor)
    if isinstance(anchor, dict):
        return frozenset((_hashable(key), _hashable(value)) for key, value in anchor.items())
    if isinstance(anchor, Hashable) and type(anchor).__eq__ is not object.__eq__:
        return anchor
    raise ValueError(
        f"anchor of type {type(anchor).__name__} cannot be grouped; give a str, a number, an array, or lists and dicts of them."
    )


def _metrics(episode_K: Tensor, step_K: Tensor, return_K: Tensor, anchor_K: Tensor, num_anchors: int) -> dict[str, float]:
    if not len(anchor_K):
        return {}
    size_K = torch.bincount(anchor_K, minlength=num_anchors)[anchor_K]
    episode, step = episode_K.abs().mean(), step_K.abs().mean()
    values: dict[str, float | Tensor] = {
        "anchor_groups": num_anchors,
        "anchor_group_size": len(anchor_K) / num_anchors,
        "turns_alone_in_anchor_group": (size_K == 1).double().mean(),
        "step_return": return_K.mean(),
        "episode_advantage_abs": episode,
        "step_advantage_abs": step,
    }
    return {name: float(value) for name, value in values.items()}


def _apply(ctx: AdvantageContext, s: GiGPO) -> tuple[Tensor, dict[str, float]]:
    return gigpo(ctx.turns, gamma=s.gamma, omega=s.omega, norm=s.norm, statistics=s.statistics, similarity=s.similarity)


def _over_rows(rows: RowScores, s: GiGPO) -> tuple[Tensor, dict[str, float]]:
    return_K = step_returns(rows.trajectories(), s.gamma)
    return gigpo(rows.scored(return_K), statistics="row", omega=s.omega, norm=s.norm, similarity=s.similarity, singleton="raw")


GIGPO = Estimator(
    name="gigpo",
    summary="episode advantage plus step advantage among turns that saw the same observation",
    when="long episodes with sparse rewards whose states recur",
    cost="a few ms per batch on the CPU",
    source="arXiv 2505.10978, Eqs. 3-8",
    settings=GiGPO,
    function="verl_entropy.methods.estimators.gigpo.gigpo",
    needs=frozenset({"group", "anchor"}),
    metrics={
        "anchor_groups": Metric(
            "groups of turns that act on the same observation of a prompt", "groups", "GiGPO, arXiv 2505.10978"
        ),
        "anchor_group_size": Metric("turns per anchor group", "turns", "GiGPO"),
        "turns_alone_in_anchor_group": Metric("share of turns whose observation no other rollout shares", "share", "GiGPO"),
        "step_return": Metric("mean discounted return of a turn", "reward", "GiGPO, Eq. 5"),
        "episode_advantage_abs": Metric("mean size of the episode advantage", "advantage", "GiGPO, Eq. 3"),
        "step_advantage_abs": Metric("mean size of the step advantage", "advantage", "GiGPO, Eq. 7"),
    },
    apply=_apply,
    over_rows=_over_rows,
)
