# SPDX-License-Identifier: Apache-2.0
"""Memory and time on the card: entropy with gradient by path, and SEAL's head, at the shapes of Qwen2.5-1.5B and SmolLM2-135M.

    python3 tests/gpu/overheads.py [--tokens 4096 16384 65536] [--repeats 7] [--json FILE]

Paths are timed in turn, repeat by repeat, and medians reported, so that a change of the card's clock meets all of them.
"kept" is what forward leaves for backward per token and word, beyond the bf16 logits; "peak" is the most that forward and backward
hold beyond the logits, their gradient included (2 bytes). The update that the head is compared with is a forward and backward of a
model with random weights and gradient checkpointing, on as many tokens.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from host import describe

from verl_entropy.numerics import log_probs_and_entropy
from verl_entropy.seal.head import SealHead

SHAPES = {"Qwen2.5-1.5B": (1536, 151_936), "SmolLM2-135M": (576, 49_152)}
UPDATE_TOKENS, SEQUENCE = 32_768, 2_048
"""A micro-batch of an agent run; the head's time is mostly launches, so it does not grow with fewer."""
RESPONSE_SHARE = 0.2
"""Trained tokens among all tokens of a step-wise agent turn: 512 of 2,560."""
Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def timed(run: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def medians(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float | None]:
    """Median milliseconds of each, measured in turn; None for what does not fit."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    out: set[str] = set()
    for repeat in range(repeats + 2):  # two rounds warm up
        for name, run in runs.items():
            if name in out:
                continue
            try:
                took = timed(run)
            except torch.OutOfMemoryError:
                out.add(name)
                free()
                continue
            if repeat >= 2:
                times[name].append(took)
    return {name: None if name in out else statistics.median(values) for name, values in times.items()}


def entropy_paths() -> dict[str, Pass]:
    """Losses of the logits: -log p(label) - H, or with H computed but not differentiated.

    log p is this package's in all of them, as verl's own is a Python loop over rows without flash-attn; only H differs.
    """
    import verl.utils.torch_functional as verl_F
    from torch.utils.checkpoint import checkpoint

    compiled = torch.compile(verl_F.entropy_from_logits, dynamic=True)

    def ours(z, y):
        log_probs, entropy = log_probs_and_entropy(z, y)
        return -(log_probs + entropy).sum()

    def ours_detached(z, y):
        log_probs, entropy = log_probs_and_entropy(z, y)
        return -(log_probs + entropy.detach()).sum()

    def verl(entropy_of, gradient: bool = True):
        def loss(z, y):
            with torch.autocast("cuda", dtype=torch.bfloat16), torch.set_grad_enabled(gradient):
                entropy = entropy_of(z)
            log_probs, _ = log_probs_and_entropy(z, y, with_entropy=False)
            return -(log_probs + entropy).sum()

        return loss

    return {
        "this package": ours,
        "this package, entropy without gradient": ours_detached,
        "verl compiled": verl(compiled),
        "verl compiled, entropy without gradient": verl(compiled, False),
        "verl eager": verl(verl_F.entropy_from_logits),
        "verl chunked": verl(verl_F.entropy_from_logits_with_chunking),
        "verl checkpointed": verl(lambda z: checkpoint(verl_F.entropy_from_logits, z, use_reentrant=False)),
    }


def memory(path: Pass, logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float] | None:
    """Bytes per token and word kept by forward, and the peak of forward and backward."""
    free()
    logits.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        loss = path(logits, labels)
        kept = torch.cuda.memory_allocated() - before
        loss.backward()
    except torch.OutOfMemoryError:
        logits.grad = None
        free()
        return None
    peak = torch.cuda.max_memory_allocated() - before
    logits.grad = None
    return {"kept": kept / logits.numel(), "peak": peak / logits.numel()}


def entropy_rows(tokens: int, vocab: int, repeats: int) -> list[dict]:
    free()
    logits = torch.empty(tokens, vocab, dtype=torch.bfloat16, device="cuda")
    for piece in logits.split(1024):
        piece.normal_(std=3.0)
    logits.requires_grad_()
    labels = torch.randint(vocab, (tokens,), device="cuda")
    paths = entropy_paths()
    used = {name: memory(path, logits, labels) for name, path in paths.items()}  # the first round compiles
    used = {name: memory(path, logits, labels) if used[name] else None for name, path in paths.items()}

    def step(path: Pass) -> Callable[[], None]:
        def run() -> None:
            logits.grad = None
            path(logits, labels).backward()

        return run

    ms = medians({name: step(path) for name, path in paths.items() if used[name]}, repeats)
    rows = []
    for name in paths:
        row = {"tokens": tokens, "vocab": vocab, "path": name, "ms": ms.get(name)}
        rows.append(row | (used[name] or {"kept": None, "peak": None}))
        print(row | (used[name] or {}), flush=True)
    return rows


def model(name: str):
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    if name == "Qwen2.5-1.5B":
        config = Qwen2Config(
            vocab_size=151_936,
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    else:
        config = LlamaConfig(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
        )
    built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").cuda()
    built.gradient_checkpointing_enable()
    return built.train()


def head_row(name: str, repeats: int) -> dict:
    """SEAL's head on the trained tokens against the update of the model on all tokens."""
    free()
    hidden_size, vocab = SHAPES[name]
    policy = model(name)
    ids = torch.randint(vocab, (UPDATE_TOKENS // SEQUENCE, SEQUENCE), device="cuda")
    labels = ids.roll(-1, 1).reshape(-1)
    trained = int(UPDATE_TOKENS * RESPONSE_SHARE)
    hidden = torch.randn(trained, hidden_size, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    def update() -> None:
        policy.zero_grad(set_to_none=True)
        logits = policy(input_ids=ids, use_cache=False).logits.reshape(-1, vocab)
        log_probs, entropy = log_probs_and_entropy(logits, labels)
        (log_probs - entropy.detach()).mean().backward()

    update()  # whatever libraries keep is allocated now
    policy.zero_grad(set_to_none=True)
    free()
    before = torch.cuda.memory_allocated()
    head = SealHead(hidden_size).cuda()  # fp32 as under FSDP, whose mixed precision the autocast below stands for
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-5)

    def head_update() -> None:
        """Forward and backward; the optimiser's step is part of the actor's, one more tensor in its list."""
        optimizer.zero_grad(set_to_none=True)
        hidden.grad = None
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = head(hidden)
        torch.nn.functional.binary_cross_entropy_with_logits(
            logits.float(), torch.ones_like(logits, dtype=torch.float32)
        ).backward()
        optimizer.step()

    ms = medians({"update": update, "head": head_update}, repeats)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    hidden.grad = None
    policy.zero_grad(set_to_none=True)
    free()
    state = torch.cuda.memory_allocated() - before
    row = {
        "model": name,
        "tokens": UPDATE_TOKENS,
        "trained_tokens": trained,
        "update_ms": ms["update"],
        "head_ms": ms["head"],
        "head_share": ms["head"] / ms["update"],
        "head_state_mb": state / 1e6,
        "head_parameters": sum(p.numel() for p in head.parameters()),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, (_, vocab) in SHAPES.items():
        for tokens in args.tokens:
            rows += [row | {"model": name} for row in entropy_rows(tokens, vocab, args.repeats)]
    heads = [head_row(name, args.repeats) for name in SHAPES]
    if args.json:
        args.json.write_text(json.dumps(describe() | {"repeats": args.repeats, "entropy": rows, "head": heads}, indent=1) + "\n")


if __name__ == "__main__":
    main()
