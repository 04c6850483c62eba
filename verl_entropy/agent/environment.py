# SPDX-License-Identifier: Apache-2.0
"""What an environment must offer, and how its answers are read.

An environment is one class with Gymnasium's interface, whose observations and actions are text::

    class Guess:
        def reset(self, *, seed=None, options=None):
            self.goal = random.Random(seed).randint(1, 9)
            return "Guess a number from 1 to 9.", {"admissible_actions": list("123456789")}

        def step(self, action):
            won = action == str(self.goal)
            return "Yes." if won else "No.", float(won), won, False, {"won": won}

        def close(self):
            pass

Name it in the configuration as ``data.env.name=my_package.my_module:Guess``; ``data.env.kwargs`` go to its
constructor.

Keys of ``info`` that are read (every one is optional):

    admissible_actions  the actions possible now, shown, numbered and checked on request (list, array or generator; None: none)
    action_forms        forms of actions that are not listed one by one (``search[<your query>]``): shown, but nothing is compared with them
    won                 True once the goal is reached (or ``data.env.success_key``; ``success`` is read too)
    task                the goal in words; else the last user message of the data set's row
    task_type           a name for the kind of task
    anchor              what identifies this state for GiGPO; else the task and the observation

Truth values are bool, 0 or 1, or an array of one of these; anything else ends the episode as a broken interface.

The class may say how it wants to be run (``data.env.num_envs`` and ``isolation`` overrule the first two):

    POOL_SIZE           environments that one agent-loop worker opens at once (default 64)
    ISOLATION           thread (default), or process: for packages that are not thread-safe or keep the CPU busy
    kill()              called from another thread: ends a call that hangs, for good
    SNAPSHOT            how a session goes on from another's turn (branching rollouts): clone, the object can be pickled in the
                        middle of an episode and holds nothing outside of itself; replay (default), the actions are played again
                        from reset and must give the same observations; none, neither is possible

Rules: the same ``seed`` (and ``options``) must give the same episode, because the rollouts of a group share
them. One object plays many episodes, each from ``reset``. Calls block and are made from one thread per
object, never from two at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from verl_entropy import envs
from verl_entropy.batch.foreign import ProtocolError, read_bool, read_number, read_texts
from verl_entropy.config.settings import ConfigError


@runtime_checkable
class TextEnvironment(Protocol):
    """Gymnasium's interface with text observations and text actions."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode that ``seed`` and ``options`` determine; returns (observation, info)."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action; returns (observation, reward, terminated, truncated, info)."""
        ...

    def close(self) -> None:
        """Free what the environment holds; nothing is called afterwards."""
        ...


POOL_SIZE = 64
"""Environments open at once in an agent-loop worker, where neither the user nor the environment says."""


def few_per_core() -> int:
    """POOL_SIZE of an environment with a process of its own: all workers together open about as many as there are cores.

    verl starts 8 agent-loop workers by default; 2 keep one busy while the other's policy thinks.
    """
    return max(2, (os.cpu_count() or 1) // 8)


def how_to_run(environment: Any, num_envs: int | None, isolation: str) -> tuple[int, str]:
    """(environments at once, thread or process): the user's choice, else the class's, else the default."""
    wanted = getattr(environment, "ISOLATION", "thread") if isolation == "auto" else isolation
    return num_envs or getattr(environment, "POOL_SIZE", POOL_SIZE), wanted


SNAPSHOTS = ("clone", "replay", "none")


def snapshot_of(name: str, user: str, key: str) -> str:
    """How the environment's turns can be gone on from: clone or replay; ConfigError, which names the method ``user``, where neither."""
    wanted = getattr(envs.resolve(name), "SNAPSHOT", "replay")
    if wanted not in SNAPSHOTS[:2]:
        allowed = (
            f"SNAPSHOT={wanted!r}, allowed is one of {', '.join(SNAPSHOTS)}" if wanted not in SNAPSHOTS else "it can do neither"
        )
        raise ConfigError(
            f"{key}={name}: {user} goes on from other sessions' turns, for which an environment is cloned or its actions are played "
            f"again, and {allowed}. Set SNAPSHOT of its class to clone or replay if that is possible, or leave {user} out."
        )
    return wanted


@dataclass(frozen=True)
class StepResult:
    """A checked answer of ``step``; after ``reset`` reward is 0 and both flags are False."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """The episode is over."""
        return self.terminated or self.truncated

    @property
    def admissible(self) -> tuple[str, ...]:
        """The actions possible now; empty if the environment gives none."""
        return tuple(self.info.get("admissible_actions") or ())

    @property
    def forms(self) -> tuple[str, ...]:
        """Forms of actions that are not listed one by one."""
        return tuple(self.info.get("action_forms") or ())


def read_reset(answer: Any) -> StepResult:
    """Check what ``reset`` returned."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ProtocolError(f"reset() returned {_shape(answer)}: expected (observation, info).")
    observation, info = answer
    return StepResult(_text(observation, "reset"), 0.0, False, False, _info(info, "reset"))


def read_step(answer: Any) -> StepResult:
    """Check what ``step`` returned."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        hint = " (observation, reward, done, info) is the interface of Gym before 0.26." if _is_tuple(answer, 4) else ""
        raise ProtocolError(
            f"step() returned {_shape(answer)}: expected (observation, reward, terminated, truncated, info).{hint}"
        )
    observation, reward, terminated, truncated, info = answer
    return StepResult(
        _text(observation, "step"),
        read_number(reward, "step() returned reward"),
        read_bool(terminated, "step() returned terminated"),
        read_bool(truncated, "step() returned truncated"),
        _info(info, "step"),
    )


def reached_goal(last: StepResult, episode_return: float, success_key: str) -> bool:
    """Whether the episode reached its goal.

    ``info[success_key]``, else ``info["success"]``; an environment that says neither has succeeded if it
    terminated with a positive return.
    """
    for key in (success_key, "success"):
        if key in last.info:
            return read_bool(last.info[key], f"info[{key!r}]")
    return last.terminated and episode_return > 0.0


def _text(observation: Any, call: str) -> str:
    if not isinstance(observation, str):
        raise ProtocolError(f"{call}() returned an observation of type {type(observation).__name__}: expected str.")
    return observation


def _info(info: Any, call: str) -> Mapping[str, Any]:
    if not isinstance(info, Mapping):
        raise ProtocolError(f"{call}() returned info of type {type(info).__name__}: expected dict.")
    # read once: a generator has nothing left the second time, and an array has no truth value
    lists = [key for key in ("admissible_actions", "action_forms") if key in info]
    return {**info, **{key: read_texts(info[key], f"{call}() returned info['{key}']") for key in lists}} if lists else info


def _is_tuple(answer: Any, length: int) -> bool:
    return isinstance(answer, tuple) and len(answer) == length


def _shape(answer: Any) -> str:
    return f"a tuple of {len(answer)}" if isinstance(answer, tuple) else type(answer).__name__
