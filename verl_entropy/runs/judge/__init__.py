# SPDX-License-Identifier: Apache-2.0
"""A language model scores how degenerate stored trajectories are (SEAL, arXiv 2605.27954, 0 to 10). Offline and optional."""

from verl_entropy.runs.judge.client import Client, Endpoint, JudgeError
from verl_entropy.runs.judge.costs import Estimate, estimate
from verl_entropy.runs.judge.results import Judgement, read_results
from verl_entropy.runs.judge.work import Outcome, Task, judge, tasks

__all__ = [
    "Client",
    "Endpoint",
    "Estimate",
    "JudgeError",
    "Judgement",
    "Outcome",
    "Task",
    "estimate",
    "judge",
    "read_results",
    "tasks",
]
