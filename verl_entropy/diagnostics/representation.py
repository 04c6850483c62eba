# SPDX-License-Identifier: Apache-2.0
"""How well the representations of correct and wrong trajectories are separated."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(score_N: Tensor, positive_N: Tensor) -> float:
    """Probability that a positive scores above a negative, ties counting one half; NaN if a class is empty."""
    positive, negative = score_N[positive_N], score_N[~positive_N]
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    return float((below + not_above).double().mean() / (2 * len(negative)))


def linear_probe_auc(representation_JD: Tensor, correct_J: Tensor, *, folds: int = 5, ridge: float = 1e-2) -> float:
    """Held-out AUC of a ridge classifier for "correct", averaged over stratified folds; .5: no linear separation.

    Features are standardised on the training folds and ``ridge`` is relative to the number of features. Each
    fold scores its own members only, as pooling (or leaving one out) would punish balanced data: a left-out
    member lowers its own class's mean. Folds are assigned in the order given, so the value is deterministic.
    NaN if a class has fewer than two members.
    """
    x, y = representation_JD.double(), correct_J.bool()
    parts = min(folds, int(y.sum()), int((~y).sum()))
    if parts < 2:
        return float("nan")
    place = torch.where(y, y.long().cumsum(0), (~y).long().cumsum(0)) % parts
    scores = []
    for fold in range(parts):
        train, test = place != fold, place == fold
        mean, std = x[train].mean(0), x[train].std(0, correction=0)
        z = torch.where(std > 0, (x - mean) / torch.where(std > 0, std, 1.0), 0.0)
        target = y[train].double()
        kernel = z[train] @ z[train].T
        kernel.diagonal().add_(ridge * x.shape[1])
        weight = torch.linalg.solve(kernel, target)
        scores.append(auc(z[test] @ (z[train].T @ weight), y[test]))
    return sum(scores) / parts


def _mean_off_diagonal(matrix: Tensor) -> float:
    n = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))) if n > 1 else float("nan")


def representation_similarity(representation_JD: Tensor, correct_J: Tensor) -> dict[str, float]:
    """Scalars for the overlap of the two classes; an undefined one (a class too small) is NaN and should be logged as missing.

        within_correct, within_wrong   mean cosine between different members of a class
        between                        mean cosine across the classes
        ratio                          between / mean of the defined within values; near 1: the classes overlap
        distance                       Euclidean distance of the class means
        probe_auc                      ``linear_probe_auc``

    The paper shows a plot and no scalar; these are our choice.
    """
    x, y = representation_JD.double(), correct_J.bool()
    unit = x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    correct, wrong = unit[y], unit[~y]
    within = (_mean_off_diagonal(correct @ correct.T), _mean_off_diagonal(wrong @ wrong.T))
    both = bool(len(correct)) and bool(len(wrong))
    between = float((correct @ wrong.T).mean()) if both else float("nan")
    defined = [w for w in within if w == w]
    return {
        "within_correct": within[0],
        "within_wrong": within[1],
        "between": between,
        "ratio": between / (sum(defined) / len(defined)) if defined else float("nan"),
        "distance": float((x[y].mean(0) - x[~y].mean(0)).norm()) if both else float("nan"),
        "probe_auc": linear_probe_auc(representation_JD, correct_J),
    }
