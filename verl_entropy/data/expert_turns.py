# SPDX-License-Identifier: Apache-2.0
"""Expert episodes as the token sequences of the step-wise agent loop: its prompt, and the answer the expert gives.

The prompt is built by the loop's own `PromptBuilder` and chat template. The answer is `format_response` of the expert's
thought and action, then the token at which the rollout server stops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_entropy import envs
from verl_entropy.agent.environment import reached_goal, read_reset, read_step
from verl_entropy.agent.parsing import find_action, format_response
from verl_entropy.agent.prompts import FittedPrompt, Message, PromptBuilder
from verl_entropy.agent.settings import AgentSettings, check_texts
from verl_entropy.agent.template import check_template
from verl_entropy.data.experts import THOUGHT, Expert, ExpertFailed, make_expert
from verl_entropy.data.source import Task


@dataclass(frozen=True)
class Noise:
    """Shares of turns at which a random admissible action is shown as the target, or (of the others) only played.

    The first leaves the policy something to unlearn, the second shows it how to recover.
    """

    target: float = 0.0
    play: float = 0.0

    def __post_init__(self) -> None:
        for key in ("target", "play"):
            if not 0.0 <= getattr(self, key) < 1.0:
                raise ValueError(f"--noise-{key}={getattr(self, key)}: must be in [0, 1).")

    @property
    def any(self) -> bool:
        """Whether a turn may differ from the expert's."""
        return self.target > 0.0 or self.play > 0.0


@dataclass(frozen=True)
class ExpertTurn:
    """One turn: the messages and tokens of its prompt, the answer and its tokens."""

    messages: list[Message]
    prompt_ids: list[int]
    response: str
    response_ids: list[int]
    step: int


@dataclass
class ExpertEpisode:
    """The turns of one episode and whether its goal was reached."""

    turns: list[ExpertTurn] = field(default_factory=list)
    success: bool = False
    task_type: str = ""


class TurnWriter:
    """Turns (state, action) into prompt and answer as the agent loop would see them."""

    def __init__(
        self,
        settings: AgentSettings,
        tokenizer: Any,
        max_prompt_length: int,
        max_response_length: int,
        template_kwargs: Mapping[str, Any] | None = None,
    ):
        self.settings, self.tokenizer = settings, tokenizer
        self.max_prompt_length, self.max_response_length = max_prompt_length, max_response_length
        self._template_kwargs = dict(template_kwargs or {})
        self.prompts = prompt_builder(settings)
        if tokenizer is not None:
            check_template(tokenizer, settings, self.tokenize)

    def tokenize(self, messages: list[Message]) -> list[int]:
        """The prompt's tokens, as verl's continuous-token builder renders the first messages."""
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self._template_kwargs
        )
        return list(ids)

    def prompt(self, *turn: Any) -> FittedPrompt:
        """The fitted prompt of a turn: task, observation, history, admissible actions, step, forms and ``info``, as `PromptBuilder.fit`."""
        return self.prompts.fit(self.tokenize, self.max_prompt_length, *turn)

    def answer(self, action: str, thought: str, admissible: tuple[str, ...]) -> tuple[str, list[int]]:
        """The well-formed answer and its tokens, ended as a sampled one is."""
        s = self.settings
        text = format_response(
            self._spelled(action, admissible),
            thought if thought or s.require_think or s.think_in_prompt else None,
            think_tag=s.think_tag,
            action_tag=s.action_tag,
            action_tags=s.action_tags,
            action_format=s.action_format,
        )
        if s.think_in_prompt:  # the chat template has opened the thought
            text = text.removeprefix(f"<{s.think_tag}>").lstrip()
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if not s.stop_at_action:
            ids = [*ids, self.tokenizer.eos_token_id]
        limit = min(self.max_response_length, s.max_tokens_per_turn or self.max_response_length)
        if len(ids) > limit:
            raise ValueError(
                f"data.max_response_length={limit}: the expert's answer {text[:80]!r} has {len(ids)} tokens. "
                f"Set data.max_response_length to at least {len(ids)}."
            )
        return text, ids

    def _spelled(self, action: str, admissible: tuple[str, ...]) -> str:
        if self.settings.action_format != "number":
            return action
        place = find_action(action, admissible)
        if place is None:
            raise ValueError(
                f"data.env.action_format=number: the expert's action {action!r} is not among the admissible ones. "
                "Set data.env.action_format=text."
            )
        return str(place + 1)


def prompt_builder(s: AgentSettings) -> PromptBuilder:
    """The prompt builder that the agent loop makes from the same settings."""
    check_texts(s)
    return PromptBuilder(**s.prompts)


def play(
    environment: Any,
    writer: TurnWriter,
    make: Callable[[Mapping[str, Any]], Expert],
    *,
    seed: int,
    options: Mapping[str, Any] | None = None,
    noise: Noise = Noise(),
    rng: random.Random | None = None,
    task: str = "",
) -> ExpertEpisode:
    """Play one episode with the expert that ``make(info)`` gives after ``reset``; ``task`` is for environments that say none."""
    rng, s = rng or random.Random(seed), writer.settings
    seen = read_reset(environment.reset(seed=seed, options=dict(options) if options else None))
    task = str(seen.info.get("task") or task)
    expert, history, total = make(seen.info), [], 0.0
    episode = ExpertEpisode(task_type=str(seen.info.get("task_type") or ""))
    while not seen.done and len(episode.turns) < s.max_turns:
        target = expert.act(seen.observation, seen.admissible)
        if rng.random() < noise.target:
            played = target = rng.choice(seen.admissible)
        else:
            played = rng.choice(seen.admissible) if rng.random() < noise.play else target
        step = len(episode.turns) + 1
        prompt = writer.prompt(task, seen.observation, history, seen.admissible, step, seen.forms, seen.info)
        text, ids = writer.answer(target, expert.thought, seen.admissible)
        episode.turns.append(ExpertTurn(prompt.messages, prompt.token_ids, text, ids, step))
        history.append((seen.observation, played))
        seen = read_step(environment.step(played))
        total += seen.reward
    episode.success = reached_goal(seen, total, s.success_key)
    return episode


def sft_rows(episode: ExpertEpisode, name: str) -> Iterator[dict[str, Any]]:
    """Rows of the SFT data set: tokens for `TokenDataset`, and the same as messages for people and other trainers."""
    for turn in episode.turns:
        yield {
            "messages": [*turn.messages, {"role": "assistant", "content": turn.response}],
            "prompt_ids": turn.prompt_ids,
            "response_ids": turn.response_ids,
            "data_source": name,
            "task_type": episode.task_type,
            "step": turn.step,
        }


def collect(
    writer: TurnWriter, tasks: Sequence[Task], *, noise: Noise = Noise(), seed: int = 0, thought: str = THOUGHT
) -> tuple[list[dict[str, Any]], list[int]]:
    """SFT rows of the expert's episodes, and the seeds of those left out because their goal was not reached.

    With noise every episode stays: its turns are what the policy is to meet.
    """
    name, rng, rows, failed = writer.settings.name, random.Random(seed), [], []
    environment = envs.make(name, **writer.settings.kwargs)

    def make(info: Mapping[str, Any]) -> Expert:
        return make_expert(name, environment, info, thought)

    try:
        for task in tasks:
            try:
                episode = play(
                    environment, writer, make, seed=task.seed, options=task.options, noise=noise, rng=rng, task=task.prompt
                )
            except ExpertFailed:
                failed.append(task.seed)
                continue
            if episode.success or noise.any:
                rows.extend(sft_rows(episode, name))
            else:
                failed.append(task.seed)
    finally:
        environment.close()
    return rows, failed
