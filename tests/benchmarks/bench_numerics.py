# SPDX-License-Identifier: Apache-2.0
"""What log-probabilities and entropy keep for backward, their time and their error, on the CPU.

    python tests/benchmarks/bench_numerics.py [--tokens 64] [--vocab 151936] [--json FILE]

"kept" counts what autograd saves, each storage once, without the logits, which exist anyway. Compared are
the chunked pass of this package and verl's plain expressions without torch.compile, in bf16 and in fp32
(what autocast makes of them). "error" is the largest difference to fp64, in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from report import median_ms, parser, table, write

from verl_entropy.batch.numerics import log_probs_and_entropy

Pass = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def plain(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-softmax and gather; logsumexp minus the softmax-weighted logits."""
    log_probs = logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    return log_probs, torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)


PASSES: dict[str, Pass] = {
    "chunked (this package)": log_probs_and_entropy,
    "chunked, no entropy": lambda z, y: (log_probs_and_entropy(z, y, with_entropy=False)[0], torch.zeros(())),
    "plain, bf16": plain,
    "plain, fp32": lambda z, y: plain(z.float(), y),
}


def kept_bytes(function: Pass, logits: torch.Tensor, labels: torch.Tensor) -> int:
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    logits = logits.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = function(logits, labels)  # alive, so that no address is used twice
    kept.pop(logits.untyped_storage().data_ptr(), None)
    del results
    return sum(kept.values())


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--vocab", type=int, default=151_936, help="words; the default is Qwen2.5's")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(args.tokens, args.vocab, generator=generator)).bfloat16()
    labels = torch.randint(0, args.vocab, (args.tokens,), generator=generator)
    exact = plain(logits.double(), labels)
    rows: list[dict[str, Any]] = []
    for name, function in PASSES.items():
        kept = kept_bytes(function, logits, labels)

        def step(function: Pass = function) -> None:
            z = logits.clone().requires_grad_()
            log_probs, entropy = function(z, labels)
            (log_probs.sum() + entropy.sum()).backward()

        with torch.no_grad():
            results = function(logits, labels)
        errors = [float((a.double() - b).abs().max()) for a, b in zip(results, exact, strict=True)]
        rows.append(
            {
                f"{args.tokens} x {args.vocab} bf16 logits": name,
                "kept bytes per token": kept / args.tokens,
                "per token and word": kept / args.tokens / args.vocab,
                "GB at 16,384 tokens": kept / args.tokens * 16_384 / 1e9,
                "ms, both ways": median_ms(step, min(args.repeats, 5)),
                "error log-prob": errors[0],
                "error entropy": float("nan") if "no entropy" in name else errors[1],
            }
        )
    table(rows)
    write(args.json, {"tokens": args.tokens, "vocab": args.vocab, "results": rows})


if __name__ == "__main__":
    main()
