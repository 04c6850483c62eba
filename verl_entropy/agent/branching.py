# SPDX-License-Identifier: Apache-2.0
"""The sessions of a prompt under a rollout method: some start as roots, the others go on from a turn of a live one. No verl.

A *round* is one decision of every live session of the prompt; live sessions wait for one another there, so that who branches does
not depend on who is faster. A session without an environment holds no round up, and once nobody waits for a branch there are no
rounds. A session that waits gets a *ticket*: everything that another session was before its turn. A ticket that is owed by a session
that dies goes back, and its waiting session waits on; when no session is left alive, those that wait start as roots. So n sessions are
n leaves, whatever happens to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from verl_entropy.methods.scheme import Moment, Scheme

P = TypeVar("P")

ROLLOUT = "verl_entropy_rollout"
"""Column of training prompts in which the trainer tells a rollout method: JSON of n and what its state remembers."""


@dataclass(frozen=True)
class Ticket:
    """A session before one of its turns, for another one to go on from."""

    turns: tuple[Any, ...]
    """Records of the turns before it."""
    seconds: tuple[float, ...]
    history: tuple[tuple[str, str], ...]
    """Their observations and the actions that were executed."""
    seen: Any
    """What the environment last answered."""
    policy: Any
    """The policy as it was; a copy of its own."""
    snapshot: bytes | None
    """The environment; None: it is reset, and the actions are played again."""
    streak: int
    task: str
    task_type: str

    def copied_turns(self) -> list[Any]:
        """The records for another leaf: the same turns, of which it sampled none."""
        return [replace(turn, branch={**turn.branch, "copied": True}) for turn in self.turns]


@dataclass(frozen=True)
class Arrival:
    """A session that waits for the decision of its round."""

    entropy: float
    first: float
    draws: tuple[float, ...]
    decided: asyncio.Future[list[int]]


class Tree:
    """The sessions of one prompt."""

    def __init__(self, scheme: Scheme, n: int):
        self.scheme, self.roots = scheme, scheme.roots(n)
        self.seats: dict[int, Seat] = {}
        self.waiting: dict[int, asyncio.Future[Ticket | None]] = {}
        self._live: set[int] = set()
        self._absent: set[int] = set()
        self._arrived: dict[int, Arrival] = {}
        self._streak = 0

    def join(self, seat: Seat) -> None:
        self.seats[seat.session] = seat
        if seat.session < self.roots:
            self._live.add(seat.session)
            return
        loop = asyncio.get_running_loop()
        seat.ticket = self.waiting[seat.session] = loop.create_future()
        loop.call_soon(self.check)  # the roots' tasks begin first; where none does, nobody is left to wait for

    def leave(self, seat: Seat) -> None:
        """The session is over, however it ended."""
        for left in (self.seats, self.waiting, self._arrived):
            left.pop(seat.session, None)
        self._live.discard(seat.session)
        self._absent.discard(seat.session)
        for session in seat.owed:
            self._live.discard(session)
            if session in self.seats:
                self.waiting[session] = self.seats[session].ticket
        seat.owed = []
        self.check()

    def absent(self, session: int) -> None:
        self._absent.add(session)
        self.check()

    def present(self, session: int) -> None:
        self._absent.discard(session)

    def arrive(self, session: int, arrival: Arrival) -> None:
        self._arrived[session] = arrival
        self.check()

    def check(self) -> None:
        """Decide the round if every live session has arrived; start roots if none is left."""
        present = self._live - self._absent
        if self.waiting and present and present <= self._arrived.keys():
            self._decide()
        if not self.waiting:
            for arrival in self._arrived.values():
                _settle(arrival.decided, [])
            self._arrived.clear()
        elif not self._live:
            sessions = sorted(self.waiting)
            for session in sessions[:1] if self.scheme.refill_one else sessions:
                self._live.add(session)
                _settle(self.waiting.pop(session), None)

    def _decide(self) -> None:
        arrived, self._arrived = self._arrived, {}
        branched = False
        for session in sorted(arrived):
            seat, at = self.seats[session], arrived[session]
            streak = self._streak if self.scheme.streak_of_prompt else seat.streak
            chosen: list[int] = []
            for draw in at.draws:
                if self.waiting and self.scheme.branches(Moment(at.entropy, at.first, streak, draw)):
                    chosen.append(min(self.waiting))
                    self._live.add(chosen[-1])
                    del self.waiting[chosen[-1]]
            seat.owed, seat.streak = chosen, (seat.streak + 1 if chosen else 0)
            branched = branched or bool(chosen)
            _settle(at.decided, list(chosen))
        self._streak = self._streak + 1 if branched else 0


def _settle(future: asyncio.Future, value: Any) -> None:
    if not future.done():
        future.set_result(value)


@dataclass
class Seat:
    """A session's place in its tree."""

    tree: Tree
    session: int
    seed: str
    """Of its draws: the same in every run for the same data row and step."""
    ticket: asyncio.Future[Ticket | None] | None = None
    owed: list[int] = field(default_factory=list)
    """Sessions that were promised a ticket from here."""
    streak: int = 0

    async def start(self) -> Ticket | None:
        """The ticket to go on from, once there is one; None: start as a root."""
        ticket = None if self.ticket is None else await self.ticket
        self.streak = 0 if ticket is None else ticket.streak
        return ticket

    async def decide(self, entropy: float, first: float, place: str) -> list[int]:
        """The sessions that are to go on from here, after every live session of the prompt has come as far."""
        if not self.tree.waiting:
            return []
        scheme = self.tree.scheme
        draw = random.Random(f"{scheme.seed}/{self.seed}/{self.session}/{place}")
        draws = tuple(draw.random() for _ in range(scheme.beam - 1))
        first = first if scheme.first is None else scheme.first
        arrival = Arrival(entropy, first, draws, asyncio.get_running_loop().create_future())
        self.tree.arrive(self.session, arrival)
        return await arrival.decided

    def give(self, ticket: Ticket) -> None:
        """Hand the ticket to all who were promised one."""
        for session in self.owed:
            if session in self.tree.seats:
                _settle(self.tree.seats[session].ticket, ticket)  # type: ignore[arg-type]  # who waits has a future
        self.owed = []


_trees: dict[Any, Tree] = {}


@contextlib.contextmanager
def seated(key: Any, session: int, seed: str, make: Callable[[], Tree]) -> Iterator[Seat]:
    """A place in the tree of ``key``, which the first session makes and the last one removes."""
    tree = _trees[key] if key in _trees else _trees.setdefault(key, make())
    seat = Seat(tree, session, seed)
    tree.join(seat)
    try:
        yield seat
    finally:
        tree.leave(seat)
        if not tree.seats:
            _trees.pop(key, None)


def forked(policy: P) -> P:
    """A copy of a policy that goes its own way: its lists, and the lists in them, are its own."""
    other = copy.copy(policy)
    for name, value in vars(policy).items():
        if isinstance(value, list):
            setattr(other, name, [list(item) if isinstance(item, list) else item for item in value])
    return other
