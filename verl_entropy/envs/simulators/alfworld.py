# SPDX-License-Identifier: Apache-2.0
"""ALFWorld (Shridhar et al. 2021) in its own AlfredTWEnv: downloaded games where there are any, else generated ones."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_entropy.agent.environment import few_per_core
from verl_entropy.batch.foreign import read_bool
from verl_entropy.envs import cache
from verl_entropy.envs.simulators import alfworld_games, alfworld_speed
from verl_entropy.envs.simulators.alfworld_games import FOLDERS, GAMES_PER_TYPE, require_alfworld
from verl_entropy.envs.simulators.alfworld_scenes import TASK_TYPES
from verl_entropy.envs.tasks import Answer, TurnEnv, choose, enough, in_turn, some_of

SOURCES = ("auto", "downloaded", "generated")
EVALUATION = {"train": "train", "seen": "eval_in_distribution", "unseen": "eval_out_of_distribution"}
_GOAL = "Your task is to:"
_NOT_AN_ACTION = "help"  # lists the commands; verl-agent leaves it out too


class AlfworldEnv(TurnEnv):
    """A game chosen by ``seed``, or named in ``options``: ``{"game": file}`` or ``{"split": ..., "task_type": ..., "index": ...}``.

    ``source``: "downloaded" games are those of ``alfworld-download`` in ``data`` (default: ``$ALFWORLD_DATA``, else
    ALFWorld's own cache folder); "generated" ones are made from the package's own scenes when they are first played;
    "auto" takes downloaded games if there are any. Reward is ``win_reward`` on the turn that solves the task, else 0.
    """

    SPLITS = tuple(FOLDERS)
    ISOLATION = "process"  # its steps keep the interpreter busy
    POOL_SIZE = few_per_core()

    def __init__(
        self,
        *,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        source: str = "auto",
        data: str | None = None,
        win_reward: float = 10.0,
        max_turns: int = 50,
    ) -> None:
        choose("split", split, self.SPLITS)
        if max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be at least 1; ALFWorld's usual limit is 50")
        self.split, self.task_types = split, some_of("task_types", task_types, TASK_TYPES)
        self.win_reward, self.max_turns = win_reward, max_turns
        self._root = _root(source, data, split)
        self._seeds = random.Random()
        require_alfworld()
        alfworld_speed.install()
        self._engine = _engine(split, max_turns)
        self._file = Path()

    @classmethod
    def episodes(cls, split: str, *, count: int | None = None, seed: int = 0, **kwargs: Any) -> list[dict[str, Any]]:
        """Rows of a data set: every game of the split, or ``count`` of them, the task types in turn."""
        choose("split", split, cls.SPLITS)
        root = _root(kwargs.get("source", "auto"), kwargs.get("data"), split)
        left: dict[str, list[dict[str, Any]]] = {}
        for options, task_type in _games(root, split, some_of("task_types", kwargs.get("task_types"), TASK_TYPES)):
            left.setdefault(task_type, []).append(options)
        rng = random.Random(f"alfworld/{split}/{seed}")
        for options in left.values():
            rng.shuffle(options)
        found = in_turn(left, enough(count, sum(map(len, left.values())), split))
        return [_row(task_type, options, number) for number, (task_type, options) in enumerate(found)]

    @classmethod
    def prepare(cls, options: Sequence[dict[str, Any]]) -> None:
        """Make the generated games of a data set's rows on all cores, so that training does not wait for each (seconds)."""
        alfworld_games.make_games([(o["split"], o["task_type"], o["index"]) for o in options if "index" in o])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the game that ``options`` name, or the one that ``seed`` draws from the split."""
        if seed is None:
            seed = self._seeds.randrange(2**31)
        options = options or {}
        if not options.keys() & {"game", "index"}:
            task_type = options.get("task_type")
            split = options.get("split", self.split)
            choose("options['split']", split, self.SPLITS)
            games = _games(
                self._root, split, self.task_types if task_type is None else some_of("task_types", [task_type], TASK_TYPES)
            )
            options = random.Random(f"{self.split}/{seed}").choice(games)[0]
        self._file = self._find(options)
        self._task_type = json.loads((self._file.parent / "traj_data.json").read_text())["task_type"]
        # The engine plays its list of games in an order of its own: give it one game.
        self._engine.gamefiles = [str(self._file)]
        self._engine.seed(0)
        observations, infos = self._engine.reset()
        self._goal = observations[0].split(_GOAL)[-1].strip()
        self._won = False
        self._start()
        return self._seen(observations, infos), self._info()

    def _act(self, action: str) -> Answer:
        observations, _, _, infos = self._engine.step([" ".join(action.lower().split())])
        self._won = read_bool(infos["won"][0], "alfworld: infos['won'][0]")
        return self._seen(observations, infos), self.win_reward * self._won, self._won

    def _seen(self, observations: Sequence[str], infos: dict[str, Any]) -> str:
        self._actions = [a for a in infos["admissible_commands"][0] if a != _NOT_AN_ACTION]
        return observations[0].strip()

    def expert_actions(self) -> list[str] | None:
        """The walkthrough in the game's file, else what the hand-coded expert does; None if that does not win in time."""
        walkthrough = json.loads(self._file.read_text()).get("walkthrough")
        if walkthrough is None:
            walkthrough = alfworld_games.solve(self._file, str(self._file.name), self.max_turns)
        return walkthrough if walkthrough is not None and len(walkthrough) <= self.max_turns else None

    def close(self) -> None:
        """Free the game engine."""
        self._playing = False
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _find(self, options: dict[str, Any]) -> Path:
        if "game" in options:
            path = (self._root or alfworld_games.generated_folder()) / options["game"]
            if not path.is_file():
                raise ValueError(f"options['game']={options['game']!r}: no such file in {path.parent.parent.parent}")
            return path
        choose("options['task_type']", options.get("task_type"), TASK_TYPES)
        choose("options['split']", options.get("split", self.split), self.SPLITS)
        return alfworld_games.game(options.get("split", self.split), options["task_type"], int(options["index"]))

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_actions": self._actions,
            "won": self._won,
            "task": self._goal,
            "task_type": self._task_type,
            "game": str(self._file.parent.name),
        }


def _engine(split: str, max_turns: int) -> Any:
    """AlfredTWEnv's game engine for one game at a time, without a list of games."""
    from alfworld.agents.environment import get_environment

    alfred = _quiet(get_environment("AlfredTWEnv"), _config("", max_turns), EVALUATION[split])
    return alfred.init_env(batch_size=1)


def _quiet(build: Any, *args: Any) -> Any:
    """ALFWorld reports to the terminal at every start."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return build(*args)


def _config(folder: str, max_turns: int = 50) -> dict[str, Any]:
    """What AlfredTWEnv reads of ALFWorld's configuration file, with the published values."""
    paths = ("data_path", "eval_id_data_path", "eval_ood_data_path")
    return {
        "dataset": {**dict.fromkeys(paths, folder), "num_train_games": -1, "num_eval_games": -1},
        "env": {
            "task_types": list(range(1, 7)),
            "goal_desc_human_anns_prob": 0,
            "domain_randomization": False,
            "expert_type": "handcoded",
        },
        "general": {"training_method": "dqn"},
        # The limit is ours: at its own the engine says done without saying why.
        "rl": {"training": {"max_nb_steps_per_episode": max_turns + 1}},
    }


def _root(source: str, data: str | None, split: str) -> Path | None:
    """The folder with downloaded games to use, or None: generated games."""
    choose("source", source, SOURCES)
    root = Path(data or os.environ.get("ALFWORLD_DATA") or Path.home() / ".cache" / "alfworld").expanduser()
    there = any((root / "json_2.1.1" / FOLDERS[split]).glob("*/**/game.tw-pddl"))
    if source == "downloaded" or (data is not None and source == "auto"):
        if not there:
            raise ValueError(
                f"data={str(root)!r}: no games in json_2.1.1/{FOLDERS[split]}; run alfworld-download --data-dir {root}, "
                "or set source=generated"
            )
        return root
    return root if there and source == "auto" else None


@functools.cache
def _games(root: Path | None, split: str, task_types: tuple[str, ...]) -> list[tuple[dict[str, Any], str]]:
    """(options, task type) of every game of a split."""
    if root is None:
        return [({"split": split, "task_type": t, "index": i}, t) for t in task_types for i in range(GAMES_PER_TYPE[split])]
    found = [({"game": name}, task_type) for name, task_type in _downloaded(root, split) if task_type in task_types]
    if not found:
        raise ValueError(f"task_types={list(task_types)!r}: {root} has no such games in {FOLDERS[split]}")
    return found


def _downloaded(root: Path, split: str) -> list[tuple[str, str]]:
    """The games that AlfredTWEnv itself accepts; it opens thousands of files for that, so the list is kept on disk."""
    folder = root / "json_2.1.1" / FOLDERS[split]
    key = zlib.crc32(f"{folder.resolve()} {folder.stat().st_mtime_ns}".encode())
    path = cache.folder() / "alfworld" / f"index-{key:08x}.json"
    found = cache.read_json(path)
    if found is None:
        require_alfworld()
        from alfworld.agents.environment import get_environment

        alfred = _quiet(get_environment("AlfredTWEnv"), _config(str(folder)), EVALUATION[split])
        found = [
            (str(Path(file).relative_to(root)), json.loads((Path(file).parent / "traj_data.json").read_text())["task_type"])
            for file in sorted(alfred.game_files)
        ]
        cache.write_json(path, found)
    return [(name, task_type) for name, task_type in found]


def _row(task_type: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    named = options.get("game") or f"generated game {options['index']}"
    return {"seed": seed, "options": options, "task_type": task_type, "prompt": f"ALFWorld: {task_type}, {named}"}
