# SPDX-License-Identifier: Apache-2.0
"""Who shows how: experts that act on what they see, and replays of the actions an environment knows to reach its goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

THOUGHT = "The next step is: {action}"
"""What a replayed action is given as its thought: the format asks for one, and an empty one would be learned as such."""


class Expert(Protocol):
    """One episode's expert."""

    thought: str
    """The thought that belongs to the action returned last."""

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """The action for what is seen now."""
        ...


@runtime_checkable
class KnowsItsSolution(Protocol):
    """An environment that can list actions from the start of an episode to its goal."""

    def expert_actions(self) -> list[str] | None:
        """After ``reset``; None where it knows none."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """An environment with an expert that acts on what it sees, and therefore also recovers from a wrong action."""

    def expert(self, info: Mapping[str, Any]) -> Expert:
        """The expert of the episode that was just reset; ``info`` is what ``reset`` returned."""
        ...


class Replay:
    """Plays a list of actions, whatever is seen."""

    def __init__(self, actions: Sequence[str], thought: str = THOUGHT):
        self._actions, self._template = list(actions), thought
        self._next = 0
        self.thought = ""

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """The next action; ValueError once there is none left although the episode goes on."""
        if self._next >= len(self._actions):
            raise ExpertFailed(f"its {len(self._actions)} actions did not reach the goal")
        action = self._actions[self._next]
        self._next += 1
        self.thought = self._template.replace("{action}", action)
        return action


class ExpertFailed(ValueError):
    """The expert did not reach the goal of an episode."""


def make_expert(name: str, environment: Any, info: Mapping[str, Any], thought: str = THOUGHT) -> Expert:
    """The expert for the episode that was just reset."""
    if isinstance(environment, HasExpert):
        return environment.expert(info)
    if not isinstance(environment, KnowsItsSolution):
        raise ValueError(
            f"--expert: environment {name} knows no expert. Give it expert(info) or expert_actions() -> list[str], "
            "or write the warm-start data yourself (columns prompt_ids and response_ids)."
        )
    actions = environment.expert_actions()
    if actions is None:
        raise ExpertFailed("no solution is known")
    return Replay(actions, thought)
