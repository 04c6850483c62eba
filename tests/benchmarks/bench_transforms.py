# SPDX-License-Identifier: Apache-2.0
"""Time of the advantage transforms on one core, and whether it grows linearly with the tokens.

    python tests/benchmarks/bench_transforms.py [--rows 6400] [--tokens 512] [--repeats 15] [--json FILE]

The batch is that of an agent step: 16 prompts x 8 rollouts x 50 turns, responses of 50 to 400 of 512 tokens. Reported is the
fastest of the repeats in CPU time of the thread (other work on the machine does not count, but takes cache and bandwidth);
"linear" is the time for the whole batch divided by four times that for a quarter of it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from verl_entropy.batch.turns import Packed, Turns, build_turns
from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.transforms.aepo import aepo
from verl_entropy.methods.transforms.clip_b import clip_b
from verl_entropy.methods.transforms.clip_v import clip_v
from verl_entropy.methods.transforms.ea import ea
from verl_entropy.methods.transforms.entrocraft import entrocraft
from verl_entropy.methods.transforms.repo_d import repo_d
from verl_entropy.methods.transforms.repo_r import repo_r

BUDGET_MS = 10.0
"""Per transform at 6,400 x 512 tokens; a step of an agent run takes minutes."""
PACKING = "packing one tensor"
"""Advantages, log-probs and entropies are packed once per step, at their first use, whatever the number of transforms."""
PADDING = "padding the result"
"""Once per step, at the end of the chain."""
YARDSTICK = "one multiplication"
"""A plain product of two padded [R, T] tensors: tells a slow machine from a slow transform."""


def make_batch(rows: int, tokens: int) -> tuple[Turns, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    length_R = torch.randint(tokens // 10, tokens * 4 // 5, (rows,), generator=generator)
    mask_RT = torch.arange(tokens)[None] < length_R[:, None]
    trajectory_R = [r // 50 for r in range(rows)]
    turns = build_turns(
        mask_RT, [t // 8 for t in trajectory_R], trajectory_R, [r % 50 for r in range(rows)], [False] * rows, torch.rand(rows)
    )
    tensors = {
        "advantages_RT": torch.randn(rows, 1, generator=generator).expand(rows, tokens) * mask_RT,
        "log_prob_RT": -torch.rand(rows, tokens, generator=generator),
        "entropy_RT": torch.rand(rows, tokens, generator=generator),
        "centre_RT": 0.1 * torch.rand(rows, tokens, generator=generator),
    }
    return turns, tensors


def cases(turns: Turns, t: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    a, lp, h, n = t.values()
    packed = Packed(turns.pack(a), turns)

    return {
        YARDSTICK: lambda: a * lp,
        PACKING: lambda: turns.pack(a.view(a.shape)),
        PADDING: lambda: packed.padded(),
        "group_norm": lambda: group_norm(turns),
        "repo_r exact": lambda: repo_r(packed, turns, lp, h, zeta=0.1),
        "repo_r batch_mean": lambda: repo_r(packed, turns, lp, zeta=0.1, center="batch_mean"),
        "repo_d batch": lambda: repo_d(packed, turns, lp, h, zeta=0.1),
        "repo_d group": lambda: repo_d(packed, turns, lp, h, zeta=0.1, scope="group"),
        "repo_d per_token": lambda: repo_d(packed, turns, lp, h, zeta=0.1, scope="per_token"),
        "ea": lambda: ea(packed, turns, h),
        "aepo": lambda: aepo(packed, turns, h),
        "clip_b": lambda: clip_b(packed, turns, lp, h),
        "clip_v": lambda: clip_v(packed, turns, lp, h, n),
        "entrocraft": lambda: entrocraft(packed, turns, entropy=0.9, low=0.4, high=0.6),
    }


def fastest_ms(fn: Callable[[], object], repeats: int) -> float:
    fn()
    best = math.inf
    for _ in range(repeats):
        start = time.thread_time()
        fn()
        best = min(best, time.thread_time() - start)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6400)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    whole = cases(*make_batch(args.rows, args.tokens))
    quarter = cases(*make_batch(args.rows // 4, args.tokens))
    results = {}
    print(f"{args.rows} x {args.tokens} tokens, one thread, torch {torch.__version__}\n")
    print(f"{'transform':20} {'ms':>8} {'linear':>8}   budget {BUDGET_MS} ms")
    for name, fn in whole.items():
        ms = fastest_ms(fn, args.repeats)
        linear = ms / (4 * fastest_ms(quarter[name], args.repeats))
        results[name] = {"ms": round(ms, 3), "linear": round(linear, 3), "within_budget": ms <= BUDGET_MS}
        print(f"{name:20} {ms:8.2f} {linear:8.2f}   {'' if ms <= BUDGET_MS else 'over'}")
    if args.json:
        report = {
            "rows": args.rows,
            "tokens": args.tokens,
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "budget_ms": BUDGET_MS,
            "results": results,
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
