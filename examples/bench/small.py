# SPDX-License-Identifier: Apache-2.0
"""What the bench's own small worlds share: vocabulary, model, noisy warm start, data, and the trainer's words.

The expert's thoughts are drawn from several wordings, so that a policy starts with entropy that reward does not ask for: what a method does
to it is seen, and none of it is needed for the task.
"""

from __future__ import annotations

import argparse
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from verl_entropy.agent.settings import AgentSettings
from verl_entropy.data.expert_turns import Noise, TurnWriter, collect
from verl_entropy.data.source import FIRST_HELD_OUT, SEEDS_PER_RUN, Task, rl_rows
from verl_entropy.data.write import write_parquet
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS
from verl_entropy.quickstart import __main__ as quickstart
from verl_entropy.quickstart import build, warm_start

T = TypeVar("T")
OPENINGS = ("now", "so", "then", "well", "next", "here", "first", "again")
VERBS = ("go", "move", "walk", "step")

HELD_OUT = {"dev": 0, "test": 1}
"""Of five classes of tasks, by a checksum; all others are the training's."""


def belongs(task: str, split: str) -> bool:
    """Whether a task is one of the split's."""
    place = zlib.crc32(task.encode()) % 5
    return place == HELD_OUT[split] if split in HELD_OUT else place not in HELD_OUT.values()


def draw(seed: int | None, split: str, make: Callable[[int], T], task: Callable[[T], str]) -> T:
    """The first of what ``make`` gives for the numbers of a seed whose ``task`` is one of the split's."""
    rng = random.Random(f"{split}/{seed}")
    while True:
        made = make(rng.randrange(2**31))
        if belongs(task(made), split):
            return made


def thought(rng: random.Random, action: str, verbs: Sequence[str] = VERBS) -> str:
    """One of the wordings of ``action``."""
    return f"{rng.choice(OPENINGS)} {rng.choice(verbs)} {action}"


def shortest(start: T, moves: Iterable[str], after: Callable[[T, str], T], won: Callable[[T], bool]) -> list[str] | None:
    """The moves of a shortest way from ``start`` to a state that is won; None if there is none."""
    ways: dict[T, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if won(state):
            return ways[state]
        for move in moves:
            if (there := after(state, move)) not in ways:
                ways[there] = [*ways[state], move]
                queue.append(there)
    return None


class Guided(Protocol):
    """A world that knows what to do."""

    words: random.Random

    def way(self) -> str:
        """The next action from where it is."""


class Expert:
    """One episode's expert: plays the world's way, with a thought of several wordings."""

    thought = ""

    def __init__(self, world: Guided, verbs: Sequence[str] = VERBS) -> None:
        self._world, self._verbs = world, verbs

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """The next action."""
        action = self._world.way()
        self.thought = thought(self._world.words, action, self._verbs)
        return action


@dataclass(frozen=True)
class Small:
    """A world of few words."""

    name: str
    environment: str
    vocabulary: tuple[str, ...]
    max_turns: int
    max_prompt: int
    max_response: int
    held_out: int
    """Episodes of each held-out split."""
    noise: Noise
    splits: tuple[str, str] = ("dev", "test")
    """The held-out ones."""
    episodes: int = 3000
    """The expert's, for the warm start."""
    warm_steps: int = 400
    prompts: int = 8
    rollouts: int = 8
    train_steps: int = 400
    """Steps for which there are training tasks."""

    def agent(self) -> dict[str, Any]:
        """``data.env``."""
        return {
            "name": self.environment,
            "max_turns": self.max_turns,
            "history_length": 0,
            "show_admissible": False,
            "prompt_template": "brief",
        }

    def prepare(self, folder: Path, seed: int) -> None:
        """Data and warm-started model of a seed, made once."""
        assets = self.write_tasks(folder, seed)
        if (assets / "warm").is_dir():
            return
        import torch

        torch.set_num_threads(1)
        words = [*build.SPECIAL, *sorted({*self.vocabulary, *OPENINGS, *build.OTHER.split()} - set(build.SPECIAL))]
        tokenizer = build.word_level(words, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<|im_start|>")
        network = build.build_model(len(tokenizer), seed)
        warm_start.train(network, self.expert_rows(tokenizer, seed), seed, steps=self.warm_steps)
        warm_start.save(network, tokenizer, assets / "warm")

    def write_tasks(self, folder: Path, seed: int) -> Path:
        """The tasks of a seed; returns their folder."""
        assets = folder / f"assets-seed{seed}"
        assets.mkdir(parents=True, exist_ok=True)
        splits = [("train", seed * SEEDS_PER_RUN, self.train_steps * self.prompts)]
        splits += [(split, FIRST_HELD_OUT * (1 + i), self.held_out) for i, split in enumerate(self.splits)]
        for split, first, count in splits:
            tasks = [Task(first + i, {"split": split}) for i in range(count)]
            write_parquet(rl_rows(tasks, self.name, split), assets / f"{split}.parquet")
        return assets

    def expert_rows(self, tokenizer: Any, seed: int) -> list[warm_start.Row]:
        """(prompt ids, response ids) of every turn of a noisy expert."""
        writer = TurnWriter(AgentSettings.from_mappings(self.agent()), tokenizer, self.max_prompt, self.max_response)
        first = warm_start.FIRST_SEED + seed * self.episodes
        tasks = [Task(first + i, {"split": "train"}) for i in range(self.episodes)]
        rows, _ = collect(writer, tasks, noise=self.noise, seed=seed)
        return [(row["prompt_ids"], row["response_ids"]) for row in rows]

    def words(self, folder: Path, seed: int, run: Path, steps: int, presets: tuple[str, ...]) -> list[str]:
        """Overrides for verl's trainer on a CPU: the quickstart's with this world's data and sizes."""
        return [*quickstart.device_overrides(), *self.task_words(folder, seed, run, steps, presets)]

    def task_words(self, folder: Path, seed: int, run: Path, steps: int, presets: tuple[str, ...]) -> list[str]:
        """The part of them that says what is trained, not on which device."""
        assets = folder / f"assets-seed{seed}"
        args = argparse.Namespace(preset=",".join(presets) or "none", steps=steps, seed=seed, overrides=[])
        return [
            *(word for word in quickstart.task_overrides(args, assets, run) if word and not word.startswith("+data.env.")),
            *(word for word in quickstart.environment_overrides(self.agent()) if word.startswith("+data.env.")),
            f"data.val_files=[{','.join(str(assets / f'{split}.parquet') for split in self.splits)}]",
            f"data.train_batch_size={self.prompts}",
            f"data.max_prompt_length={self.max_prompt}",
            f"data.max_response_length={self.max_response}",
            f"actor_rollout_ref.rollout.n={self.rollouts}",
            f"actor_rollout_ref.rollout.prompt_length={self.max_prompt}",
            f"actor_rollout_ref.rollout.response_length={self.max_response}",
            f"++{DIAGNOSTICS}.run_file.folder=null",
            f"++{DIAGNOSTICS}.costly_every=0",
        ]
