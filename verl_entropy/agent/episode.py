# SPDX-License-Identifier: Apache-2.0
"""One episode: the turns between a policy and an environment, for both row layouts; no tokens, no verl."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from verl_entropy.agent import verl_agent_rules
from verl_entropy.agent.environment import ProtocolError, StepResult, reached_goal
from verl_entropy.agent.parsing import ParsedAction, executed_action, parse_response
from verl_entropy.agent.pool import EnvironmentFailure, EnvLease, EnvPool
from verl_entropy.agent.settings import AgentSettings

logger = logging.getLogger(__name__)

LOGGED_ACTION_CHARS = 200
"""Characters of an action that travel with its row: readable, and small in thousands of rows."""
LOGGED_OBSERVATION_CHARS, LOGGED_TASK_CHARS = 2000, 500
"""The same of an observation and of a task; a run file's trajectories show them."""


class SessionFailed(RuntimeError):
    """The episode could not be played; nothing of it may be trained on."""


@dataclass(frozen=True)
class TurnState:
    """What the policy sees before a turn; ``history`` is every earlier (observation, action)."""

    task: str
    observation: str
    admissible: tuple[str, ...]
    history: tuple[tuple[str, str], ...]
    step: int
    forms: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """The environment's ``info``."""


@dataclass(frozen=True)
class Said:
    """A policy's answer."""

    text: str
    cut: bool = False
    """It was ended by the token limit or the server: it is not executed."""
    prompt_cut: bool = False
    """Its prompt lost words of the observation."""


@dataclass(frozen=True)
class TurnRecord:
    """One turn as it is stored with its row (``extra_fields["turns"]``)."""

    reward: float
    penalty: float
    valid: bool
    anchor: Any
    turn: int
    admissible: bool
    action: str
    cut: bool = False
    prompt_cut: bool = False
    observation: str = ""

    def as_dict(self) -> dict[str, Any]:
        """A plain dict of plain values."""
        return asdict(self)


@dataclass
class Episode:
    """A finished episode."""

    turns: list[TurnRecord] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Time that the environment took, per turn."""
    success: bool = False
    task_type: str = ""
    task: str = ""
    ended: str = ""
    """terminated, truncated (by the environment), max_turns, no_room (no tokens left for another turn) or cut (a chat whose last
    answer was cut cannot go on)."""
    env_error: str = ""
    """Why earlier attempts at this episode were given up."""

    @property
    def episode_return(self) -> float:
        """Sum of the environment's rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def penalty(self) -> float:
        """Sum of the penalties, >= 0."""
        return sum(turn.penalty for turn in self.turns)

    def score(self, penalty_in_score: bool) -> float:
        """The return, less the penalties if they count."""
        return self.episode_return - (self.penalty if penalty_in_score else 0.0)


_warned: set[str] = set()


def _warn_once(episode: Episode) -> None:
    """One warning of each kind in a process; how often it happens is a metric."""
    cut, prompt_cut = any(turn.cut for turn in episode.turns), any(turn.prompt_cut for turn in episode.turns)
    answer_keys = "data.max_response_length or data.env.max_tokens_per_turn"
    found = {
        "cut": (cut, "an answer was cut by the token limit and not executed", answer_keys),
        "no_room": (
            episode.ended == "no_room",
            "an episode ended for its chat had no room for another turn",
            "data.max_response_length",
        ),
        "prompt": (prompt_cut, "a prompt lost words of its observation", "data.max_prompt_length"),
    }
    for kind, (happened, what, key) in found.items():
        if happened and kind not in _warned:
            _warned.add(kind)
            logger.warning("%s. Raise %s if that is not rare (metrics verl_entropy/episodes/*)", what, key)


class Policy(Protocol):
    """Answers one episode's turns; a new one is made for every attempt."""

    async def act(self, state: TurnState) -> Said | str | None:
        """The response (a bare text is a whole one), or None if there is no room for another turn."""
        ...


P = TypeVar("P", bound=Policy)


class EpisodeRunner(Generic[P]):
    """Plays episodes; starts one afresh when its environment fails."""

    def __init__(self, settings: AgentSettings, pool: EnvPool, max_turns: int | None = None):
        self._settings, self._pool = settings, pool
        self._max_turns = min(settings.max_turns, max_turns or settings.max_turns)

    async def run(
        self,
        make_policy: Callable[[], P],
        *,
        seed: int,
        options: Mapping[str, Any] | None = None,
        task: str = "",
    ) -> tuple[Episode, P]:
        """Play the episode of ``seed`` and ``options``; SessionFailed once every attempt has failed."""
        errors: list[str] = []
        async with self._pool.lease() as lease:
            for attempt in range(self._settings.episode_retries + 1):
                policy = make_policy()
                try:
                    episode = await self._play(lease, policy, seed, dict(options or {}), task)
                except EnvironmentFailure as error:
                    errors.append(f"{error}"[:2000])
                    logger.warning("environment failed, attempt %d of seed %d: %s", attempt + 1, seed, error)
                    continue
                episode.env_error = "; ".join(errors)
                lease.finish()
                return episode, policy
        raise SessionFailed("; ".join(errors))

    async def _play(self, lease: EnvLease, policy: P, seed: int, options: dict[str, Any], task: str) -> Episode:
        seen = await lease.reset(seed, options or None)
        task = str(seen.info.get("task") or task)
        episode, history = Episode(task_type=str(seen.info.get("task_type") or ""), task=task[:LOGGED_TASK_CHARS]), []
        while not episode.ended:
            step = len(episode.turns) + 1
            state = TurnState(task, seen.observation, seen.admissible, tuple(history), step, seen.forms, seen.info)
            said = await policy.act(state)
            if said is None:
                episode.ended = "cut" if episode.turns and episode.turns[-1].cut else "no_room"
                break
            said = Said(said) if isinstance(said, str) else said
            parsed, action = self._decide(said, seen.admissible)
            started = time.monotonic()
            result = await lease.step(action)
            episode.seconds.append(time.monotonic() - started)
            episode.turns.append(self._record(said, parsed, action, seen, result, task, step))
            history.append((seen.observation, action))
            seen = result
            episode.ended = self._ending(result, step)
        try:
            episode.success = reached_goal(seen, episode.episode_return, self._settings.success_key)
        except ProtocolError as error:
            raise lease.broke_interface(error) from error
        _warn_once(episode)
        return episode

    def _decide(self, said: Said, admissible: tuple[str, ...]) -> tuple[ParsedAction, str]:
        s, text = self._settings, said.text
        if said.cut:  # what it would have become is not known: nothing of it is executed
            text = ""
        if s.prompt_template == "verl_agent":
            parsed = verl_agent_rules.project(text, s.name, admissible, s.think_in_prompt)
            return parsed, parsed.action
        parsed = parse_response(
            text,
            admissible,
            think_tag=s.think_tag,
            action_tag=s.action_tag,
            action_tags=s.action_tags,
            require_think=s.require_think,
            think_in_prompt=s.think_in_prompt,
            strict=s.strict_format,
            action_format=s.action_format,
            max_action_chars=s.max_action_chars,
        )
        action = executed_action(
            parsed,
            text,
            admissible,
            invalid_action=s.invalid_action,
            noop_action=s.noop_action,
            require_admissible=s.require_admissible,
            action_format=s.action_format,
        )
        return parsed, action

    def _record(
        self, said: Said, parsed: ParsedAction, action: str, seen: StepResult, result: StepResult, task: str, step: int
    ) -> TurnRecord:
        valid = parsed.valid(self._settings.require_admissible)
        return TurnRecord(
            reward=result.reward,
            penalty=0.0 if valid else self._settings.invalid_action_penalty,
            valid=valid,
            anchor=seen.info.get("anchor", f"{task}\n{seen.observation}"),
            turn=step - 1,
            admissible=parsed.admissible,
            action=action[:LOGGED_ACTION_CHARS],
            cut=said.cut,
            prompt_cut=said.prompt_cut,
            observation=seen.observation[:LOGGED_OBSERVATION_CHARS],
        )

    def _ending(self, result: StepResult, step: int) -> str:
        if result.terminated:
            return "terminated"
        if result.truncated:
            return "truncated"
        return "max_turns" if step >= self._max_turns else ""
