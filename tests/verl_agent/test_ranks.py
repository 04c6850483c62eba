# SPDX-License-Identifier: Apache-2.0
"""Two ranks with half of the rows each do what one rank does with all of them (gloo, two processes)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from agent_rank import outcome

HERE = Path(__file__).parent


def test_two_ranks_are_one(tmp_path):
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "agent_rank.py")]
    arguments = [str(tmp_path / "store"), str(tmp_path / "out")]
    running = [subprocess.Popen([*command, str(rank), *arguments], env=env) for rank in range(2)]
    assert [process.wait(timeout=600) for process in running] == [0, 0]
    one, two = outcome(torch.arange(8)), [torch.load(tmp_path / f"out.{rank}") for rank in range(2)]
    for rank in range(2):
        for name in ("value", "head_gradient", "metric"):
            torch.testing.assert_close(two[rank][name], one[name], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(two[rank]["head"], one["head"], rtol=0, atol=1e-5)
    assert torch.equal(two[0]["head"], two[1]["head"])
    torch.testing.assert_close(torch.cat([two[0]["entropy"], two[1]["entropy"]]), one["entropy"], rtol=1e-5, atol=1e-8)
