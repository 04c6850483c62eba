# SPDX-License-Identifier: Apache-2.0
"""Supervised warm start on episodes of a noisy expert: the model learns the format and to act, far from perfectly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from verl_entropy.agent.parsing import format_response
from verl_entropy.envs.household import HouseholdEnv, HouseholdExpert
from verl_entropy.quickstart.build import ENV, MAX_TURNS, TASK_TYPES, prompt_builder

EPISODES = 2500
FIRST_SEED = 10_000_000
NOISE_LABEL, NOISE_PLAY = 0.3, 0.1
"""Share of turns whose *target* is a random action, and of the others whose *played* action is: the first leaves the policy
something to unlearn, the second shows it how to recover."""
STEPS, BATCH, LEARNING_RATE, WARMUP = 400, 64, 3e-3, 20

Row = tuple[list[int], list[int]]


def expert_rows(tokenizer, seed: int, episodes: int = EPISODES) -> list[Row]:
    """(prompt ids, response ids) of every turn, with the prompts that the agent loop builds."""
    rng, prompts, rows = random.Random(seed), prompt_builder(), []
    env = HouseholdEnv(**ENV, task_types=TASK_TYPES, max_turns=MAX_TURNS)
    for episode in range(episodes):
        observation, info = env.reset(seed=FIRST_SEED + seed * episodes + episode)
        expert, history, done = HouseholdExpert(info["task"]), [], False
        while not done:
            admissible = info["admissible_actions"]
            target = expert.act(observation, admissible)
            if rng.random() < NOISE_LABEL:
                played = target = rng.choice(admissible)
            else:
                played = rng.choice(admissible) if rng.random() < NOISE_PLAY else target
            messages = prompts.messages(info["task"], observation, history, admissible, len(history) + 1)
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
            response = tokenizer.encode(format_response(target, expert.thought), add_special_tokens=False)
            rows.append((list(prompt), [*response, tokenizer.eos_token_id]))
            history.append((observation, played))
            observation, _, terminated, truncated, info = env.step(played)
            done = terminated or truncated
    return rows


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
    width = max(len(p) + len(r) for p, r in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    target = torch.full((len(batch), width), -100)
    for i, (prompt, response) in enumerate(batch):
        ids[i, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        target[i, len(prompt) : len(prompt) + len(response)] = torch.tensor(response)
    position = torch.arange(width).expand_as(ids)
    hidden = model.model(input_ids=ids, position_ids=position).last_hidden_state[:, :-1]
    kept = target[:, 1:] != -100
    return F.cross_entropy(model.lm_head(hidden[kept]).float(), target[:, 1:][kept])


def train(model, rows: list[Row], seed: int, steps: int = STEPS, tick: Callable[[float], None] = lambda loss: None) -> float:
    """Train ``model`` in place; ``tick(loss)`` is called after each step. Returns the last loss."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0, betas=(0.9, 0.99))
    batches, loss = _batches(rows, random.Random(seed)), torch.tensor(float("nan"))
    model.train()
    for step in range(steps):
        decay = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * decay
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
    partial = folder.with_name(folder.name + ".partial")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
