# SPDX-License-Identifier: Apache-2.0
"""Environments of other collections, each by the collection's name and its own id.

    gem:game:Sokoban-v0-easy     GEM (gem-llm): games, and its reasoning and question sets
    reasoning_gym:leg_counting   reasoning-gym: a question, one answer
    textarena:FrozenLake-v0      TextArena: the games for one player
    gymnasium:FrozenLake-v1      Gymnasium's toy-text environments, and any whose observations and actions are text

Success is what the package itself says, never "any positive return". Its instructions are the task, shown once, and no observation.
Splits differ in the seed (``verl-entropy data``: held-out seeds start at 1,000,000).
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from typing import Any

from verl_entropy.agent.environment import few_per_core
from verl_entropy.batch.foreign import read_bool, read_number
from verl_entropy.envs.tasks import Answer, TurnEnv, choose, need

_MARKED = re.compile(r"\x1b\[4\dm(.)\x1b\[0m")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ById(TurnEnv):
    """One environment of a collection; ``settings`` go to the package's own constructor."""

    ID = ""
    COLLECTION = ""

    def __init__(self, *, max_turns: int = 100, **settings: Any) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be at least 1")
        self.max_turns, self._settings, self._seeds = max_turns, settings, random.Random()
        self._task, self._won, self._details = "", False, {}
        self._open()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of ``seed``; ``options`` choose nothing here."""
        self._won, self._details = False, {}
        self._start()
        return self._begin(self._seeds.randrange(2**31) if seed is None else int(seed)), self._info()

    def close(self) -> None:
        """End the episode."""
        self._playing = False

    def _info(self) -> dict[str, Any]:
        return {"task": self._task, "task_type": f"{self.COLLECTION}:{self.ID}", "won": self._won, **self._details}

    def _open(self) -> None:
        raise NotImplementedError

    def _begin(self, seed: int) -> str:
        raise NotImplementedError

    def _unknown(self, error: object, known: Any = ()) -> ValueError:
        listed = ", ".join(sorted(map(str, known))[:400])
        return ValueError(f"environment '{self.COLLECTION}:{self.ID}': {error}" + (f". Known: {listed}" if listed else ""))


class Gem(ById):
    """GEM: an episode is won if its last reward is the package's ``success_reward``; a partial reward of a lost game is none."""

    COLLECTION = "gem"
    ISOLATION = "process"  # it seeds Python's and numpy's global generators
    POOL_SIZE = few_per_core()

    def _open(self) -> None:
        install = "pip install gem-llm"
        gem = need("gem", "gem", install)
        self._success = need("gem.utils.constants", "gem", install).LanguageGameReward.success_reward
        try:
            self._env = gem.make(self.ID, **self._settings)
        except ValueError as error:
            raise self._unknown(error, need("gem.envs.registration", "gem", install).ENV_REGISTRY) from error

    def _begin(self, seed: int) -> str:
        rules, info = self._env.reset(seed=seed)
        self._task = str(rules).strip()
        return str(info.get("suffix") or "The episode begins.").strip()

    def _act(self, action: str) -> Answer:
        observation, reward, terminated, truncated, info = self._env.step(action)
        paid, ended = read_number(reward, "gem: reward"), read_bool(terminated, "gem: terminated")
        self._won = ended and paid >= self._success
        shown = "\n".join(filter(None, (str(observation).strip(), str(info.get("suffix") or "").strip())))
        return shown, paid, ended or read_bool(truncated, "gem: truncated")


class ReasoningGym(ById):
    """reasoning-gym: one question drawn by the seed; won if the package's verifier gives 1. ``settings`` configure the set."""

    COLLECTION = "reasoning_gym"

    def _open(self) -> None:
        self._package = need("reasoning_gym", "reasoning_gym", "pip install reasoning-gym")
        self._draw(0)

    def _draw(self, seed: int) -> Any:
        try:
            return self._package.create_dataset(self.ID, size=1, seed=seed, **self._settings)
        except (ValueError, TypeError) as error:
            raise self._unknown(error, self._package.factory.DATASETS) from error

    def _begin(self, seed: int) -> str:
        self._set = self._draw(seed)
        self._entry = self._set[0]
        self._task = str(self._entry["question"]).strip()
        return "Give your answer to the question."

    def _act(self, action: str) -> Answer:
        score = read_number(self._set.score_answer(answer=action.strip(), entry=self._entry), "reasoning_gym: score_answer()")
        self._won = score >= 1.0
        return "The answer is given.", score, True

    def expert_actions(self) -> list[str] | None:
        """The answer that comes with the question."""
        return [str(self._entry["answer"])] if self._entry.get("answer") is not None else None


class TextArena(ById):
    """TextArena, for one player: won if the game's reward at its end is 1; a fraction is progress of a lost game."""

    COLLECTION = "textarena"
    ISOLATION = "process"  # it seeds Python's global generator
    POOL_SIZE = few_per_core()

    def _open(self) -> None:
        arena = need("textarena", "textarena", "pip install textarena")
        self._kinds = arena.ObservationType
        known = need("textarena.envs.registration", "textarena", "pip install textarena").ENV_REGISTRY
        raw = f"{self.ID}-raw"  # without the wrappers that repeat all earlier messages in every observation
        if self.ID not in known:
            raise self._unknown("no such game", {name.split("-v")[0] for name in known})
        self._env = arena.make(raw if raw in known else self.ID, **self._settings)

    def _begin(self, seed: int) -> str:
        random.seed(seed)
        try:
            self._env.reset(num_players=1, seed=seed)
        except AssertionError as error:
            raise self._unknown(f"not a game for one player ({error})") from error
        messages = self._env.get_observation()[1]
        rules = [text for _, text, kind in messages if kind is self._kinds.PROMPT]
        self._task = "\n".join(rules).strip()
        return self._shown([message for message in messages if message[2] is not self._kinds.PROMPT]) or "The game begins."

    def _act(self, action: str) -> Answer:
        ended, _ = self._env.step(action)
        observation = self._shown(self._env.get_observation()[1])
        if not read_bool(ended, "textarena: done"):
            return observation, 0.0, False
        rewards, about = self._env.close()
        reward = read_number(rewards[0], "textarena: reward")
        self._won = reward >= 1.0
        return "\n".join(filter(None, (observation, str(about[0].get("reason") or "")))), reward, True

    def _shown(self, messages: list[Any]) -> str:
        return "\n".join(str(text).strip() for _, text, kind in messages if kind is not self._kinds.PLAYER_ACTION)


TOY_TEXT = {
    "FrozenLake": (
        "Walk over the frozen lake from S to G without falling into a hole H; [ ] marks where you are.",
        ("left", "down", "right", "up"),
        lambda reward: reward > 0.0,  # the goal alone pays
    ),
    "CliffWalking": (
        "Walk from the start x to the target T; stepping on the cliff C brings you back to the start.",
        ("up", "right", "down", "left"),
        lambda reward: True,  # it terminates at the target only
    ),
    "Taxi": (
        "Drive the taxi (marked) to the passenger (the letter of one of R, G, Y, B), pick them up, and drop them off at their goal.",
        ("south", "north", "east", "west", "pick up", "drop off"),
        lambda reward: reward > 0.0,  # +20 for the right drop-off
    ),
    "Blackjack": (
        "Get closer to 21 than the dealer without going over it.",
        ("stick", "hit"),
        lambda reward: reward > 0.0,
    ),
}
"""Task, names of the actions, and whether the reward of the last step says that the goal is reached."""


class Gymnasium(ById):
    """A toy-text environment with its rendered text, or any environment with text spaces, whose ``info`` says success.

    Under Gymnasium's own time limit an episode is cut. ``settings``: for example ``is_slippery: false``.
    """

    COLLECTION = "gymnasium"

    def _open(self) -> None:
        package = need("gymnasium", "gymnasium", "pip install gymnasium")
        self._toy = TOY_TEXT.get(self.ID.rpartition("-v")[0].rpartition("/")[2])
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                rendered = {"render_mode": "ansi"} if self._toy and "Blackjack" not in self.ID else {}
                self._env = package.make(self.ID, **rendered, **self._settings)
        except (package.error.Error, TypeError) as error:
            raise self._unknown(error, TOY_TEXT) from error
        spaces = (self._env.observation_space, self._env.action_space)
        if self._toy is None and not all(isinstance(space, package.spaces.Text) for space in spaces):
            raise self._unknown("its observations or actions are no text", TOY_TEXT)

    def _begin(self, seed: int) -> str:
        seen, info = self._env.reset(seed=seed)
        self._task = self._toy[0] if self._toy else str(info.get("task") or "")
        return self._show(seen)

    def _act(self, action: str) -> Answer:
        chosen: Any = action
        if self._toy:
            words = " ".join(action.lower().split())
            if words not in self._toy[1]:
                return f"That is no action; there are {', '.join(self._toy[1])}.\n{self._last}", 0.0, False
            chosen = self._toy[1].index(words)
        seen, reward, terminated, truncated, info = self._env.step(chosen)
        paid, ended = read_number(reward, "gymnasium: reward"), read_bool(terminated, "gymnasium: terminated")
        if self._toy:
            self._won = ended and self._toy[2](paid)
        else:
            key = (
                choose("key of info that says success", next((k for k in SUCCESS if k in info), "none"), SUCCESS) if ended else ""
            )
            self._won = ended and read_bool(info[key], f"gymnasium: info[{key!r}]")
        self._cut = read_bool(truncated, "gymnasium: truncated") and not ended
        return self._show(seen), paid, ended

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one action; Gymnasium's time limit cuts the episode as ours does."""
        self._cut = False
        observation, reward, terminated, truncated, info = super().step(action)
        self._playing = self._playing and not self._cut
        return observation, reward, terminated, truncated or self._cut, info

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), **({"admissible_actions": list(self._toy[1])} if self._toy else {})}

    def _show(self, seen: Any) -> str:
        if isinstance(seen, str):
            self._last = seen
        elif "Blackjack" in self.ID:
            mine, dealer, ace = seen
            self._last = f"Your cards sum to {mine}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."
        else:
            self._last = _COLOUR.sub("", _MARKED.sub(r"[\1]", str(self._env.render()))).strip()
        return self._last


SUCCESS = ("success", "is_success", "won")
"""Keys of Gymnasium's ``info`` that say whether the goal is reached."""
COLLECTIONS = {cls.COLLECTION: cls for cls in (Gem, ReasoningGym, TextArena, Gymnasium)}


def adapter(collection: str, name: str) -> type[ById]:
    """The adapter's class for one environment of a collection."""
    base = COLLECTIONS[collection]
    return type(base.__name__, (base,), {"ID": name})
