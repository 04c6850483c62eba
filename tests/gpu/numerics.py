# SPDX-License-Identifier: Apache-2.0
"""Error of log-prob and entropy against float64 on the card, by path and dtype of the logits.

    python3 tests/gpu/numerics.py [--tokens 1024] [--vocab 151936] [--json FILE]

Compared are this package's pass (outside and inside autocast) and verl's own: eager, eager under autocast, compiled under autocast,
chunked, and the fused kernels ("torch" and Triton), which start from hidden states. "error" is the largest difference in nats.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from host import describe

from verl_entropy.batch.numerics import log_probs_and_entropy

HIDDEN = 1536
"""Of Qwen2.5-1.5B."""


def exact(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, entropies = [], []
    for z, y in zip(logits.split(64), labels.split(64), strict=True):
        log_p = z.double().log_softmax(-1)
        log_probs.append(log_p.gather(-1, y[:, None]).squeeze(-1))
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    return torch.cat(log_probs), torch.cat(entropies)


def logit_paths() -> dict:
    import verl.utils.torch_functional as verl_F

    compiled = torch.compile(verl_F.entropy_from_logits, dynamic=True)

    def verl(entropy):
        return lambda z, y: (verl_F.logprobs_from_logits_v2(z, y), entropy(z))

    def autocast(path):
        def run(z, y):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return path(z, y)

        return run

    return {
        "this package": log_probs_and_entropy,
        "this package, in autocast": autocast(log_probs_and_entropy),
        "verl eager": verl(verl_F.entropy_from_logits),
        "verl eager, in autocast": autocast(verl(verl_F.entropy_from_logits)),
        "verl compiled, in autocast": autocast(verl(compiled)),
        "verl chunked, in autocast": autocast(verl(verl_F.entropy_from_logits_with_chunking)),
    }


def fused_paths() -> dict:
    from verl.utils.experimental.torch_functional import FusedLinearForPPOFunction
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    return {
        "verl fused (torch)": lambda h, w, y: FusedLinearForPPOFunction.apply(h, w, y, 1.0, 512),
        "verl fused (Triton)": lambda h, w, y: linear_cross_entropy(h, w, y, 1.0, "none"),
    }


def error(values, reference) -> dict:
    log_probs, entropy = values
    return {
        "log_prob": float((log_probs.double() - reference[0]).abs().max()),
        "entropy": float((entropy.double() - reference[1]).abs().max()),
        "entropy_dtype": str(entropy.dtype).removeprefix("torch."),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    labels = torch.randint(args.vocab, (args.tokens,), device="cuda")
    rows = []
    for scale in (1.0, 3.0, 8.0):  # entropies of about 11, 7 and .2 nats at a vocabulary of 152 k
        fp32 = scale * torch.randn(args.tokens, args.vocab, device="cuda")
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            logits = fp32.to(dtype)
            reference = exact(logits, labels)
            mean = float(reference[1].mean())
            for name, path in logit_paths().items():
                rows.append(
                    {"path": name, "logits": str(dtype).removeprefix("torch."), "mean_entropy": mean}
                    | attempt(lambda p=path, z=logits, r=reference: error(p(z, labels), r))
                )
    for dtype in (torch.bfloat16, torch.float16):
        hidden = torch.randn(args.tokens, HIDDEN, device="cuda").to(dtype)
        weight = (3 / HIDDEN**0.5 * torch.randn(args.vocab, HIDDEN, device="cuda")).to(dtype)
        reference = exact(hidden.float() @ weight.float().T, labels)
        for name, path in fused_paths().items():
            rows.append(
                {
                    "path": name,
                    "logits": f"{str(dtype).removeprefix('torch.')} hidden",
                    "mean_entropy": float(reference[1].mean()),
                }
                | attempt(lambda p=path, h=hidden, w=weight, r=reference: error(p(h, w, labels), r))
            )
    result = describe() | {"tokens": args.tokens, "vocab": args.vocab, "rows": rows}
    for row in rows:
        print({k: f"{v:.2e}" if isinstance(v, float) else v for k, v in row.items()})
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def attempt(measure) -> dict:
    try:
        with torch.no_grad():
            return measure()
    except Exception as reason:
        return {
            "failed": f"{type(reason).__name__}: {str(reason).splitlines()[0][:120]}" if str(reason) else type(reason).__name__
        }


if __name__ == "__main__":
    main()
