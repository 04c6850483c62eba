# SPDX-License-Identifier: Apache-2.0
"""TextWorldExpress (Jansen and Cote 2022): eight fast text games with train / dev / test folds; needs Java."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from verl_entropy.agent.environment import few_per_core
from verl_entropy.batch.foreign import read_bool
from verl_entropy.envs.simulators.jvm import Jvm, find_java
from verl_entropy.envs.tasks import Answer, TurnEnv, choose, enough, need, some_of

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
FIRST_SEED = {"train": 0, "dev": 10_000, "test": 20_000}
SEEDS_PER_FOLD = 1000  # of every game: what its getSeedsTrain / Dev / Test list
REWARDS = ("sparse", "dense")
# "default" is the package's own. "easy": one or two goals in a few rooms without doors, 2 to 10 turns, for small models; there are few such
# worlds (some 50 of coin), so that folds share some.
DIFFICULTIES: dict[str, dict[str, dict[str, int]]] = {
    "default": {},
    "easy": {
        "cookingworld": {"numLocations": 1, "numIngredients": 1, "numDistractorItems": 0, "includeDoors": 0},
        "twc": {"numLocations": 1, "numItemsToPutAway": 1, "includeDoors": 0},
        "coin": {"numLocations": 3, "numDistractorItems": 0, "includeDoors": 0},
        "mapreader": {"numLocations": 4, "maxDistanceApart": 1, "maxDistractorItemsPerLocation": 0, "includeDoors": 0},
        "simonsays": {"gameLength": 3, "numDistractors": 2},
    },
}


class TextWorldExpressEnv(TurnEnv):
    """A game of a fold, chosen by ``seed`` or named in ``options={"game": ..., "game_seed": ...}``.

    ``options["split"]`` is another fold for this episode.

    ``params``: per game the package's own settings, laid over those of ``difficulty``
    (``{"coin": {"numLocations": 5}}``). ``reward``: sparse (``win_reward`` when the task is solved, else 0) or dense
    (the step's change of the game's score, which is 1 when solved, times ``win_reward``).
    """

    SPLITS = tuple(FIRST_SEED)
    POOL_SIZE = few_per_core()

    def __init__(
        self,
        *,
        split: str = "train",
        games: Sequence[str] | None = None,
        difficulty: str = "default",
        params: Mapping[str, Mapping[str, int]] | None = None,
        reward: str = "sparse",
        win_reward: float = 10.0,
        max_turns: int = 100,
        memory_mb: int = 256,
    ) -> None:
        choose("split", split, self.SPLITS)
        choose("difficulty", difficulty, tuple(DIFFICULTIES))
        choose("reward", reward, REWARDS)
        for game in params or {}:
            choose("params", game, GAMES)
        if max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be at least 1; the package's own limit is 100")
        self.split, self.games = split, some_of("games", games, GAMES)
        self.reward, self.win_reward, self.max_turns = reward, win_reward, max_turns
        self._params = {game: {**DIFFICULTIES[difficulty].get(game, {}), **dict((params or {}).get(game, {}))} for game in GAMES}
        self._seeds = random.Random()
        find_java()
        self._jvm = Jvm(_package().JAR_PATH, memory_mb=memory_mb)
        self._loaded: dict[str, Any] = {}  # a generator per game keeps its catalogue
        self._played: list[str] = []
        try:
            for game in self.games:
                self._generator(game)
        except ValueError:
            self.close()
            raise

    @classmethod
    def episodes(cls, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
        """Rows of a data set: every seed of the fold for every game, or ``count`` of them, the games in turn."""
        choose("split", split, cls.SPLITS)
        games, rng = some_of("games", kwargs.get("games"), GAMES), random.Random(f"textworld_express/{split}/{seed}")
        seeds = {game: rng.sample(range(SEEDS_PER_FOLD), SEEDS_PER_FOLD) for game in games}
        total = SEEDS_PER_FOLD * len(games)
        return [
            _row(games[k % len(games)], FIRST_SEED[split] + seeds[games[k % len(games)]][k // len(games)], k)
            for k in range(enough(count, total, split))
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the game that ``options`` name, or the one that ``seed`` draws from the fold."""
        if seed is None:
            seed = self._seeds.randrange(2**31)
        options = options or {}
        split = choose("options['split']", options.get("split", self.split), self.SPLITS)
        rng = random.Random(f"{split}/{seed}")
        self._game = options.get("game") or rng.choice(self.games)
        choose("options['game']", self._game, GAMES)
        number = options.get("game_seed")
        self._number = int(rng.randrange(SEEDS_PER_FOLD) + FIRST_SEED[split] if number is None else number)
        if options.get("split", self._fold()) != self._fold():
            raise ValueError(f"options['game_seed']={number!r} is of split {self._fold()!r}, not of {split!r}; leave one out")
        self._server = self._generator(self._game)
        answer = json.loads(self._server.generateNewGameJSON(self._number, self._fold(), False))
        self._goal = self._server.getTaskDescription()
        self._played, self._score, self._answer = [], answer["score"], answer
        self._start()
        return answer["observation"], self._info()

    def _act(self, action: str) -> Answer:
        self._played.append(" ".join(action.split()))
        self._answer = answer = json.loads(self._server.stepJSON(self._played[-1]))
        before, self._score = self._score, answer["score"]
        won = read_bool(answer["tasksuccess"], "textworld_express: tasksuccess")
        terminated = won or read_bool(answer["taskfailure"], "textworld_express: taskfailure")
        gain = float(won) if self.reward == "sparse" else self._score - before
        return answer["observation"], self.win_reward * gain, terminated

    def expert_actions(self) -> list[str] | None:
        """The package's gold path of this game from its start; None if it is longer than ``max_turns``.

        That of coin is a search that the package draws anew, without a seed, at every call.
        """
        self._server.generateNewGameJSON(self._number, self._fold(), True)
        actions = self._jvm.strings(self._server.getGoldActionSequence())
        # That began the game anew (and a generator apart would share the things of some games): bring it back.
        self._server.generateNewGameJSON(self._number, self._fold(), False)
        for action in self._played:
            self._server.stepJSON(action)
        return actions if len(actions) <= self.max_turns else None

    def kill(self) -> None:
        """End a call that hangs: the simulator dies, and this object with it."""
        self._jvm.kill()

    def close(self) -> None:
        """End the Java process."""
        self._playing = False
        self._jvm.close()

    def _fold(self) -> str:
        """The fold that the seed belongs to; it also chooses the words and recipes."""
        return next((fold for fold in reversed(FIRST_SEED) if self._number >= FIRST_SEED[fold]), self.split)

    def _generator(self, game: str) -> Any:
        if game not in self._loaded:
            server = self._jvm.jvm.textworldexpress.runtime.PythonInterface()
            given = self._params[game]
            wrong = server.load(game, ",".join(f"{name}={int(value)}" for name, value in given.items()))
            if wrong:
                raise ValueError(f"params={ {game: given}!r}: {' '.join(wrong.split())}")
            self._loaded[game] = server
        return self._loaded[game]

    def _info(self) -> dict[str, Any]:
        answer = self._answer
        return {
            "admissible_actions": sorted(answer["validActions"]),
            "won": read_bool(answer["tasksuccess"], "textworld_express: tasksuccess"),
            "task": self._goal,
            "task_type": self._game,
            "score": self._score,
            "anchor": f"{self._goal}\n{answer['look']}\n{answer['inventory']}",
        }


def _package() -> Any:
    return need("textworld_express.constants", "textworld_express", "pip install textworld-express (and Java 17)")


def _row(game: str, number: int, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "options": {"game": game, "game_seed": number},
        "task_type": game,
        "prompt": f"TextWorldExpress: {game}, game {number}",
    }
