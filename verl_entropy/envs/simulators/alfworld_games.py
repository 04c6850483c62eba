# SPDX-License-Identifier: Apache-2.0
"""Makes ALFWorld games without a download: drawn problems that ALFWorld's own hand-coded expert has solved, kept on disk."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from verl_entropy.envs import cache
from verl_entropy.envs.simulators.alfworld_scenes import draw, to_pddl, trajectory

FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
"""Our splits -> ALFWorld's folders: seen has the scenes of train in other states, unseen scenes that train never has."""
GAMES_PER_TYPE = {"train": 200, "seen": 20, "unseen": 20}
"""Generated games per task type: six times that in all, near the 140 and 134 of the published evaluation splits."""
LONGEST = 50  # turns; the published limit of an episode, so that the expert is a demonstration of every game
VERSION = 1  # of the way games are drawn; another number is another folder
ATTEMPTS = 50  # about nine of ten candidates are solved, so this never ends without one unless something is broken
_expert_lock = threading.Lock()


def require_alfworld() -> None:
    """ValueError that says what to install."""
    missing = [name for name in ("alfworld", "textworld", "fast_downward") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"environment='alfworld': {', '.join(missing)} not installed; pip install alfworld. It brings "
            "fast-downward-textworld (GPL-3, compiled on installation: a C++ compiler and cmake), which this package never does"
        )


def generated_folder() -> Path:
    """Where generated games are kept; it has the form of an ALFWORLD_DATA folder."""
    require_alfworld()
    return cache.folder() / "alfworld" / f"generated-v{VERSION}-{importlib.metadata.version('alfworld')}"


def game(split: str, task_type: str, index: int, folder: Path | None = None) -> Path:
    """The game file of (split, task type, number); made if it is not there (seconds), the same on every machine."""
    path = _file(folder or generated_folder(), split, task_type, index)
    if not path.is_file():
        require_alfworld()
        data, walkthrough = _solved_problem(split, task_type, index)
        _publish(path.parent, {"traj_data.json": data["trajectory"], path.name: {**data["game"], "walkthrough": walkthrough}})
    return path


def make_games(wanted: Sequence[tuple[str, str, int]], workers: int | None = None) -> None:
    """Make those of the games (split, task type, number) that are not there yet, on all cores."""
    missing = [w for w in dict.fromkeys(wanted) if not _file(generated_folder(), *w).is_file()]
    if missing:
        require_alfworld()
        context = multiprocessing.get_context("spawn")
        workers = min(workers or os.cpu_count() or 1, len(missing))
        print(f"making {len(missing)} ALFWorld games in {generated_folder()}, {workers} at a time", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            list(pool.map(game, *zip(*missing, strict=True)))


def _file(folder: Path, split: str, task_type: str, index: int) -> Path:
    return folder / "json_2.1.1" / FOLDERS[split] / f"{task_type}-{index:05d}" / "game.tw-pddl"


def solve(path: Path, seed: str, longest: int = LONGEST) -> list[str] | None:
    """The actions of ALFWorld's hand-coded expert in a game, or None if it does not win within ``longest`` turns."""
    environment = _expert()
    actions: list[str] = []
    try:
        with _seeded(seed):  # one game at a time
            environment.load(str(path))
            state, done = environment.reset(), False
            while not done and len(actions) < longest:
                actions.append(state["extra.expert_plan"][0])
                state, _, done = environment.step(actions[-1])
    except Exception:  # the expert gives up by several kinds of them, IndexError and a bare Exception among them
        return None
    return actions if done else None


@functools.cache
def _expert() -> Any:
    """ALFWorld's game engine under its hand-coded expert: one per process, since each loads a copy of the planner library."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredExpert, AlfredInfos
    from textworld.envs import PddlEnv

    from verl_entropy.envs.simulators import alfworld_speed

    alfworld_speed.install()
    engine = PddlEnv(textworld.EnvInfos(admissible_commands=True, extras=["gamefile"]))
    return AlfredExpert(AlfredInfos(AlfredDemangler(engine, shuffle=False)), expert_type="handcoded")


def _solved_problem(split: str, task_type: str, index: int) -> tuple[dict[str, Any], list[str]]:
    with tempfile.TemporaryDirectory() as scratch:
        for attempt in range(ATTEMPTS):
            seed = f"alfworld/{VERSION}/{split}/{task_type}/{index}/{attempt}"
            rng = random.Random(seed)
            problem = draw(rng, split, task_type)
            if problem is None:
                continue
            data = {"trajectory": trajectory(problem), "game": _game_data(problem, rng)}
            Path(scratch, "traj_data.json").write_text(json.dumps(data["trajectory"]))
            path = Path(scratch, f"{attempt}.tw-pddl")
            path.write_text(json.dumps(data["game"]))
            walkthrough = solve(path, seed)
            if walkthrough is not None:
                return data, walkthrough
    raise RuntimeError(f"no solvable game of {split}/{task_type}/{index} in {ATTEMPTS} attempts: the installed alfworld differs")


def _game_data(problem: Any, rng: random.Random) -> dict[str, Any]:
    import alfworld.gen.goal_library as goals

    domain, grammar = _logic()
    template = rng.choice(goals.gdict[problem.task_type]["templates"])
    names = {"obj": problem.object, "recep": problem.target, "toggle": problem.lamp, "mrecep": ""}
    task = template.format(**{key: name.lower() for key, name in names.items()})
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", task),
        "pddl_problem": to_pddl(problem),
        "solvable": True,
    }


@functools.cache
def _logic() -> tuple[str, str]:
    import alfworld

    folder = Path(alfworld.__file__).parent / "data"
    return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()


def _publish(target: Path, files: dict[str, Any]) -> None:
    """Put a whole folder in place at once; another process may have done so first, with the same content."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, suffix=".part"))
    try:
        for name, content in files.items():
            cache.write(scratch / name, json.dumps(content))
        try:
            os.replace(scratch, target)
        except OSError:
            if not (target / "game.tw-pddl").is_file():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _seeded(seed: str):
    """The expert draws from Python's global generator: seed it, and give it back as it was."""
    with _expert_lock:
        before = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
