# SPDX-License-Identifier: Apache-2.0
"""Trajectories' representations in two dimensions: principal components of the vectors that a step stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_entropy.runs.report.runs import Run

LEAST = 3
"""Trajectories below which a projection shows nothing."""


@dataclass(frozen=True)
class Cloud:
    """The trajectories of a step in the plane."""

    step: int
    xy: np.ndarray
    correct: np.ndarray


def projected(run: Run) -> list[Cloud]:
    """The first and the last step with vectors ``representation`` in its stored trajectories; empty without any.

    Each step has its own axes: the trainer stores each step's vectors in a basis of their own.
    """
    found = [(step, rows) for step, samples in run.samples if (rows := _vectors(samples)) is not None]
    chosen = found[:1] + found[1:][-1:]
    return [Cloud(step, _components(vectors), correct) for step, (vectors, correct) in chosen]


def _components(vectors: np.ndarray) -> np.ndarray:
    left, scale, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    return (left * scale)[:, :2]


def _vectors(samples: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Vectors and success of the trajectories of a step, if there are enough of equal length."""
    rows = [(s["representation"], bool(s.get("success"))) for s in samples if _is_vector(s.get("representation"))]
    if len(rows) < LEAST or len({len(vector) for vector, _ in rows}) != 1:
        return None
    return np.array([v for v, _ in rows], dtype=float), np.array([s for _, s in rows])


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(type(v) in (int, float) and abs(v) < 1e30 for v in value)
