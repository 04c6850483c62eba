# SPDX-License-Identifier: Apache-2.0
"""Repairing a repository until its tests pass: view, edit, run tests, submit. A small loop to exercise; it is not SWE-bench."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from verl_entropy.envs.tasks import Answer, TaskEnv
from verl_entropy.envs.worlds.swe_runner import TestReport, make_runner
from verl_entropy.envs.worlds.swe_tasks import SPLITS, Edit, Repair, repairs

HOW = """One action a turn:
view PATH [FIRST LAST]
run tests
submit
edit PATH, followed by the text to replace (it must stand exactly once in the file) and the new text:
edit PATH
<<<<<<< old
text to replace
=======
new text
>>>>>>> new"""
SHOWN_LINES = 200  # of a file at once
SHOWN_CHARS = 2000  # of the tests' output: its end, where the failures are
FILE_CHARS = 100_000  # a file may grow to this
_VIEW = re.compile(r"view\s+(\S+)(?:\s+(\d{1,6})\s+(\d{1,6}))?", re.IGNORECASE)
_EDIT = re.compile(r"edit\s+(\S+)[ \t]*\n<{7}[^\n]*\n(.*?\n)?={7}[ \t]*\n(.*?\n)?>{7}[^\n]*", re.DOTALL | re.IGNORECASE)


class SweEnv(TaskEnv):
    """Make the failing tests of a small repository pass.

    ``submit`` runs the tests as they were given (edits under ``tests/`` are refused) and ends the episode: reward 1 if
    every one passes, else 0; an episode that is cut pays 0. ``repositories``: a folder of the user's own .json files, as
    under ``verl_entropy/envs/worlds/data/swe``. ``runner``: ``local`` (a restricted subprocess, no container: see
    ``swe_runner``), ``sandbox_fusion`` (``runner_kwargs: {url: ...}``) or ``package.module:Class``. Tests run in another
    process than the code; ``swe_driver`` says what they cannot do therefore.
    """

    SPLITS = SPLITS

    def __init__(
        self,
        split: str = "train",
        repositories: str | None = None,
        runner: str = "local",
        runner_kwargs: Mapping[str, Any] | None = None,
        max_turns: int = 20,
    ) -> None:
        super().__init__(split, max_turns)
        self._tasks = repairs(repositories)
        self._count(split)
        self._runner = make_runner(runner, dict(runner_kwargs or {}))
        self._task: Repair | None = None

    def expert_actions(self) -> list[str] | None:
        """Look at the file, apply the stored fix, submit."""
        if self._task is None:
            return None
        return [f"view {self._task.fix.path}", format_edit(self._task.fix), "submit"]

    # -- the adapter's part of TaskEnv

    def _count(self, split: str) -> int:
        if not self._tasks[split]:
            raise ValueError(f"split={split!r} has no repository; add one with this split to the folder of repositories")
        return len(self._tasks[split])

    def _begin(self, split: str, number: int) -> str:
        self._task = self._tasks[split][number]
        self._files = dict(self._task.files)
        self._won = False
        self._seen = f"Files:\n{chr(10).join(sorted(self._files))}\n\n{HOW}"
        return self._seen

    def _act(self, action: str) -> Answer:
        words = action.strip()
        if words.lower() == "submit":
            report = self._test()
            self._won = self._task.tests <= report.passed
            self._seen = "Submitted. " + self._summary(report)
            return self._seen, float(self._won), True
        self._seen = self._answer(words)
        return self._seen, 0.0, False

    def _details(self) -> dict[str, Any]:
        state = json.dumps([self._task.name, self._files, self._seen], sort_keys=True).encode()
        return {
            "won": self._won,
            "score": float(self._won),
            "task": self._task.issue,
            "task_type": self._task.repository,
            "anchor": f"{self._task.name} {hashlib.sha256(state).hexdigest()[:16]}",
        }

    # -- private

    def _answer(self, words: str) -> str:
        if words.lower() == "run tests":
            report = self._test()
            return f"{self._summary(report)}\n{report.output[-SHOWN_CHARS:]}"
        if view := _VIEW.fullmatch(words):
            return self._view(*view.groups())
        if edit := _EDIT.fullmatch(words):
            return self._edit(Edit(edit[1], edit[2] or "", edit[3] or ""))
        return f"This is no action. {HOW}"

    def _test(self) -> TestReport:
        given = {path: text for path, text in self._task.files.items() if _is_test(path)}
        return self._runner.run({**self._files, **given})

    def _summary(self, report: TestReport) -> str:
        wanted = self._task.tests
        return f"{len(wanted & report.passed)} of {len(wanted)} tests pass."

    def _view(self, path: str, first: str | None, last: str | None) -> str:
        if path not in self._files:
            return f"There is no file {path[:200]}."
        lines = self._files[path].splitlines()
        start = max(1, int(first or 1))
        end = min(len(lines), int(last or len(lines)), start + SHOWN_LINES - 1)
        shown = "\n".join(f"{number:4} {lines[number - 1]}" for number in range(start, end + 1))
        return f"{path}, lines {start} to {end} of {len(lines)}:\n{shown}"

    def _edit(self, edit: Edit) -> str:
        if edit.path not in self._files:
            return f"There is no file {edit.path[:200]}."
        if _is_test(edit.path):
            return "The tests cannot be edited."
        text = self._files[edit.path]
        times = text.count(edit.old) if edit.old else 0
        if times != 1:
            return f"Nothing is changed: the text to replace stands {times} times in {edit.path}, not once."
        changed = text.replace(edit.old, edit.new)
        if len(changed) > FILE_CHARS:
            return f"Nothing is changed: {edit.path} would have more than {FILE_CHARS} characters."
        self._files[edit.path] = changed
        return f"{edit.path} is changed."


def format_edit(edit: Edit) -> str:
    """The action of an edit."""
    return f"edit {edit.path}\n<<<<<<< old\n{edit.old}=======\n{edit.new}>>>>>>> new"


def _is_test(path: str) -> bool:
    return path.startswith("tests/")
