# SPDX-License-Identifier: Apache-2.0
r"""Single-turn mathematics: the reward is whether the last ``\boxed{}`` of the response equals the right answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from verl_entropy.envs.tasks import Answer, TaskEnv, at_least, file_of_split, read_rows, text_of
from verl_entropy.envs.worlds import math_verifier
from verl_entropy.envs.worlds.math_problems import SPLITS, Problem, problems

TASK = r"Solve the problem and give the final answer in \boxed{}."
VERIFY_SECONDS = 5.0  # math-verify's own limit
_BRACE = re.compile(r"\\boxed\s*\{|(?<!\\)[{}]")  # a box's opening, or a brace that is not escaped


class MathEnv(TaskEnv):
    r"""One problem, one answer.

    ``problems``: a .jsonl or .parquet with ``question`` (or ``problem``) and ``answer``, one file or {split: file}; left
    out: a small generated set of school problems, which is not AIME. The final answer is the content of the last
    ``\boxed{}``; without one the answer is wrong. Equality is math-verify's (``1/2``, ``0.5`` and ``\frac{1}{2}`` are
    equal); what it cannot decide within ``verify_timeout_s`` is wrong. Reward 1 or 0.
    """

    SPLITS = SPLITS

    def __init__(
        self,
        split: str = "train",
        problems: str | Mapping[str, str] | None = None,
        verify_timeout_s: float = VERIFY_SECONDS,
    ) -> None:
        super().__init__(split, max_turns=1)
        self.verify_timeout_s = at_least("verify_timeout_s", verify_timeout_s, 0.01, whole=False)
        math_verifier.require()
        self._source = problems
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._read(split)
        self._problem: Problem | None = None

    def expert_actions(self) -> list[str] | None:
        """The right answer in its box."""
        return None if self._problem is None else [rf"\boxed{{{self._problem.answer}}}"]

    # -- the adapter's part of TaskEnv

    def _count(self, split: str) -> int:
        return len(self._read(split))

    def _begin(self, split: str, number: int) -> str:
        self._problem = self._read(split)[number]
        self._won = False
        return self._problem.question

    def _act(self, action: str) -> Answer:
        answer = last_boxed(action)
        right = self._problem.answer
        self._won = answer is not None and _same(right, answer, float(self.verify_timeout_s))
        return ("The answer is right." if self._won else "The answer is wrong."), float(self._won), True

    def _details(self) -> dict[str, Any]:
        kind = self._problem.kind
        return {"won": self._won, "score": float(self._won), "task": TASK, "task_type": kind, "anchor": self._problem.question}

    def _row(self, split: str, number: int) -> dict[str, Any]:
        problem = self._read(split)[number]
        options = {"split": split, "task": number}
        return {"seed": number, "options": options, "task_type": problem.kind, "prompt": f"{problem.question}\n{TASK}"}

    # -- private

    def _read(self, split: str) -> tuple[Problem, ...]:
        if split not in self._problems:
            if self._source is None:
                self._problems[split] = problems()[split]
            else:
                path = file_of_split("problems", self._source, split)
                self._problems[split] = tuple(read_rows("problems", path, _problem))
        return self._problems[split]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """The same reward for verl's own single-turn rollout: ``reward.custom_reward_function.path=pkg://verl_entropy.envs.worlds.math``."""
    _, closed, after = solution_str.rpartition("</think>")
    unfinished = "<think>" in after or (not closed and "<think>" in solution_str)
    answer = None if unfinished else last_boxed(after)
    won = answer is not None and _same(str(ground_truth), answer, VERIFY_SECONDS)
    return {"score": float(won), "acc": float(won), "pred": answer or ""}


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}`` (braces balanced); None if there is none. Linear in the text."""
    opened: list[tuple[int, int]] = []  # of every open brace: where its box begins (-1: no box), where its content begins
    last, content = -1, None
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            opened.append((brace.start() if brace[0] != "{" else -1, brace.end()))
        elif opened:
            start, inside = opened.pop()
            if start > last and text[inside : brace.start()].strip():
                last, content = start, (inside, brace.start())
    return None if content is None else text[slice(*content)].strip()


def _same(right: str, answer: str, timeout_s: float) -> bool:
    """Equal as text, or by math-verify."""
    return "".join(right.split()) == "".join(answer.split()) or math_verifier.equal(right, answer, timeout_s)


def _problem(row: Mapping[str, Any]) -> Problem:
    """A row of a user's file; verl's own layout (reward_model.ground_truth, prompt) is read as well."""
    model = row.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else None
    answer = text_of({**row, "ground_truth": truth}, "answer", "ground_truth")
    # An answer may come with its box or between dollar signs.
    answer = last_boxed(answer) or answer.strip().strip("$").strip()
    prompt = row.get("prompt")
    last = prompt[-1].get("content") if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping) else None
    question = text_of({**row, "prompt": last}, "question", "problem", "prompt")
    return Problem(question, answer, str(row.get("data_source") or "problem"))
