# SPDX-License-Identifier: Apache-2.0
"""Runs ``engine_rank.py`` once on one rank and once on two, for all tests of this folder."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("verl")
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

import tiny_llama as tiny
from ranks import run_ranks


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("model"))


ORDER = "[9,3,7,1,5,0,8,2,6,4]"
ONE = [
    *(
        f"{s}-{kind}"
        for s in ("fsdp", "fsdp2")
        for kind in ("stock", "neutral", "full", "full-budget=24", "reference", "save", "resume", "strip")
    ),
    f"fsdp2-full-order={ORDER}",
    *(f"{s}-full-packed=1{end}" for s in ("fsdp", "fsdp2") for end in ("", "-kept=0")),
    "fsdp2-full-packed=1-logp=verl",
    *(f"fsdp2-full-dropped=1{end}" for end in ("", "-packed=1", "-budget=24")),
    "fsdp-wrapped",
    "fsdp2-full-packed=1-pad=64",
    "fsdp2-full-packed=1-budget=24-checkpointing=1",
    "fsdp2-full-logp=verl",
    "fsdp2-full-agg=seq_mean_token_mean",
    "fsdp2-full-agg=seq_mean_token_mean-budget=24",
]
TWO = [
    *(f"{s}-{kind}" for s in ("fsdp", "fsdp2") for kind in ("full", "save", "resume", "strip")),
    "fsdp2-full-budget=24",
    "fsdp2-full-agg=seq_mean_token_mean-budget=24",
    *(f"{s}-full-packed=1" for s in ("fsdp", "fsdp2")),
]


@pytest.fixture(scope="session")
def one_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="session")
def one(model, one_folder):
    return run_ranks(model, one_folder / "out", ONE, 1)[0]


@pytest.fixture(scope="session")
def two_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="session")
def two(model, two_folder):
    return run_ranks(model, two_folder / "out", TWO, 2)
