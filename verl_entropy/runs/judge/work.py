# SPDX-License-Identifier: Apache-2.0
"""Which trajectories are judged, and judging them: in several threads, resumable, one results line each."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from verl_entropy.runs.judge import prompt
from verl_entropy.runs.judge.client import Client, JudgeError, RequestFailed
from verl_entropy.runs.judge.results import MAX_REASON, RESULTS, Judgement, ResultsWriter, read_results, trajectory_text
from verl_entropy.runs.runfile import STEPS, RunFileError, RunReader

MAX_FAILURES = 10
"""Failures in a row after which judging stops: the endpoint or the model is at fault, not the texts."""


@dataclass(frozen=True)
class Task:
    """A trajectory to judge."""

    step: int
    index: int
    text: str
    digest: str


@dataclass
class Outcome:
    """What judging did."""

    judged: int = 0
    skipped: int = 0
    """Judged by an earlier call."""
    failed: list[str] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    mean: float | None = None
    """Score over all judged trajectories of this selection, earlier ones included."""
    stopped: str = ""
    """Why judging ended before its end."""


def run_folder(path: str | Path) -> Path:
    """The folder of a run with stored trajectories; RunFileError for anything else."""
    path = Path(path)
    folder = path.parent if path.name == STEPS and path.is_file() else path
    if not (folder / STEPS).is_file():
        raise RunFileError(f"{path}: no run folder ({STEPS}). Only runs written by verl-entropy store trajectories to judge.")
    return folder


def tasks(path: str | Path, *, first: int = 0, last: int | None = None, limit: int = 0) -> tuple[list[Task], list[str]]:
    """Stored trajectories with text, by step, and the run's problems; with ``limit`` so many, evenly spread over the run."""
    reader = RunReader(run_folder(path))
    found = []
    for step, samples in reader.samples():
        if step < first or (last is not None and step > last):
            continue
        for index, sample in enumerate(samples):
            text, digest = trajectory_text(sample)
            if text:
                found.append(Task(step, index, text, digest))
    if limit and len(found) > limit:
        found = [found[(2 * i + 1) * len(found) // (2 * limit)] for i in range(limit)]
    return found, reader.problems


def unjudged(path: str | Path, selected: Sequence[Task], model: str) -> tuple[list[Task], list[float], list[str]]:
    """Tasks without a stored score by this model and prompt, the scores of the others, and problems of the results file."""
    earlier, problems = read_results(run_folder(path))
    known = {item.key: item.score for item in earlier}
    keys = [(t.step, t.index, t.digest, model, prompt.VERSION) for t in selected]
    left = [task for task, key in zip(selected, keys, strict=True) if key not in known]
    return left, [known[key] for key in keys if key in known], problems


def judge(
    path: str | Path,
    selected: Sequence[Task],
    client: Client,
    *,
    workers: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Judge ``selected`` trajectories of the run and append to its judge.jsonl; those judged before are skipped.

    Ends early, with what was judged kept, on an error that every request would meet, after MAX_FAILURES failures in a row, or
    on an interrupt (Ctrl-C).
    """
    folder = run_folder(path)
    left, scores, _ = unjudged(folder, selected, client.endpoint.model)
    outcome = Outcome(skipped=len(selected) - len(left))
    if left:
        writer = ResultsWriter(folder / RESULTS)
        try:
            _run(left, client, workers, writer, outcome, scores, progress)
        finally:
            writer.close()
    outcome.mean = sum(scores) / len(scores) if scores else None
    return outcome


def _run(left, client, workers, writer, outcome, scores, progress) -> None:
    pool = ThreadPoolExecutor(max_workers=max(workers, 1))
    usage = _Usage()
    waiting: dict[Future, Task] = {}
    queue, row = iter(left), 0
    try:
        while True:
            while len(waiting) < 2 * max(workers, 1) and (task := next(queue, None)) is not None:
                waiting[pool.submit(_ask, client, task, usage)] = task
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                row = _take(future, waiting.pop(future), writer, outcome, scores, row)
                if progress is not None:
                    progress(outcome.judged + len(outcome.failed), len(left))
            if row >= MAX_FAILURES:
                raise JudgeError(f"{row} failures in a row, the last: {outcome.failed[-1]}")
    except (JudgeError, KeyboardInterrupt) as error:
        outcome.stopped = str(error) or "interrupted"
    finally:
        client.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        for future, task in waiting.items():  # answers that came in while stopping were paid for
            if future.done() and not future.cancelled() and future.exception() is None:
                _take(future, task, writer, outcome, scores, 0)
        outcome.input_tokens, outcome.output_tokens = usage.input_tokens, usage.output_tokens


def _take(future: Future, task: Task, writer: ResultsWriter, outcome: Outcome, scores: list[float], row: int) -> int:
    """Store one result; failures in a row so far."""
    try:
        item = future.result()
    except RequestFailed as error:
        outcome.failed.append(f"step {task.step}, trajectory {task.index}: {error}")
        return row + 1
    writer.add(item)
    scores.append(item.score)
    outcome.judged += 1
    return 0


class _Usage:
    """Tokens of all answers, the malformed ones included."""

    def __init__(self) -> None:
        self.input_tokens = self.output_tokens = 0
        self._lock = threading.Lock()

    def add(self, into: int, out: int) -> None:
        with self._lock:
            self.input_tokens += into
            self.output_tokens += out


def _ask(client: Client, task: Task, usage: _Usage) -> Judgement:
    """Judge one trajectory; a malformed answer is asked for again, as often as a failed request."""
    into = out = 0
    for attempt in range(client.endpoint.retries + 1):
        marker = f"=== {secrets.token_hex(8)} ==="  # unknown to whoever wrote the text, so it cannot close itself
        reply = client.ask(prompt.messages(task.text, marker))
        usage.add(reply.input_tokens, reply.output_tokens)
        into, out = into + reply.input_tokens, out + reply.output_tokens
        try:
            if reply.cut:
                limit = f"the answer was cut after {reply.output_tokens or 'max_tokens'} tokens"
                raise prompt.MalformedAnswer(f"{limit}; give it more with --max-output")
            score, reason = prompt.parse(reply.text)
        except prompt.MalformedAnswer as error:
            problem = f"{error} ({attempt + 1} answers)"
            continue
        model, digest = client.endpoint.model, task.digest
        return Judgement(task.step, task.index, digest, model, prompt.VERSION, score, reason[:MAX_REASON], into, out)
    raise RequestFailed(problem)
