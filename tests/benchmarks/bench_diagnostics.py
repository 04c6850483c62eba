# SPDX-License-Identifier: Apache-2.0
"""Time of the diagnostics in the trainer's process, one thread.

    python tests/benchmarks/bench_diagnostics.py [--repeats 9] [--json FILE]

Batches of 1,024 and 6,400 rows of at most 512 tokens (turns of 50-turn episodes). "every step" is what a default run pays each step;
"every 10" what it pays every ``costly_every`` steps; "spread" is their sum per step. The share is that of a step of 60 s, which is
short for an agent run of that size. The sampled pass in the training workers is measured apart: 256 tokens of a vocabulary of 152,000.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from bench_advantages import ROLLOUTS, TURNS, make_rows
from report import median_ms, parser, table, write

from verl_entropy.batch.turns import build_turns
from verl_entropy.diagnostics import live, sampling
from verl_entropy.diagnostics.settings import Live
from verl_entropy.hosts.common import diagnostics_side as side
from verl_entropy.runs.runfile import RunSettings, RunWriter

STEP_SECONDS = 60.0
BUDGET = 0.01
"""Share of a step that the diagnostics may take at their defaults."""
HIDDEN, VOCABULARY = 1536, 151_936
"""Of Qwen2.5-1.5B."""


class Words:
    """Stands for a tokenizer in the time of cutting and joining texts; a real one adds its own decoding (about 0.3 ms a turn)."""

    def batch_decode(self, ids: list[list[int]], **_: Any) -> list[str]:
        return [" ".join(f"w{i % 50}{'.' if i % 12 == 0 else ''}" for i in row) for row in ids]


def context(rows: int, tokens: int) -> SimpleNamespace:
    """The fields of an advantage context that the diagnostics read."""
    arguments = make_rows(rows, tokens)
    turns, generator = build_turns(**arguments), torch.Generator().manual_seed(1)
    records = [{"turns": [{"valid": bool(r % 7), "admissible": True, "action": f"go {r % 3}"}]} for r in range(rows)]
    return SimpleNamespace(
        turns=turns,
        mask_RT=arguments["mask_RT"],
        entropy_RT=torch.rand(rows, tokens, generator=generator),
        old_log_probs_RT=-torch.rand(rows, tokens, generator=generator),
        advantages_RT=turns.to_tokens(torch.randn(rows, generator=generator)),
        fields={"extra_fields": records},
        step=0,
        entropy=0.5,
    )


def cases(rows: int, tokens: int, folder: str) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """What runs every step, and what runs every ``costly_every`` steps."""
    ctx, diagnostics, settings = context(rows, tokens), live.LiveDiagnostics(), Live()
    writer, metrics = RunWriter(folder, RunSettings()), {f"metric/{i}": i / 3 for i in range(150)}
    ids_RT = torch.randint(1000, (rows, tokens))
    mask = torch.nested.as_nested_tensor([torch.ones(int(n)) for n in ctx.mask_RT.sum(1)], layout=torch.jagged)
    keys = [f"uid{r // TURNS // ROLLOUTS}_{r // TURNS}_{r % TURNS}" for r in range(rows)]
    sampled = torch.arange(min(settings.sample_trajectories, ctx.turns.num_trajectories))
    states = torch.randn(len(sampled), HIDDEN)

    def step() -> None:
        ctx.step += 1
        diagnostics.step(ctx)

    def write_step() -> None:
        writer.step(writer.last + 1 if writer.last is not None else 1, metrics, live.turn_columns(ctx))

    def texts() -> None:
        x = side.turn_texts(ctx.turns, ids_RT, Words(), settings.max_texts)
        live.text.mean_sentence_duplication(x)

    costly = {
        "mark the sample": lambda: side.sample_columns(mask, keys, [False] * rows, settings),
        "separation and interference": lambda: side.sampled_metrics(ctx, sampled, states @ states.T, states),
        "repeated sentences": texts,
    }
    return {"metrics": step, "run file": write_step}, costly


def sampled_pass() -> float:
    """ms of the product of the gradients of the sampled tokens, in a worker."""
    settings = Live()
    count = settings.sample_trajectories * settings.sample_tokens
    hidden, logits = torch.randn(count, HIDDEN), torch.randn(count, VOCABULARY)
    tokens, code = torch.randint(VOCABULARY, (count,)), -1 - torch.arange(count).int() // settings.sample_tokens

    def run() -> None:
        collector = sampling.Collector(settings.sample_trajectories)
        collector.add(hidden, logits, tokens, code)
        collector.finish()

    return median_ms(run, 3)


def main() -> None:
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    lines, totals = [], {}
    for rows in (1024, 6400):
        with tempfile.TemporaryDirectory() as folder:
            always, costly = cases(rows, 512, folder)
            every = {name: median_ms(function, args.repeats) for name, function in always.items()}
            seldom = {name: median_ms(function, args.repeats) for name, function in costly.items()}
        spread = sum(every.values()) + sum(seldom.values()) / Live().costly_every
        lines += [{"rows": rows, "what": name, "when": "every step", "ms": ms} for name, ms in every.items()]
        lines += [{"rows": rows, "what": name, "when": "every 10", "ms": ms} for name, ms in seldom.items()]
        lines.append({"rows": rows, "what": "all, spread", "when": "per step", "ms": spread})
        totals[str(rows)] = spread
    worker = sampled_pass()
    lines.append({"rows": 256, "what": "gradients of the sampled tokens (worker, CPU)", "when": "every 10", "ms": worker})
    table(lines)
    for rows, ms in totals.items():
        share = ms / 1e3 / STEP_SECONDS
        verdict = "within" if share <= BUDGET else "OVER"
        print(f"{rows} rows: {ms:.0f} ms a step, {share:.2%} of {STEP_SECONDS:.0f} s, {verdict} the budget of {BUDGET:.0%}")
    write(args.json, {"lines": lines, "spread_ms": totals, "worker_ms": worker})


if __name__ == "__main__":
    main()
