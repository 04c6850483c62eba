# SPDX-License-Identifier: Apache-2.0
"""Runs ``engine_rank.py`` or ``preset_rank.py`` on some ranks and returns what each wrote.

On the CPU over gloo; with VERL_ENTROPY_TEST_DEVICE=cuda on one card per rank over NCCL (tests/gpu/run.sh), with torch's
deterministic algorithms, so that the same equalities hold.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CUDA = os.environ.get("VERL_ENTROPY_TEST_DEVICE") == "cuda"
DEVICE_ENV = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if CUDA else {"VERL_PLATFORM": "cpu"}


def need_ranks(world: int) -> None:
    """Skip what needs more cards than there are."""
    import torch

    if CUDA and world > max(torch.cuda.device_count(), 1):
        pytest.skip(f"needs {world} cards")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _wait(processes: list[subprocess.Popen], seconds: float) -> int | None:
    """The rank that failed first or did not end in time, whose log says why; the others may wait for it in vain. None if all ended."""
    end = time.monotonic() + seconds
    while True:
        codes = [p.poll() for p in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        late = [rank for rank, code in enumerate(codes) if code is None]
        if failed or not late:
            return failed[0] if failed else None
        if time.monotonic() > end:
            return late[0]
        time.sleep(0.1)


def run_ranks(model: Path, out: Path, names, world: int, script: str = "engine_rank.py", seconds: float = 600) -> list[dict]:
    import torch

    need_ranks(world)
    port = str(_free_port())
    processes = []
    for rank in range(world):
        env = {
            **os.environ,
            **DEVICE_ENV,
            "OMP_NUM_THREADS": "1",
            "MKL_CBWR": "AUTO,STRICT",  # results of MKL must not depend on how memory happens to be aligned
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        command = [sys.executable, str(HERE / script), str(model), str(out), *names]
        log = open(f"{out}.log.{rank}", "w")  # noqa: SIM115  (closed with the process)
        processes.append((subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT), log))
    try:
        failed = _wait([p for p, _ in processes], seconds)
    finally:
        for p, log in processes:
            p.kill()
            log.close()
    assert failed is None, f"rank {failed} of {world}:\n" + Path(f"{out}.log.{failed}").read_text()[-4000:]
    return [torch.load(f"{out}.{rank}", map_location="cpu", weights_only=False) for rank in range(world)]
