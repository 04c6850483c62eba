# SPDX-License-Identifier: Apache-2.0
"""Runs ``engine_rank.py`` or ``preset_rank.py`` on some ranks and returns what each wrote.

On the CPU over gloo; with VERL_ENTROPY_TEST_DEVICE=cuda on one card per rank over NCCL (tests/gpu/run.sh), with torch's
deterministic algorithms, so that the same equalities hold.
"""

import os
import signal
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


def crashed(codes: list[int | None]) -> bool:
    """Whether a rank died by a signal of its own. Gloo's thread does, rarely (a null pointer in ``pt_gloo_runloop``, torch 2.13): no
    exception of the test's ends a process so, and a fault of ours that did would do it again."""
    return any(code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS) for code in codes)


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
    """What each rank saved. A crash of gloo's (``crashed``) is tried once more."""
    import torch

    need_ranks(world)
    failed, codes = _run(model, out, names, world, script, seconds)
    if failed is not None and crashed(codes):
        print(f"exit codes {codes}: once more; the log said\n" + Path(f"{out}.log.{failed}").read_text()[-2000:])
        failed, codes = _run(model, out, names, world, script, seconds)
    assert failed is None, f"rank {failed} of {world}, exit codes {codes}:\n" + Path(f"{out}.log.{failed}").read_text()[-4000:]
    return [torch.load(f"{out}.{rank}", map_location="cpu", weights_only=False) for rank in range(world)]


def _run(model: Path, out: Path, names, world: int, script: str, seconds: float) -> tuple[int | None, list[int | None]]:
    """The rank that failed, if one did, and the exit codes; None for a rank that had to be killed."""
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
        command = [sys.executable, "-X", "faulthandler", str(HERE / script), str(model), str(out), *names]
        log = open(f"{out}.log.{rank}", "w")  # noqa: SIM115  (closed with the process)
        processes.append((subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT), log))
    try:
        failed = _wait([p for p, _ in processes], seconds)
        codes = [p.poll() for p, _ in processes]
    finally:
        for p, log in processes:
            p.kill()
            log.close()
    return failed, codes
