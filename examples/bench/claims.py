# SPDX-License-Identifier: Apache-2.0
"""What the papers say moves entropy, held against a run: rank correlations, so that neither scale nor trend decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bench.outcome import rounded

WINDOWS = (1, 5, 10)
"""Steps over which a predictor and the change that follows are averaged."""
LEAST = 8
"""Pairs without which there is no correlation."""
PREDICTORS = {
    "predictor/covariance": "-Cov(A, log pi) (arXiv 2505.22617)",
    "predictor/repo": "-mean(A L pi) (REPO, Cor. 1)",
    "aem_drift/surprisal": "AEM's drift, surprisal (Thm 3.2)",
    "aem_drift/entropy_proxy": "AEM's drift, its proxy",
    "interference/drift_negative": "SEAL's interference, from negative advantages",
}
ENTROPY = "actor/entropy"
TURN = "verl_entropy/turn_entropy/"


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's, of values without ties, over the pairs that are finite; None under LEAST of them or where one stands still.

    By numpy alone: the environment of ``box.sh`` has no scipy.
    """
    pairs = np.array([one, other], dtype=float)
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    if pairs.shape[1] < LEAST or (pairs == pairs[:, :1]).all(1).any():
        return None
    ranks = pairs.argsort(1).argsort(1)
    return rounded(float(np.corrcoef(ranks)[0, 1]), 3)


def followed(predictor: Sequence[float], entropy: Sequence[float], window: int) -> float | None:
    """Whether a predictor ranks the changes of entropy that follow it.

        rho over t of (mean of the predictor at t - w .. t - 1,  mean entropy of t .. t + w - 1 minus that of t - w .. t - 1)

    A predictor of step t speaks of the update of step t, which entropy shows from step t + 1 on.
    """
    p, e, w = np.asarray(predictor, dtype=float), np.asarray(entropy, dtype=float), window
    at = range(w, len(e) - w + 1)
    return rank_correlation([p[t - w : t].mean() for t in at], [e[t : t + w].mean() - e[t - w : t].mean() for t in at])


def early_and_late(steps: Sequence[Mapping[str, float]], width: int = 5) -> dict[str, float | None]:
    """EPO's cascade: entropy of the first two turns and of the last two, and which of them leads; {} under four turns.

    ``together``: rank correlation of their changes between means of ``width`` steps; ``early_leads``, ``late_leads``: of the changes of
    one with those of the other a mean later. A step in which no episode reached the last turns is left out of its mean.
    """
    turns = 0
    while sum(f"{TURN}{turns}" in data for data in steps) > len(steps) / 2:
        turns += 1
    if turns < 4 or len(steps) < (LEAST + 2) * width:
        return {}
    both = [
        np.array([[data.get(f"{TURN}{k}", np.nan) for k in pair] for data in steps]).mean(1)
        for pair in ((0, 1), (turns - 2, turns - 1))
    ]
    whole = len(steps) // width * width
    blocks = [np.ma.masked_invalid(series[:whole].reshape(-1, width)).mean(1).filled(np.nan) for series in both]
    early, late = (np.diff(means) for means in blocks)
    return {
        "early": rounded(float(np.nanmean(both[0]))),
        "late": rounded(float(np.nanmean(both[1]))),
        "together": rank_correlation(early, late),
        "early_leads": rank_correlation(early[:-1], late[1:]),
        "late_leads": rank_correlation(late[:-1], early[1:]),
    }


def claims(logged: Mapping[int, Mapping[str, float]]) -> dict[str, dict]:
    """``predictors`` by name and window in steps, and ``turns``, of the steps that trained.

    A costly predictor is there every few steps only: each of these is a window of its own.
    """
    steps = [logged[s] for s in sorted(logged) if ENTROPY in logged[s]]
    entropy = [data[ENTROPY] for data in steps]
    found = {}
    for name in PREDICTORS:
        at = [i for i, data in enumerate(steps) if f"verl_entropy/{name}" in data]
        if len(at) < 2:
            continue
        every = int(np.median(np.diff(at)))
        predicted, then = [steps[i][f"verl_entropy/{name}"] for i in at], [entropy[i] for i in at]
        values = {str(w * every): followed(predicted, then, w) for w in (WINDOWS if every == 1 else (1,))}
        if any(value is not None for value in values.values()):
            found[name] = values
    return {"predictors": found, "turns": early_and_late(steps)}
