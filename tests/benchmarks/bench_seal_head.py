# SPDX-License-Identifier: Apache-2.0
"""Share of the SEAL head in the actor update of Qwen2.5-1.5B: FLOPs and bytes, counted.

    python tests/benchmarks/bench_seal_head.py [--layers 3] [--context 2560] [--response 512] [--json FILE]

FLOPs of the head come from torch's FLOP counter on its real forward and backward, those of the actor from
its shape (two per multiply-add; forward plus backward is three times forward; causal attention counts
half). The actor runs on prompt and response, the head on trained response tokens only. Bytes for backward
are what autograd saves in bf16.
"""

from __future__ import annotations

import torch
from report import parser, table, write
from torch.utils.flop_counter import FlopCounterMode

from verl_entropy.methods.heads.seal import SealHead

HIDDEN, LAYERS, MLP, KEY_VALUE, VOCAB = 1536, 28, 8960, 256, 151_936
"""Qwen2.5-1.5B: hidden size, layers, MLP size, width of keys and of values, words."""
OPTIMIZER_BYTES = 16
"""Per parameter under verl's FSDP: fp32 weight, gradient and two Adam moments."""


def actor_flops(context: int) -> float:
    """Forward and backward per token of a sequence of ``context`` tokens."""
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_VALUE + 3 * HIDDEN * MLP
    attention = 2 * HIDDEN * context / 2  # scores and values, causal
    return 3 * 2 * (LAYERS * (layer + attention) + HIDDEN * VOCAB)


def actor_parameters() -> int:
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_VALUE + 3 * HIDDEN * MLP + HIDDEN + 2 * KEY_VALUE + 2 * HIDDEN
    return LAYERS * layer + HIDDEN * VOCAB + HIDDEN  # embedding and head are tied


def head_flops(head: SealHead, tokens: int) -> float:
    hidden = torch.randn(tokens, HIDDEN, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        head(hidden).sum().backward()
    return counter.get_total_flops() / tokens


def head_saved_bytes(layers: int, tokens: int) -> float:
    """Per token; parameters and the hidden states, which exist anyway, do not count."""
    head = SealHead(HIDDEN, layers=layers, dtype=torch.bfloat16)
    hidden = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    mine = {p.untyped_storage().data_ptr() for p in head.parameters()} | {hidden.untyped_storage().data_ptr()}
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in mine and len(x) == tokens:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        logits = head(hidden)  # alive, so that no address is used twice
    del logits
    return sum(kept.values()) / tokens


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--layers", type=int, default=3)
    arguments.add_argument("--context", type=int, default=2560, help="prompt and response tokens of a turn")
    arguments.add_argument("--response", type=int, default=512, help="trained tokens of a turn")
    args = arguments.parse_args()
    head, tokens = SealHead(HIDDEN, layers=args.layers), 64
    parameters = sum(p.numel() for p in head.parameters())
    flops, saved = head_flops(head, tokens), head_saved_bytes(args.layers, tokens)
    of_update = flops * args.response / (actor_flops(args.context) * args.context)
    values = {
        "head FLOPs per response token, both ways": flops,
        "actor FLOPs per token, both ways": actor_flops(args.context),
        "head / actor, same tokens": flops / actor_flops(args.context),
        f"head / actor, {args.response} of {args.context} tokens": of_update,
        "head parameters": float(parameters),
        "head / actor parameters": parameters / actor_parameters(),
        "head MB of weights, gradient and Adam": parameters * OPTIMIZER_BYTES / 1e6,
        "head bytes kept per response token": saved,
        "head MB kept at 16,384 response tokens": saved * 16_384 / 1e6,
    }
    table([{f"Qwen2.5-1.5B, {args.layers} layers": name, "value": value} for name, value in values.items()])
    write(
        args.json,
        {"layers": args.layers, "context": args.context, "response": args.response, "results": values},
    )


if __name__ == "__main__":
    main()
