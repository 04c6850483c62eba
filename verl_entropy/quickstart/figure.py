# SPDX-License-Identifier: Apache-2.0
"""The quickstart's figure: success over training, and entropy by turn index."""

from __future__ import annotations

from pathlib import Path

PREFIX = "verl_entropy/turn_entropy/"


def validation(data: dict, split: str) -> float | None:
    """Success on held-out tasks of ``split`` in a step's metrics, or None."""
    value = data.get(f"val-core/household/{split}/acc/mean@1")
    return None if value is None else float(value)


def draw(steps: dict[int, dict], path: Path, title: str, grpo: dict | None = None) -> None:
    """Draw success (training batch and held-out splits; ``grpo``: that of recorded runs) and a heat map of entropy by turn index."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    trained = sorted(s for s in steps if "verl_entropy/success" in steps[s])
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    if grpo:
        x = range(1, len(grpo["low"]) + 1)
        label = f"training batch, plain GRPO ({len(grpo['seeds'])} seeds)"
        left.fill_between(x, grpo["low"], grpo["high"], color="0.85", lw=0, label=label)
    left.plot(trained, [steps[s]["verl_entropy/success"] for s in trained], color="0.6", lw=1.2, label="training batch")
    for split, color in (("seen", "tab:blue"), ("unseen", "tab:orange")):
        points = [(s, validation(steps[s], split)) for s in sorted(steps)]
        points = [(s, v) for s, v in points if v is not None]
        if points:
            left.plot(*zip(*points, strict=True), "o-", color=color, label=f"held out, {split}")
    left.set(xlabel="training step", ylabel="success", ylim=(0, 1), title="Success")
    left.legend(frameon=False, loc="upper left")
    depth = 1 + max((int(k.removeprefix(PREFIX)) for s in trained for k in steps[s] if k.startswith(PREFIX)), default=0)
    grid = np.full((depth, len(trained)), np.nan)
    for column, step in enumerate(trained):
        for key, value in steps[step].items():
            if key.startswith(PREFIX):
                grid[int(key.removeprefix(PREFIX)), column] = value
    if trained:
        extent = (trained[0] - 0.5, trained[-1] + 0.5, 0.5, depth + 0.5)
        image = right.imshow(grid, aspect="auto", origin="lower", extent=extent, cmap="viridis")
        figure.colorbar(image, ax=right, label="nats per token")
    right.set(xlabel="training step", ylabel="turn", title="Entropy by turn")
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
