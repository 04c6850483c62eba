# SPDX-License-Identifier: Apache-2.0
"""Supervised warm start: the tiny model learns format and rules from a noisy expert, and stays far from perfect."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from verl_entropy import envs
from verl_entropy.agent.parsing import executed_action, format_response, parse_response
from verl_entropy.envs.household import HouseholdEnv, HouseholdExpert
from verl_entropy.quickstart import recipe
from verl_entropy.quickstart.assets import WARM_START_SEEDS

Row = tuple[list[int], list[int]]  # prompt ids, response ids


@dataclass(frozen=True)
class WarmStart:
    """Settings of the warm start; the defaults take about a minute on one core."""

    steps: int = 650
    rows: int = 64  # rows of a batch
    learning_rate: float = 3e-3
    episodes: int = 2500
    mistakes: float = 0.12  # turns whose label is a random admissible action: what RL has to unlearn
    detours: float = 0.3  # turns where another action is played than the expert's, which stays the label
    inadmissible: float = 0.3  # detours that are the noop action, so that the model has seen its answer
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("steps", "rows", "episodes"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)!r} must be at least 1")
        for key in ("mistakes", "detours", "inadmissible"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ValueError(f"{key}={getattr(self, key)!r} is a share of turns: from 0 to 1")


def expert_turns(settings: WarmStart) -> Iterator[tuple[list[dict[str, str]], str]]:
    """(messages, response) of every turn of noisy expert episodes, as the agent loop would build them."""
    agent, builder, rng = recipe.settings(), recipe.prompt_builder(), random.Random(f"warm start/{settings.seed}")
    # The difficulty's own limit instead of the run's: longer episodes show more ways back from a detour.
    env = envs.make(agent.name, **{**agent.kwargs, "max_turns": None})
    for number in range(settings.episodes):
        seed = WARM_START_SEEDS + settings.seed * settings.episodes + number
        observation, info = env.reset(seed=seed)
        expert, history, done = HouseholdExpert(info["task"]), [], False
        while not done:
            admissible = info["admissible_actions"]
            label = played = expert.act(observation, admissible)
            if rng.random() < settings.mistakes:
                label = played = rng.choice(admissible)
            elif rng.random() < settings.detours:
                played = agent.noop_action if rng.random() < settings.inadmissible else rng.choice(admissible)
            messages = builder.messages(info["task"], observation, history, admissible, len(history) + 1)
            yield messages, format_response(label, expert.thought)
            history.append((observation, played))
            observation, _, terminated, truncated, info = env.step(played)
            done = terminated or truncated


def encode(tokenizer: PreTrainedTokenizerFast, turns: list[tuple[list[dict[str, str]], str]]) -> list[Row]:
    """Token ids of prompts and responses (which end with the end-of-turn token); unknown words are refused."""
    messages, responses = [list(column) for column in zip(*turns, strict=True)]
    prompts = prompt_ids(tokenizer, messages)
    ends = [ids + [tokenizer.eos_token_id] for ids in tokenizer(responses, add_special_tokens=False)["input_ids"]]
    for prompt, end, turn in zip(prompts, ends, turns, strict=True):
        if tokenizer.unk_token_id in prompt + end:
            raise ValueError(f"a word of {turn} is not in the quickstart's vocabulary; add it to assets.vocabulary()")
    return list(zip(prompts, ends, strict=True))


def prompt_ids(tokenizer: PreTrainedTokenizerFast, messages: list[list[dict[str, str]]]) -> list[list[int]]:
    """Ids of many chats, each with the generation prompt."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def warm_start(
    folder: str | Path, settings: WarmStart | None = None, progress: Callable[[int, int, float], None] | None = None
) -> float:
    """Train the model in `folder` in place; returns the last loss. `progress(step, steps, loss)` is called every step."""
    settings = settings or WarmStart()
    tokenizer, model = load(folder)
    with one_thread():
        rows = encode(tokenizer, list(expert_turns(settings)))
        loss = fit(model, rows, settings, progress)
    model.save_pretrained(folder)
    return loss


def fit(
    model: LlamaForCausalLM,
    rows: list[Row],
    settings: WarmStart,
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Token-level cross entropy on response tokens, AdamW, cosine decay after a short warm-up."""
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    batches, loss = _batches(rows, settings), torch.tensor(math.nan)
    model.train()
    for step in range(settings.steps):
        decay = 0.05 + 0.475 * (1 + math.cos(math.pi * step / settings.steps))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (step + 1) / 20) * decay
        ids, labels = pad(next(batches))
        loss = response_loss(model, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if progress:
            progress(step + 1, settings.steps, loss.item())
    model.eval()
    return loss.item()


def response_loss(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the labelled tokens; only their hidden states pass the head."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]  # right padding: the causal mask is enough
    targets = labels[:, 1:]
    chosen = targets >= 0
    return cross_entropy(model.lm_head(hidden[chosen]), targets[chosen])


def pad(rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids and labels (-100 outside the responses)."""
    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids = [p + r + [0] * (width - len(p) - len(r)) for p, r in rows]
    labels = [[-100] * len(p) + r + [-100] * (width - len(p) - len(r)) for p, r in rows]
    return torch.tensor(ids), torch.tensor(labels)


def _batches(rows: list[Row], settings: WarmStart) -> Iterator[list[Row]]:
    """Endless batches of rows of like length (little padding), in random order."""
    rng, size = random.Random(f"batches/{settings.seed}"), settings.rows
    while True:
        order = rng.sample(rows, len(rows))
        for start in range(0, len(order), 8 * size):  # sorted within eight batches: still well mixed
            block = sorted(order[start : start + 8 * size], key=lambda row: len(row[0]) + len(row[1]))
            batches = [block[i : i + size] for i in range(0, len(block), size)]
            yield from rng.sample(batches, len(batches))


@torch.no_grad()
def evaluate(
    folder: str | Path, split: str = "unseen", episodes: int = 200, temperature: float = 1.0, seed: int = 0
) -> dict[str, float]:
    """Play held-out episodes with the model: success rate, share of valid turns, mean turns."""
    tokenizer, model = load(folder)
    agent = recipe.settings()
    games = [_Game(envs.make(agent.name, **agent.kwargs), split, 40_000_000 + seed * episodes + i) for i in range(episodes)]
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        while live := [game for game in games if not game.done]:
            for game, text in zip(live, _sample(model, tokenizer, [g.messages() for g in live], temperature), strict=True):
                game.play(text)
    turns = sum(game.turns for game in games)
    return {
        "success": sum(game.won for game in games) / episodes,
        "valid": sum(game.valid for game in games) / turns,
        "turns": turns / episodes,
    }


class _Game:
    """One episode, played as the agent loop plays it."""

    def __init__(self, env: HouseholdEnv, split: str, seed: int) -> None:
        self._env, self._agent, self._builder = env, recipe.settings(), recipe.prompt_builder()
        self._observation, self._info = env.reset(seed=seed, options={"split": split})
        self._history: list[tuple[str, str]] = []
        self.turns, self.valid, self.won, self.done = 0, 0, False, False

    def messages(self) -> list[dict[str, str]]:
        info = self._info
        return self._builder.messages(info["task"], self._observation, self._history, info["admissible_actions"], self.turns + 1)

    def play(self, text: str) -> None:
        agent, admissible = self._agent, self._info["admissible_actions"]
        parsed = parse_response(text, admissible, action_format=agent.action_format)
        action = executed_action(
            parsed,
            text,
            admissible,
            invalid_action=agent.invalid_action,
            noop_action=agent.noop_action,
            require_admissible=agent.require_admissible,
        )
        self._history.append((self._observation, action))
        self._observation, _, self.won, truncated, self._info = self._env.step(action)
        self.turns += 1
        self.valid += parsed.valid(agent.require_admissible)
        self.done = self.won or truncated


def _sample(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, messages: list[list[dict[str, str]]], temperature: float
) -> list[str]:
    batch = tokenizer.pad({"input_ids": prompt_ids(tokenizer, messages)}, return_tensors="pt", padding_side="left")
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    ids = model.generate(**batch, max_new_tokens=recipe.RESPONSE_LENGTH, **how)
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def load(folder: str | Path) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    """Tokenizer and model (fp32, evaluation mode) of an assets folder."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    return PreTrainedTokenizerFast.from_pretrained(folder), model


@contextmanager
def one_thread() -> Iterator[None]:
    """A model of this size is slower on two threads than on one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
