# SPDX-License-Identifier: Apache-2.0
"""Time of turns, GiGPO, LOOP and AEM on one thread, and how it grows with the batch.

    python tests/benchmarks/bench_advantages.py [--repeats 15] [--largest 100000] [--json FILE]

The first table is an agent step: 16 prompts x 8 rollouts x 50 turns, responses of 512 tokens at most,
observations of 1,200 characters of which 10 differ per prompt (each repeat gets fresh strings, so that
hashing them counts). GiGPO and AEM start from turns that are built already: in training both use the same.
The second table has 64 tokens per row and 1,000 to 100,000 rows; "linear" is the time per row over that of
the batch before (1 = linear, less = better).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from report import median_ms, parser, table, write

from verl_entropy.batch.turns import Turns, build_turns
from verl_entropy.methods.estimators.gigpo import anchor_groups, gigpo
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.transforms.aem import aem

TURNS, ROLLOUTS = 50, 8
BUDGET_MS = 15.0
"""For GiGPO and for AEM at 6,400 x 512; a step of an agent run takes minutes."""


def make_rows(rows: int, tokens: int) -> dict[str, Any]:
    """Arguments of ``build_turns`` for a step-wise batch."""
    generator = torch.Generator().manual_seed(0)
    length_R = torch.randint(tokens // 10, tokens, (rows,), generator=generator)
    trajectory = [r // TURNS for r in range(rows)]
    step = torch.randint(10, (rows,), generator=generator).tolist()
    return {
        "mask_RT": torch.arange(tokens)[None] < length_R[:, None],
        "group_R": [f"uid{t // ROLLOUTS}" for t in trajectory],
        "trajectory_R": [f"session{t}" for t in trajectory],
        "position_R": [r % TURNS for r in range(rows)],
        "padding_R": [False] * rows,
        "score_R": torch.randint(2, (rows,), generator=generator).float(),
        "turn_fields": [[{"reward": 0.0, "penalty": 0.1, "valid": False, "anchor": str(s)}] for s in step],
    }


def observations(turns: Turns) -> np.ndarray:
    """1,200 characters each, new strings at every call: a string keeps its hash once it was asked for."""
    texts = [str(a) + "." * 1199 for a in turns.anchor_K]
    return np.array([t[:-1] + "!" for t in texts], dtype=object)


def cases(rows: int, tokens: int) -> dict[str, Callable[[], Any]]:
    arguments = make_rows(rows, tokens)
    turns = build_turns(**arguments)
    entropy_RT = torch.rand(rows, tokens, generator=torch.Generator().manual_seed(1))
    advantages_RT = turns.to_tokens(torch.randn(rows))
    fresh = itertools.cycle([observations(turns) for _ in range(40)] if rows < 10_000 else [observations(turns)])

    def with_fresh_observations(function: Callable[[Turns], Any]) -> Callable[[], Any]:
        def run() -> Any:
            turns.anchor_K[:] = next(fresh)
            return function(turns)

        return run

    return {
        "build_turns": lambda: build_turns(**arguments),
        "gigpo": with_fresh_observations(gigpo),
        "  of it: observations": with_fresh_observations(anchor_groups),
        "loop": lambda: loop(turns),
        "aem": lambda: aem(advantages_RT, turns, entropy_RT),
        "  of it: turn means": lambda: turns.mean(entropy_RT),
        "  of it: to tokens": lambda: turns.to_tokens(turns.reward_K),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--largest", type=int, default=100_000, help="rows of the largest batch of the second table")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    step = [
        {"6,400 rows x 512 tokens": name, "ms": median_ms(function, args.repeats)} for name, function in cases(6400, 512).items()
    ]
    table(step)
    for row in step:
        name, ms = row["6,400 rows x 512 tokens"], row["ms"]
        if name in ("gigpo", "aem"):
            verdict = "within" if ms <= BUDGET_MS else "OVER"
            print(f"{name}: {ms:.1f} ms, {verdict} the budget of {BUDGET_MS:.0f} ms")
    print()
    growth, before = [], {}
    for rows in (r for r in (1_000, 10_000, 100_000) if r <= args.largest):
        for name in ("build_turns", "gigpo", "loop", "aem"):
            ms = median_ms(cases(rows, 64)[name], max(3, args.repeats // 3))
            linear = ms / rows / before.get(name, ms / rows)
            before[name] = ms / rows
            growth.append({"64 tokens": name, "rows": rows, "ms": ms, "us per row": 1e3 * ms / rows, "linear": linear})
    table(sorted(growth, key=lambda row: row["64 tokens"]))
    write(args.json, {"step": step, "growth": growth, "budget_ms": BUDGET_MS})


if __name__ == "__main__":
    main()
