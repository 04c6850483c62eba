# SPDX-License-Identifier: Apache-2.0
"""What 16-bit passes do to the two sides of the clip (REPO, App. A): ratios over a few small updates, by path, against float64.

    python3 tests/gpu/clip_sides.py MODEL [--rows 64] [--tokens 64] [--json FILE]

MODEL, a Hugging Face checkpoint with a chat template, answers some prompts at temperature 1; then it takes three AdamW steps on
them with random signs as advantages, as later mini-batches see it. A path computes log-probs with the fp32 weights before and
after, cast as FSDP casts them; "high" and "low" are the shares of tokens whose ratio is clipped above (positive
advantage) and below (negative), "wrong" the tokens that float64 clips and the path does not, or the other way round.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path

import torch
from host import describe

from verl_entropy.batch.numerics import log_probs_and_entropy

PLACES = ("kitchen", "garden", "office", "cellar", "library", "harbour", "station", "workshop")
THINGS = ("key", "lamp", "book", "cup", "rope", "map", "coin", "apple")
LOW, HIGH = 0.2, 0.28
"""DAPO's bounds, as REPO uses them."""
STEPS, LR = 3, 2e-6


def answers(model, tokenizer, rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of prompts (padded on the left) with sampled answers, and their attention mask."""
    pairs = [(place, thing) for place in PLACES for thing in THINGS]
    asked = [f"You are in the {place} and look for the {thing}. What do you do next, and why?" for place, thing in pairs]
    chats = [[{"role": "user", "content": asked[i % len(asked)]}] for i in range(rows)]
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    given = tokenizer(texts, return_tensors="pt", padding=True).to(model.device)
    with torch.no_grad():
        ids = model.generate(
            **given, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens
        )
    return ids, torch.nn.functional.pad(given["attention_mask"], (0, tokens), value=1)


def log_probs(model, ids: torch.Tensor, mask: torch.Tensor, tokens: int, score: Callable) -> torch.Tensor:
    """(R, T) of the answers; eight rows at a time."""
    found = []
    for ids_RL, mask_RL in zip(ids.split(8), mask.split(8), strict=True):
        places = (mask_RL.cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids=ids_RL, attention_mask=mask_RL, position_ids=places, logits_to_keep=tokens + 1).logits[:, :-1]
        found.append(score(logits.flatten(0, 1), ids_RL[:, -tokens:].flatten()).view(len(ids_RL), tokens))
    return torch.cat(found)


def ours(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return log_probs_and_entropy(logits, labels, with_entropy=False)[0]


def rounded(dtype: torch.dtype) -> Callable:
    """fp32 log-probs in a 16-bit output: what FSDP2's ``output_dtype`` makes of them."""
    return lambda logits, labels: ours(logits, labels).to(dtype)


def in_place(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The softmax in the dtype of the logits."""
    return logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)


PATHS: dict[str, tuple[torch.dtype, Callable]] = {
    "fp32": (torch.float32, ours),
    "bf16, this package": (torch.bfloat16, ours),
    "bf16, log-probs rounded": (torch.bfloat16, rounded(torch.bfloat16)),
    "bf16, softmax in bf16": (torch.bfloat16, in_place),
    "fp16, this package": (torch.float16, ours),
    "fp16, log-probs rounded": (torch.float16, rounded(torch.float16)),
    "fp16, softmax in fp16": (torch.float16, in_place),
}


def leave_grid(model) -> None:
    """Move weights within the spacing of bf16, as training in fp32 does; those of a bf16 checkpoint would swallow the update."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + (torch.rand_like(weight) - 0.5) * 2**-7)


def update(model, ids, mask, tokens: int, sign_R: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for _ in range(STEPS):
        for rows in torch.arange(len(ids), device=ids.device).split(8):
            loss = -(log_probs(model, ids[rows], mask[rows], tokens, ours) * sign_R[rows, None]).mean() * len(rows) / len(ids)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def sides(log_ratio: torch.Tensor, sign_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ratio, positive = log_ratio.exp(), sign_R[:, None] > 0
    return (ratio > 1 + HIGH) & positive, (ratio < 1 - LOW) & ~positive


def compare(before, after, ids, mask, tokens: int, sign_R: torch.Tensor) -> list[dict]:
    def ratio(dtype: torch.dtype, score: Callable) -> torch.Tensor:
        with torch.no_grad():
            new, old = (log_probs(copy.deepcopy(m).to(dtype), ids, mask, tokens, score).double() for m in (after, before))
        return new - old

    truth = ratio(torch.float64, in_place)
    high, low = sides(truth, sign_R)
    rows = [{"path": "fp64", "high": float(high.double().mean()), "low": float(low.double().mean())}]
    for name, (dtype, score) in PATHS.items():
        found = ratio(dtype, score)
        above, below = sides(found, sign_R)
        rows.append(
            {
                "path": name,
                "high": float(above.double().mean()),
                "low": float(below.double().mean()),
                "wrong": float(((above != high) | (below != low)).double().mean()),
                "error": float((found - truth).abs().mean()),
                "largest_error": float((found - truth).abs().max()),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device).eval()
    leave_grid(before)
    ids, mask = answers(before, AutoTokenizer.from_pretrained(args.model), args.rows, args.tokens)
    sign_R = torch.ones(args.rows, device=device)
    sign_R[torch.randperm(args.rows, device=device)[: args.rows // 2]] = -1.0
    after = copy.deepcopy(before)
    update(after, ids, mask, args.tokens, sign_R)
    rows = compare(before, after, ids, mask, args.tokens, sign_R)
    for row in rows:
        print({k: f"{v:.2e}" if isinstance(v, float) else v for k, v in row.items()})
    result = describe() | {"rows": args.rows, "tokens": args.tokens, "steps": STEPS, "lr": LR, "clip": [LOW, HIGH], "paths": rows}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
