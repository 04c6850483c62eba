# SPDX-License-Identifier: Apache-2.0
"""Supervised warm start on episodes of a noisy expert: the model learns the format and to act, far from perfectly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from verl_entropy.data.expert_turns import Noise, TurnWriter, collect
from verl_entropy.data.source import Task
from verl_entropy.files import new_folder
from verl_entropy.quickstart import build

EPISODES = 2500
FIRST_SEED = 10_000_000
NOISE_LABEL, NOISE_PLAY = 0.3, 0.1
"""The first leaves the policy something to unlearn, the second shows it how to recover (`Noise`)."""
STEPS, BATCH, LEARNING_RATE, WARMUP = 400, 64, 3e-3, 20

Row = tuple[list[int], list[int]]


def expert_rows(tokenizer, seed: int, episodes: int = EPISODES) -> list[Row]:
    """(prompt ids, response ids) of every turn, with the prompts that the agent loop builds."""
    writer = TurnWriter(build.agent_settings(), tokenizer, build.MAX_PROMPT, build.MAX_RESPONSE)
    first = FIRST_SEED + seed * episodes
    tasks = [Task(first + i, {"split": "train"}) for i in range(episodes)]
    rows, _ = collect(writer, tasks, noise=Noise(NOISE_LABEL, NOISE_PLAY), seed=seed)
    return [(row["prompt_ids"], row["response_ids"]) for row in rows]


def _batches(rows: list[Row], rng: random.Random) -> Iterator[list[Row]]:
    """Endless batches of rows of similar length."""
    while True:
        order = rows[:]
        rng.shuffle(order)
        for start in range(0, len(order), 8 * BATCH):
            block = sorted(order[start : start + 8 * BATCH], key=lambda row: len(row[0]) + len(row[1]))
            pieces = [block[i : i + BATCH] for i in range(0, len(block), BATCH)]
            rng.shuffle(pieces)
            yield from pieces


def _loss(model, batch: list[Row]) -> torch.Tensor:
    """Cross-entropy of the response tokens; rows are padded on the right, which causal attention never sees."""
    width, device = max(len(p) + len(r) for p, r in batch), model.device
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    target = torch.full((len(batch), width), -100)
    for i, (prompt, response) in enumerate(batch):
        ids[i, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        target[i, len(prompt) : len(prompt) + len(response)] = torch.tensor(response)
    ids, target = ids.to(device), target.to(device)
    position = torch.arange(width, device=device).expand_as(ids)
    hidden = model.model(input_ids=ids, position_ids=position).last_hidden_state[:, :-1]
    kept = target[:, 1:] != -100
    return F.cross_entropy(model.lm_head(hidden[kept]).float(), target[:, 1:][kept])


def train(
    model,
    rows: list[Row],
    seed: int,
    steps: int = STEPS,
    tick: Callable[[float], None] = lambda loss: None,
    rate: float = LEARNING_RATE,
) -> float:
    """Train ``model`` in place, where it is; ``tick(loss)`` is called after each step. Returns the last loss."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0, betas=(0.9, 0.99))
    batches, loss = _batches(rows, random.Random(seed)), torch.tensor(float("nan"))
    model.train()
    for step in range(steps):
        decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP) * decay
        loss = _loss(model, next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tick(float(loss.detach()))
    model.eval()
    return float(loss.detach())


def save(model, tokenizer, folder: Path) -> None:
    """Write a Hugging Face checkpoint that appears only when it is complete."""
    with new_folder(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
