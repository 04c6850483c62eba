# SPDX-License-Identifier: Apache-2.0
"""Memory and time on the card: entropy with gradient by path, and SEAL's head, at the shapes of Qwen2.5-1.5B and SmolLM2-135M.

    python3 tests/gpu/overheads.py [--sections head entropy] [--models NAME...] [--tokens 4096 16384 65536] [--repeats 7] [--json FILE]

FILE is written after each model and number of tokens; a section that fails is named in it, and the exit code is 1.

Paths are timed in turn, repeat by repeat, and medians reported, so that a change of the card's clock meets all of them.
"kept" is what forward leaves for backward per token and word, beyond the bf16 logits; "peak" is the most that forward and backward
hold beyond the logits, their gradient included (2 bytes). What the head costs is measured by head_cost.py.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from host import describe
from make_model import MODELS

from verl_entropy.batch.numerics import log_probs_and_entropy

HEAD_TIMEOUT = 240
"""Seconds; four times what it takes."""
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


def ended(command: list[str], errors: Path) -> tuple[int, str]:
    """Exit code and stderr of a command that has ``HEAD_TIMEOUT`` seconds."""
    with errors.open("w") as file:
        try:
            code = subprocess.run(command, stderr=file, timeout=HEAD_TIMEOUT, check=False).returncode
        except subprocess.TimeoutExpired:
            return 124, f"not done after {HEAD_TIMEOUT} s"
    return code, errors.read_text()


def head_row(name: str, args: argparse.Namespace) -> dict:
    """SEAL's head in a real update, in a process of its own: see head_cost.py. What it wrote before it failed is kept."""
    seconds = {"Qwen2.5-1.5B": 20.0, "SmolLM2-135M": 8.0}[name]  # at about 2 and 0.5 seconds a pair
    command = [sys.executable, str(Path(__file__).with_name("head_cost.py")), name]
    row: dict = {}
    for parts in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "row.json"
            options = [f"--micro-batches={parts}", f"--seconds={0 if args.tiny else seconds}", *(["--tiny"] if args.tiny else [])]
            code, said = ended([*command, str(file), *options], Path(folder) / "err")
            row = json.loads(file.read_text()) if file.is_file() else row
        if code == 0:
            return row
        print(said[-3000:], file=sys.stderr, flush=True)
        if "OutOfMemoryError" not in said:
            break
    return row | {"failed": said.strip().splitlines()[-1] if said.strip() else f"exit code {code}"}


def sections(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], list[dict]]]]:
    """Name of a list of the result, and what adds rows to it. The head first: it takes the least time."""
    if "head" in args.sections:
        for name in args.models:
            yield "head", functools.partial(lambda name: [head_row(name, args)], name)
    if "entropy" in args.sections and not args.tiny:
        for name in args.models:
            for tokens in args.tokens:
                yield "entropy", functools.partial(entropy_of, name, tokens, args.repeats)


def entropy_of(name: str, tokens: int, repeats: int) -> list[dict]:
    return [row | {"model": name} for row in entropy_rows(tokens, MODELS[name]["vocab_size"], repeats)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=["head", "entropy"], default=["head", "entropy"])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16_384, 65_536])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="the head's section at small shapes on the CPU, as a test")
    args = parser.parse_args()
    torch.manual_seed(0)
    result = describe() | {"repeats": args.repeats, "entropy": [], "head": [], "failed": []}
    for key, rows in sections(args):
        try:
            found = rows()
        except Exception as error:  # must not cost the other sections, nor what was measured
            traceback.print_exc()
            found = []
            result["failed"].append(f"{key}: {type(error).__name__}: {error}"[:500])
        result[key] += [row for row in found if "failed" not in row or "head_share" in row]
        result["failed"] += [f"{key}: {row['failed']}" for row in found if "failed" in row]
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
