# SPDX-License-Identifier: Apache-2.0
"""AppWorld: everyday tasks solved by Python code against the interfaces of simulated apps, as the user has installed it."""

from __future__ import annotations

import os
import re
import threading
import uuid
from pathlib import Path
from typing import Any

from verl_entropy.agent.environment import few_per_core
from verl_entropy.batch.foreign import read_bool
from verl_entropy.envs.tasks import Answer, TaskEnv, at_least, choose, need

INSTALL = (
    "pip install appworld (Python 3.11 or newer), then `appworld install` and `appworld download data` in the folder that is "
    "to hold its data, and set root (or APPWORLD_ROOT) to that folder"
)
SPLITS = ("train", "dev", "test_normal", "test_challenge")
FINISH = "apis.supervisor.complete_task()"
REWARDS = ("fraction", "success")
"""``fraction``: of the task's unit tests that pass. ``success``: 1 if all pass, else 0."""
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_open_world = threading.Lock()


class AppWorldEnv(TaskEnv):
    """An action is a piece of Python code; the observation is what it prints. State and variables stay between turns.

    The episode ends when the code calls ``apis.supervisor.complete_task(...)`` and pays the fraction of the task's unit
    tests that pass (``reward="success"``: 1 if all do); at ``max_turns`` the tests are run as well. ``info["won"]``: all pass.
    AppWorld itself keeps one world per process and stops code by signals of the main thread, so this environment runs in
    processes of its own only (``ISOLATION``).
    """

    SPLITS = SPLITS
    ISOLATION = "process"
    POOL_SIZE = 4 * few_per_core()  # a world waits for the policy most of the time

    def __init__(
        self,
        split: str = "train",
        root: str | None = None,
        experiment: str = "verl-entropy",
        max_turns: int = 30,
        reward: str = "fraction",
        code_timeout_s: int = 100,
    ) -> None:
        super().__init__(split, max_turns)
        self.reward = choose("reward", reward, REWARDS)
        self._timeout_s = at_least("code_timeout_s", code_timeout_s, 1)
        if not experiment or Path(experiment).name != experiment:
            raise ValueError(f"experiment={experiment!r}: must be the name of a folder, without slashes")
        self._package = need("appworld", "appworld", INSTALL)
        self._root = _data_root(self._package, root)
        # AppWorld writes every episode to experiments/outputs/<name>: a name per object, so that two never share files.
        self._experiment = f"{experiment}/{uuid.uuid4().hex[:12]}"
        self._ids: dict[str, list[str]] = {}
        self._world: Any = None
        self._read(split)

    def expert_actions(self) -> list[str] | None:
        """The compiled solution that AppWorld ships with a task of train and dev; None where it ships none."""
        if self._world is None:
            return None
        file = Path(self._root, "data", "tasks", self._world.task_id, "ground_truth", "compiled_solution.py")
        if not file.is_file():
            return None
        return [f"{file.read_text(encoding='utf-8')}\nsolution(apis, requester)"]

    def close(self) -> None:
        """Close the open world."""
        super().close()
        self._leave()

    # -- the adapter's part of TaskEnv

    def _count(self, split: str) -> int:
        return len(self._read(split))

    def _begin(self, split: str, number: int) -> str:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("environment 'appworld' needs data.env.isolation=process: AppWorld runs in a main thread only")
        task_id = self._read(split)[number]
        self._leave()
        if not _open_world.acquire(blocking=False):
            raise ValueError("environment 'appworld': another world is open in this process; set data.env.isolation=process")
        try:
            self._world = self._package.AppWorld(
                task_id=task_id, experiment_name=self._experiment, timeout_seconds=self._timeout_s
            )
        except BaseException as error:
            _open_world.release()
            if isinstance(error, ModuleNotFoundError):  # the apps themselves are unpacked by `appworld install`
                raise ValueError(f"environment 'appworld' is not completely installed ({error}): {INSTALL}") from error
            raise
        self._score, self._won = 0.0, False
        return _introduction(self._world.task.supervisor)

    def _act(self, action: str) -> Answer:
        output = self._world.execute(code_of(action)).strip()
        finished = read_bool(self._world.task_completed(), "appworld: task_completed()")
        if not finished and self._turns < self.max_turns:
            return output, 0.0, False
        self._score, self._won = score(self._world.evaluate())
        return output, self._score if self.reward == "fraction" else float(self._won), finished

    def _details(self) -> dict[str, Any]:
        task = self._world.task
        who = {key: str(getattr(task.supervisor, key)) for key in ("first_name", "last_name", "email", "phone_number")}
        shown = {"task": task.instruction, "task_type": task_type(self._world.task_id), "supervisor": who}
        return {"won": self._won, "score": self._score, **shown}

    def _row(self, split: str, number: int) -> dict[str, Any]:
        task_id, options = self._read(split)[number], {"split": split, "task": number}
        # The instruction stays in AppWorld's data, which its licence asks not to spread in plain text.
        return {"seed": number, "options": options, "task_type": task_type(task_id), "prompt": f"AppWorld task {task_id}"}

    # -- private

    def _read(self, split: str) -> list[str]:
        if split not in self._ids:
            file = Path(self._root, "data", "datasets", f"{split}.txt")
            if not file.is_file():
                raise ValueError(f"split={split!r}: AppWorld's data has no {str(file)!r}: {INSTALL}")
            self._ids[split] = list(self._package.load_task_ids(split))
        return self._ids[split]

    def _leave(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            try:
                world.close()
            finally:
                _open_world.release()


def _data_root(package: Any, root: str | None) -> str:
    """The folder that holds AppWorld's data; ValueError if it is not there."""
    folder = root or os.environ.get("APPWORLD_ROOT") or os.getcwd()
    folder = str(Path(folder).expanduser().resolve())
    if not Path(folder, "data", "tasks").is_dir():
        raise ValueError(f"root={folder!r}: AppWorld's data is not there (no data/tasks in it): {INSTALL}")
    package.update_root(folder)
    return folder


def _introduction(supervisor: Any) -> str:
    """Who asks, and how to act."""
    who = f"{supervisor.first_name} {supervisor.last_name} ({supervisor.email}, {supervisor.phone_number})"
    return (
        f"You act for {who} by Python code; `apis.<app>.<name>(...)` calls an app. "
        "Look up what there is: print(apis.api_docs.show_app_descriptions()), "
        "print(apis.api_docs.show_api_descriptions(app_name=...)), print(apis.api_docs.show_api_doc(app_name=..., api_name=...)). "
        f"Print what you want to see. When the task is done call {FINISH}, with answer=... if it asks for one."
    )


def code_of(action: str) -> str:
    """The code of an action: its first fenced block, or all of it."""
    fenced = _FENCE.search(action)
    return (fenced[1] if fenced else action).strip()


def score(tracker: Any) -> tuple[float, bool]:
    """(fraction of the unit tests that pass, whether all do) of AppWorld's evaluation."""
    total = int(tracker.num_tests)
    return (int(tracker.pass_count) / total if total else 0.0), bool(total) and read_bool(tracker.success, "appworld: success")


def task_type(task_id: str) -> str:
    """The scenario of a task: its three tasks differ in details."""
    return task_id.split("_")[0]
