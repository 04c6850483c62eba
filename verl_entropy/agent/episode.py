# SPDX-License-Identifier: Apache-2.0
"""One episode: the turns between a policy and an environment, for both row layouts; no tokens, no verl."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from verl_entropy.agent import verl_agent_rules
from verl_entropy.agent.branching import Seat, Ticket, forked
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
    log_probs: list[float] | None = None
    """Of its tokens, where the server gives them; a rollout method reads them."""
    top_log_probs: list[list[float]] | None = None
    """Of the most likely words at each token."""
    prefix: dict[str, int] = field(default_factory=dict)
    """Tokens of its prompt, and those that the server had in its cache where it says so."""


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
    branch: Mapping[str, Any] | None = None
    """Under a rollout method: entropy, who sampled it (origin), whether this leaf copied it or went on here, and the server's cache."""

    def as_dict(self) -> dict[str, Any]:
        """A plain dict of plain values; those of ``branch`` beside the others."""
        values = asdict(self)
        return values | (values.pop("branch") or {})


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


class Branch:
    """A session under a rollout method, from the side of its episode: where it may branch, and what its turns' records say."""

    def __init__(self, seat: Seat, snapshot: str, own: Callable[[Any], Any] = lambda policy: policy):
        """``snapshot``: clone or replay; ``own``: makes a policy that was another session's this one's."""
        self._seat, self._clones, self._own = seat, snapshot == "clone", own
        self._lease: EnvLease | None = None
        self._copied, self._attempt = 0, 0
        self._here: Callable[[bytes | None], Ticket] | None = None

    @property
    def top(self) -> int:
        """Words whose log-probs the sampler is asked for."""
        return self._seat.tree.scheme.top

    async def start(self, pool: EnvPool) -> Ticket | None:
        """Wait for a ticket, or for the word to start as a root; who then has to wait for an environment holds no round up."""
        ticket = await self._seat.start()
        if pool.full:
            self._seat.tree.absent(self._seat.session)
        return ticket

    def begin(self, lease: EnvLease, ticket: Ticket | None, attempt: int) -> None:
        """An attempt, now with a place for an environment."""
        self._seat.tree.present(self._seat.session)
        self._lease, self._attempt, self._copied = lease, attempt, len(ticket.turns) if ticket else 0
        self._seat.streak = ticket.streak if ticket else 0

    def policy(self, ticket: Ticket) -> Any:
        """The policy to go on with."""
        return self._own(forked(ticket.policy))

    async def before(self, policy: Any, episode: Episode, history: list, seen: StepResult, task: str) -> None:
        """Before a turn: keep what a ticket from here needs, and branch if the rule asks for the turn before."""
        records, seconds, past, kept = tuple(episode.turns), tuple(episode.seconds), tuple(history), forked(policy)
        self._turns = records

        def here(snapshot: bytes | None) -> Ticket:
            kind = episode.task_type
            return Ticket(records, seconds, past, seen, kept, snapshot, self._seat.streak, task, kind)

        self._here = here
        if self._seat.tree.scheme.late and len(records) > self._copied:
            await self._offer(records[-1].branch["entropy"])

    async def after(self, said: Said) -> dict[str, Any]:
        """After an answer, before it is executed: branch from the state that it answered; what the turn's record says."""
        if said.log_probs is None:
            raise RuntimeError(
                "the rollout server gave no log-probs of its tokens, from which a rollout method reads entropy. "
                "Set actor_rollout_ref.rollout.calculate_log_probs=True."
            )
        scheme = self._seat.tree.scheme
        entropy = scheme.entropy(said.log_probs, said.top_log_probs)
        if not scheme.late and len(self._turns) > self._copied:
            await self._offer(entropy)
        branched = len(self._turns) == self._copied > 0  # its own first turn
        return {
            "entropy": entropy,
            "origin": f"{self._seat.session}.{self._attempt}",
            "copied": False,
            "branched": branched,
            **said.prefix,
        }

    async def _offer(self, entropy: float) -> None:
        first = self._turns[0].branch["entropy"]
        if not await self._seat.decide(entropy, first, f"{self._attempt}/{len(self._turns)}"):
            return
        snapshot = None
        try:
            snapshot = await self._lease.snapshot() if self._clones else None
        finally:  # an environment that dies here is played again from its actions
            self._seat.give(self._here(snapshot))


async def go_on(lease: EnvLease, ticket: Ticket, seed: int, options: dict[str, Any]) -> StepResult:
    """Bring the environment where the ticket's was; EnvironmentFailure where it shows other observations on the way."""
    if ticket.snapshot is not None:
        await lease.restore(ticket.snapshot)
        return ticket.seen
    seen = await lease.reset(seed, options or None)
    for place, (observation, action) in enumerate(ticket.history, 1):
        _same(lease, seen, observation, place)
        seen = await lease.step(action)
    _same(lease, seen, ticket.seen.observation, len(ticket.history) + 1)
    return seen


def _same(lease: EnvLease, seen: StepResult, observation: str, place: int) -> None:
    if seen.observation != observation:
        raise lease.broke_interface(
            ProtocolError(
                f"played again, turn {place} shows {seen.observation[:200]!r}, and {observation[:200]!r} the first time. The same seed "
                "must give the same episode; if it cannot, set SNAPSHOT of the environment's class to none."
            )
        )


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
        branch: Branch | None = None,
    ) -> tuple[Episode, P]:
        """Play the episode of ``seed`` and ``options``; SessionFailed once every attempt has failed.

        With ``branch`` it may go on from another session's turn; a ticket with which that fails costs none of the attempts.
        """
        errors: list[str] = []
        ticket = None if branch is None else await branch.start(self._pool)
        async with self._pool.lease() as lease:
            for attempt in range(self._settings.episode_retries + 1 + (ticket is not None)):
                if branch is not None:
                    branch.begin(lease, ticket, attempt)
                policy = make_policy() if ticket is None else branch.policy(ticket)
                try:
                    episode = await self._play(lease, policy, seed, dict(options or {}), task, branch, ticket)
                except EnvironmentFailure as error:
                    errors.append(f"{error}"[:2000])
                    logger.warning("environment failed, attempt %d of seed %d: %s", attempt + 1, seed, error)
                    ticket = None
                    continue
                episode.env_error = "; ".join(errors)
                lease.finish()
                return episode, policy
        raise SessionFailed("; ".join(errors))

    async def _play(
        self,
        lease: EnvLease,
        policy: P,
        seed: int,
        options: dict[str, Any],
        task: str,
        branch: Branch | None = None,
        ticket: Ticket | None = None,
    ) -> Episode:
        if ticket is None:
            seen = await lease.reset(seed, options or None)
            task = str(seen.info.get("task") or task)
            episode = Episode(task_type=str(seen.info.get("task_type") or ""), task=task[:LOGGED_TASK_CHARS])
            history: list[tuple[str, str]] = []
        else:
            task, seen = ticket.task, await go_on(lease, ticket, seed, options)
            episode = Episode(
                ticket.copied_turns(), list(ticket.seconds), task_type=ticket.task_type, task=task[:LOGGED_TASK_CHARS]
            )
            history = list(ticket.history)
        while not episode.ended:
            step = len(episode.turns) + 1
            if branch is not None:
                await branch.before(policy, episode, history, seen, task)
            state = TurnState(task, seen.observation, seen.admissible, tuple(history), step, seen.forms, seen.info)
            said = await policy.act(state)
            if said is None:
                episode.ended = "cut" if episode.turns and episode.turns[-1].cut else "no_room"
                break
            said = Said(said) if isinstance(said, str) else said
            marks = None if branch is None else await branch.after(said)
            parsed, action = self._decide(said, seen.admissible)
            started = time.monotonic()
            result = await lease.step(action)
            episode.seconds.append(time.monotonic() - started)
            episode.turns.append(replace(self._record(said, parsed, action, seen, result, task, step), branch=marks))
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
