# SPDX-License-Identifier: Apache-2.0
"""Runs ``engine_rank.py`` once on one rank and once on two, for all tests of this folder."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

import tiny_llama as tiny  # noqa: E402

HERE = Path(__file__).parent


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(model: Path, out: Path, names, world: int) -> list[dict]:
    import torch

    port = str(_free_port())
    processes = []
    for rank in range(world):
        env = {
            **os.environ,
            "VERL_PLATFORM": "cpu",
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        command = [sys.executable, str(HERE / "engine_rank.py"), str(model), str(out), *names]
        log = open(f"{out}.log.{rank}", "w")  # noqa: SIM115  (closed with the process)
        processes.append((subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT), log))
    try:
        codes = [p.wait(timeout=600) for p, _ in processes]
    finally:
        for p, log in processes:
            p.kill()
            log.close()
    assert codes == [0] * world, Path(f"{out}.log.0").read_text()[-4000:]
    return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(world)]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("model"))


ORDER = "[9,3,7,1,5,0,8,2,6,4]"
ONE = [
    *(f"{s}-{kind}" for s in ("fsdp", "fsdp2") for kind in ("stock", "neutral", "full", "full-budget=24", "reference", "save", "resume", "strip")),
    f"fsdp2-full-order={ORDER}",
    "fsdp2-full-packed=1",
    "fsdp2-full-logp=verl",
    "fsdp2-full-agg=seq_mean_token_mean",
    "fsdp2-full-agg=seq_mean_token_mean-budget=24",
]
TWO = [
    *(f"{s}-{kind}" for s in ("fsdp", "fsdp2") for kind in ("full", "save", "resume", "strip")),
    "fsdp2-full-budget=24",
    "fsdp2-full-agg=seq_mean_token_mean-budget=24",
]


@pytest.fixture(scope="session")
def one(model, tmp_path_factory):
    return run_ranks(model, tmp_path_factory.mktemp("one") / "out", ONE, 1)[0]


@pytest.fixture(scope="session")
def two_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="session")
def two(model, two_folder):
    return run_ranks(model, two_folder / "out", TWO, 2)
