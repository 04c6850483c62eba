# SPDX-License-Identifier: Apache-2.0
"""What SEAL's head costs a real update: verl's FSDP2 engine with our head, the same update with and without it, in pairs.

    python3 tests/gpu/head_cost.py MODEL FILE [--seconds 20] [--micro-batches 1] [--tiny]

MODEL is one of make_model.MODELS (random weights), FILE the row of results as JSON, written anew after each part. The head runs on the trained
tokens of multi-turn rows. The share is the median over pairs of with / without - 1, neighbours in time and in alternating order, so that
a drift of the clock meets both. Launches and time on the device come from torch's profiler, for the whole update and for each part of
a head that stands alone. --tiny: small shapes on the CPU, where operators are counted for kernels; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from make_model import MODELS, save

MIN_PAIRS, MAX_PAIRS = 5, 31
"""Below five the quartiles say nothing; 31 pairs are enough to see 0.1 % where single updates scatter by 0.5 %."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Rows of one update; a response has ``turns`` turns of the agent, each after the first behind an observation."""

    rows: int = 16
    length: int = 2048
    prompt: int = 1228
    turns: int = 4
    turn: int = 102
    """4 x 102 of 2,048 tokens are trained: a fifth, as in an agent's 512 of 2,560."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length


TINY = Size(rows=4, length=48, prompt=16, turns=3, turn=4)
TINY_MODEL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def mask_row(size: Size):
    """Loss mask of a response: turns spread evenly, observations between them."""
    import torch

    response = size.length - size.prompt
    stride = (response - size.turn) // max(size.turns - 1, 1)
    place = torch.arange(response)
    return ((place % stride < size.turn) & (place < stride * (size.turns - 1) + size.turn)).long()


def batch(size: Size, vocabulary: int):
    """What the driver sends for one update."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    g = torch.Generator().manual_seed(1)
    response = size.length - size.prompt
    mask = mask_row(size).expand(size.rows, -1)
    ids = torch.randint(6, vocabulary, (size.rows, size.length), generator=g)
    columns = {
        "prompts": ids[:, : size.prompt],
        "responses": ids[:, size.prompt :],
        "input_ids": ids,
        "position_ids": torch.arange(size.length).expand(size.rows, -1),
        "response_mask": mask,
        "loss_mask": mask,
        "old_log_probs": -torch.rand(size.rows, response, generator=g),
        "advantages": torch.randn(size.rows, response, generator=g) * mask,
    }
    fields = {name: torch.nested.as_nested_tensor(list(x.contiguous()), layout=torch.jagged) for name, x in columns.items()}
    fields["verl_entropy_label"] = (torch.arange(size.rows) % 2).float()
    data = TensorDict(fields, batch_size=[size.rows])
    tu.assign_non_tensor(
        data,
        use_remove_padding=False,
        use_dynamic_bsz=True,
        temperature=1.0,
        calculate_entropy=True,
        global_batch_size=size.rows,
        verl_entropy={"step": 1},
    )
    return data


class Updates:
    """The engine, and one update with or without the head."""

    def __init__(self, model: str, data) -> None:
        import engine_rank
        from verl.workers import engine_workers

        from verl_entropy.hosts.verl_engine import loss

        self.data, self.ppo_loss = data, engine_workers.ppo_loss
        bf16 = "++actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16"
        self.actor = engine_rank.actor_config("fsdp2", {"seal": {"alpha": 0.02}}, "chunked", extra=[bf16])
        self.engine = engine_rank.build(model, self.actor, checkpointing=True)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = 0.0  # the same weights, and so the same work, in every update
        self.settings = self.engine._head
        self.plain = copy.copy(self.actor)
        loss._plans[id(self.plain)] = (self.plain, dataclasses.replace(loss._plan(self.actor), head=None))

    def run(self, head: bool) -> None:
        # over the cached property: without settings the engine hands the model no positions, and the head is not called
        self.engine.__dict__["_head"] = self.settings if head else None
        loss = functools.partial(self.ppo_loss, config=self.actor if head else self.plain)
        with self.engine.train_mode():
            output = self.engine.train_batch(self.data, loss_function=loss)
        if ("verl_entropy/seal/loss" in output["metrics"]) != head:
            raise RuntimeError(f"head={head}, but the metrics say otherwise: {sorted(output['metrics'])}")
        self.micro_batches = len(output["loss"])

    def state(self) -> dict[str, float]:
        """The head's parameters, and MB of weights and optimiser state on this rank."""
        from torch.distributed.tensor import DTensor

        def local(x):
            return x.to_local() if isinstance(x, DTensor) else x

        own = [p for name, p in self.engine.module.named_parameters() if "seal_head" in name]
        kept = [v for p in own for v in self.engine.optimizer.state[p].values()]
        size = sum(local(x).numel() * x.element_size() for x in [*own, *kept])
        return {"head_parameters": sum(p.numel() for p in own), "head_state_mb": size / 1e6}


def sync() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(run: Callable[[], None]) -> float:
    """Milliseconds from an idle device to an idle device."""
    sync()
    start = time.perf_counter()
    run()
    sync()
    return 1e3 * (time.perf_counter() - start)


def profiled(run: Callable[[], None]) -> dict[str, float | None]:
    """Kernels, copies and fills that ``run`` launches, and their time on the device; None where the profiler saw nothing."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    kinds = ("kernel", "gpu_memcpy", "gpu_memset") if cuda else ("cpu_op",)
    sync()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        run()
        sync()
    with tempfile.TemporaryDirectory() as folder:
        seen.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    spent = [event["dur"] for event in events if event.get("cat") in kinds]
    return {"launches": len(spent) or None, "device_ms": sum(spent) / 1e3 if spent and cuda else None}


def peak_mb(run: Callable[[], None]) -> float | None:
    import torch

    if not torch.cuda.is_available():
        return None
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() / 1e6


def pairs(with_head: Callable[[], None], without: Callable[[], None], seconds: float) -> dict[str, float]:
    """Median share of the head over pairs of updates, measured for ``seconds``."""
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_PAIRS or (len(times) < MAX_PAIRS and time.perf_counter() < end):
        if len(times) % 2:
            plain = timed(without)
            times.append((timed(with_head), plain))
        else:
            times.append((timed(with_head), timed(without)))
    shares = [a / b - 1 for a, b in times]
    low, middle, high = statistics.quantiles(shares, n=4)
    return {
        "pairs": len(times),
        "update_ms": statistics.median(b for _, b in times),
        "head_ms": statistics.median(a - b for a, b in times),
        "head_share": middle,
        "head_share_quartiles": [low, high],
    }


def stages(hidden_size: int, positions, total: int) -> list[dict]:
    """Parts of a head alone, in bf16 as FSDP hands it to the forward: launches, time on the device, and time from idle to idle."""
    import torch

    from verl_entropy.methods.heads.seal import SealHead, seal_loss, seal_parts

    device = positions.device
    head = SealHead(hidden_size, device=device, dtype=torch.bfloat16).train()
    hidden = torch.randn(total, hidden_size, dtype=torch.bfloat16, device=device, requires_grad=True)
    label = torch.ones(len(positions), device=device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.0)
    kept: dict[str, torch.Tensor] = {}

    def gather() -> None:
        kept["states"] = hidden.index_select(0, positions)

    def forward() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            kept["logits"] = head(kept["states"])

    def loss() -> None:
        kept["loss"] = seal_loss(kept["logits"], label, None).sum() * 0.02

    def metrics() -> None:
        kept["metrics"] = torch.stack([part.sum() for part in seal_parts(kept["logits"], label, None).values()])

    def backward() -> None:
        kept["loss"].backward()

    def clip() -> None:
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hidden.grad = None

    parts = (gather, forward, loss, metrics, backward, clip, step)
    times: dict[str, list[float]] = {part.__name__: [] for part in parts}
    for _ in range(8):
        for part in parts:
            times[part.__name__].append(timed(part))
    # the first rounds compile and allocate
    return [{"part": part.__name__, "alone_ms": statistics.median(times[part.__name__][3:])} | profiled(part) for part in parts]


def start(tiny: bool) -> None:
    """A group of one rank."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if tiny:
        os.environ |= {"VERL_PLATFORM": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests / "engine"), str(tests / "cpu")]
    import torch
    import verl.utils.distributed as distributed
    import verl.workers.engine
    import verl.workers.engine_workers  # noqa: F401  (where ppo_loss is looked up)

    from verl_entropy.hosts.install import activate

    activate.install()
    if not tiny:
        torch.cuda.set_device(0)
    distributed.initialize_global_process_group_ray()


def measure(name: str, size: Size, args: argparse.Namespace, write: Callable[[dict], None]) -> None:
    import tiny_llama
    import torch
    from verl.utils import tensordict_utils as tu

    sizes = MODELS[name] | (TINY_MODEL if args.tiny else {})
    row: dict = {"model": name, "tokens": size.tokens, "trained_tokens": int(mask_row(size).sum()) * size.rows}
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama.save(Path(folder))  # for its tokenizer
        save(name, Path(folder), **sizes)
        updates = Updates(folder, batch(size, sizes["vocab_size"]))
    tu.assign_non_tensor(updates.data, max_token_len_per_gpu=-(-size.tokens // args.micro_batches))
    for head in (True, False, True, False):  # compiles, allocates and makes the optimiser's state
        updates.run(head)
    with_head, without = functools.partial(updates.run, True), functools.partial(updates.run, False)
    row |= {"turns": size.turns * size.rows, "micro_batches": updates.micro_batches} | updates.state()
    write(row := row | pairs(with_head, without, args.seconds))
    peaks = peak_mb(with_head), peak_mb(without)
    write(row := row | {"head_peak_mb": None if None in peaks else peaks[0] - peaks[1]})
    seen = {"with": profiled(with_head), "without": profiled(without)}
    write(row := row | {f"{key}_{side}": value for side, found in seen.items() for key, value in found.items()})
    device = next(updates.engine.module.parameters()).device
    positions = mask_row(size).repeat(size.rows).nonzero().squeeze(-1).to(device)
    with torch.device(device):
        write(row | {"parts": stages(sizes["hidden_size"], positions, size.tokens)})


def main() -> None:
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for pairs of updates, at least five of them")
    parser.add_argument("--micro-batches", type=int, default=1, help="that the update is cut into, where one does not fit")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    start(args.tiny)

    def write(row: dict) -> None:
        row = row | {"seconds": round(time.perf_counter() - begin, 1)}
        args.file.write_text(json.dumps(row, indent=1) + "\n")
        print(row, flush=True)

    import torch

    measure(args.model, TINY if args.tiny else Size(), args, write)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
