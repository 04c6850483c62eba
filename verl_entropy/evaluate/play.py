# SPDX-License-Identifier: Apache-2.0
"""Play episodes as the agent loops do: their prompts, their parsing, their pool of environments; without verl."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_entropy.agent.episode import EpisodeRunner, Said, SessionFailed, TurnState
from verl_entropy.agent.pool import pool_of
from verl_entropy.agent.prompts import FittedPrompt, Message, PromptBuilder
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.data.source import Task
from verl_entropy.evaluate.samplers import Sampler


@dataclass(frozen=True)
class Outcome:
    """One episode. ``failed`` holds why its environment was given up; such an episode counts as no success, as in verl."""

    split: str
    task: int
    sample: int
    success: bool
    task_type: str
    turns: int = 0
    valid: int = 0
    episode_return: float = 0.0
    tokens: int = 0
    failed: str = ""
    cut: int = 0
    """Answers that were cut, and not executed."""
    ended: str = ""
    """Why the episode ended, as the agent loop stores it."""


class StepwisePolicy:
    """Asks for every turn with a prompt of its own, as ``stepwise_env`` does."""

    def __init__(self, ask: Ask, seed: int):
        self._ask, self._seed = ask, seed
        self.tokens = 0

    async def act(self, state: TurnState) -> Said | None:
        """The text of the answer."""
        prompt = await asyncio.get_running_loop().run_in_executor(None, self._ask.fit, state)
        answer = await self._ask.sampler.answer(prompt, turn_seed(self._seed, state.step))
        self.tokens += answer.tokens
        return Said(answer.text, answer.cut, prompt.dropped_words > 0)


class ChatPolicy(StepwisePolicy):
    """Lets one chat grow, as ``span_env`` does; the chat is rendered afresh each turn, while verl appends tokens."""

    def __init__(self, ask: Ask, seed: int):
        super().__init__(ask, seed)
        self._messages: list[Message] = []
        self._forms: set[str] = set()
        self._cut = False

    async def act(self, state: TurnState) -> Said | None:
        """The text of the answer; None once the chat has no room for another turn."""
        ask, loop = self._ask, asyncio.get_running_loop()
        if self._cut:
            return None
        if not self._messages:
            prompt = await loop.run_in_executor(None, ask.fit, state)
        else:
            forms = [form for form in state.forms if form not in self._forms]
            followup = ask.prompts.followup(state.observation, state.admissible, state.step, forms)
            messages = [*self._messages, followup]
            ids = await loop.run_in_executor(None, ask.tokenize, messages)
            if len(ids) >= ask.chat_tokens:
                return None
            prompt = FittedPrompt(messages, ids)
        self._forms.update(state.forms)
        answer = await ask.sampler.answer(prompt, turn_seed(self._seed, state.step))
        self.tokens += answer.tokens
        self._cut = answer.cut
        self._messages = [*prompt.messages, {"role": "assistant", "content": answer.text}]
        return Said(answer.text, answer.cut, prompt.dropped_words > 0)


POLICIES = {"stepwise_env": StepwisePolicy, "span_env": ChatPolicy}


@dataclass(frozen=True)
class Ask:
    """How prompts are made and who answers. Without a tokenizer they have no tokens and are sent whole."""

    prompts: PromptBuilder
    sampler: Sampler
    prompt_tokens: int
    chat_tokens: int
    tokenizer: Callable[[list[Message]], list[int]] | None = None
    agent_loop: str = "stepwise_env"

    def tokenize(self, messages: list[Message]) -> list[int]:
        """Token ids of a prompt, or none."""
        return self.tokenizer(messages) if self.tokenizer else []

    def fit(self, s: TurnState) -> FittedPrompt:
        """The prompt of a turn, within its length."""
        turn = (s.task, s.observation, s.history, s.admissible, s.step, s.forms, s.details)
        return self.prompts.fit(self.tokenize, self.prompt_tokens, *turn)

    def policy(self, seed: int) -> StepwisePolicy:
        """A policy for one attempt at an episode."""
        return POLICIES[self.agent_loop](self, seed)


def turn_seed(seed: int, step: int) -> int:
    """A seed of 31 bits for each turn of each episode, the same in every run."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=4).digest(), "little") >> 1


async def play(
    settings: AgentSettings,
    splits: Sequence[tuple[str, Sequence[Task]]],
    ask: Ask,
    *,
    samples: int = 1,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Every task of every split ``samples`` times, as many episodes at once as the pool has environments."""
    pool = pool_of(settings)
    runner: Any = EpisodeRunner(settings, pool)

    async def one(split: str, number: int, task: Task, sample: int) -> Outcome:
        key = int.from_bytes(hashlib.blake2b(f"{seed}/{split}/{number}/{sample}".encode(), digest_size=8).digest(), "little")
        try:
            episode, policy = await runner.run(
                lambda: ask.policy(key), seed=task.seed + settings.seed, options=task.options, task=task.prompt
            )
        except SessionFailed as error:
            return Outcome(split, number, sample, False, task.task_type, failed=str(error)[:500])
        finally:
            tick()
        return Outcome(
            split=split,
            task=number,
            sample=sample,
            success=episode.success,
            task_type=episode.task_type or task.task_type,
            turns=len(episode.turns),
            valid=sum(turn.valid for turn in episode.turns),
            episode_return=episode.episode_return,
            tokens=policy.tokens,
            cut=sum(turn.cut for turn in episode.turns),
            ended=episode.ended,
        )

    try:
        runs = [one(s, i, task, k) for s, found in splits for i, task in enumerate(found) for k in range(samples)]
        return await gather_or_stop(runs)
    finally:
        pool.close()


async def gather_or_stop(runs: Sequence[Any]) -> list[Outcome]:
    """All results in order; the first error (a dead endpoint, a broken pool) cancels the rest and is raised."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
