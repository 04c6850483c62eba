# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP engines on the CPU: two gloo ranks compute what one rank and plain transformers compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_worker import STRATEGIES
from safetensors.torch import load_file

from verl_entropy.cpu.launch import cpu_env

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def runs(model_path, tmp_path_factory):
    """Results of both ranks of a group of two, then of a group of one."""
    out = tmp_path_factory.mktemp("engine") / "results"
    processes = []
    for rank in range(2):
        env = {
            **os.environ,
            **cpu_env(),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the package that is tested here
            "VERL_USE_EXTERNAL_PLUGINS": "none",  # the worker registers what it needs itself
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "DIST_INIT_METHOD": f"file://{out}.rendezvous",
        }
        command = [
            sys.executable,
            str(Path(__file__).with_name("engine_worker.py")),
            str(model_path),
            str(out),
        ]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in processes:
        log, _ = process.communicate(timeout=120)
        assert process.returncode == 0, log[-4000:]
    return {
        "wiring": torch.load(f"{out}.wiring.rank0"),
        "one": torch.load(f"{out}.world1.rank0", weights_only=True),
        "two": [torch.load(f"{out}.world2.rank{rank}", weights_only=True) for rank in range(2)],
    }


def interleave(values):
    """Rows of the whole batch from the shares of two ranks."""
    return [row for pair in zip(*values, strict=True) for row in pair]


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


def test_wiring_loads_nothing_heavy(runs):
    """It runs in every process that imports verl: no trainer, worker or model may come with it."""
    heavy = ("transformers", "verl.trainer", "verl.workers", "verl.single_controller", "transfer_queue")
    assert "verl_entropy.cpu.wiring" in runs["wiring"]
    assert not [name for name in runs["wiring"] if name.startswith(heavy)]


@strategies
def test_every_rank_starts_from_the_checkpoint(runs, model_path, strategy):
    checkpoint = load_file(model_path / "model.safetensors")
    for run in (runs["one"], *runs["two"]):
        assert run[strategy]["actor"]["class"] == "CpuFSDPEngineWithLMHead"
        assert_same(run[strategy]["actor"]["weights"]["before"], checkpoint)


@strategies
def test_random_parts_are_equal_on_all_ranks(runs, strategy):
    """The value head is not in the checkpoint, and the ranks have different seeds: all must have that of rank
    0.
    """
    one, two = runs["one"][strategy]["critic"], [run[strategy]["critic"] for run in runs["two"]]
    assert one["weights"]["score.weight"].abs().min() > 0
    for run in two:
        assert run["class"] == "CpuFSDPEngineWithValueHead"
        assert_same(run["weights"], one["weights"])
    for found, expected in zip(interleave([run["values"] for run in two]), one["values"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@strategies
def test_two_ranks_train_as_one_does(runs, strategy):
    one, two = runs["one"][strategy]["actor"], [run[strategy]["actor"] for run in runs["two"]]
    assert one["micro_batches"] > 1
    assert sum(run["loss"] for run in two) / 2 == pytest.approx(one["loss"], rel=1e-6)
    for run in two:
        assert run["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
        # Adam divides by the root of the squared gradient: where that is tiny, rounding shows in the weights.
        assert_same(run["weights"]["after"], one["weights"]["after"], tolerance=1e-4)
    assert_same(two[0]["weights"]["after"], two[1]["weights"]["after"])


@strategies
def test_loss_and_gradient_are_those_of_plain_transformers(runs, model, strategy):
    """The mean over the response tokens of the whole batch, with its gradient."""
    trained = type(model)(model.config)
    trained.load_state_dict(model.state_dict())
    terms = []
    for row in interleave([run[strategy]["reference"]["rows"] for run in runs["two"]]):
        log_probs = trained(input_ids=row.unsqueeze(0)).logits[0, :-1].log_softmax(-1).gather(1, row[1:].unsqueeze(1))
        terms.append(log_probs[len(row) // 2 - 1 :])
    loss = -torch.cat(terms).mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in trained.parameters()])
    assert runs["one"][strategy]["actor"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert runs["two"][0][strategy]["actor"]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


@strategies
def test_a_reference_model_gives_the_log_probs_of_plain_transformers(runs, model, strategy):
    """Forward only, where verl asks for CPU offloading and pinned memory."""
    for run in (runs["one"], *runs["two"]):
        for row, found in zip(run[strategy]["reference"]["rows"], run[strategy]["reference"]["log_probs"], strict=True):
            expected = model(input_ids=row.unsqueeze(0)).logits[0, :-1].log_softmax(-1).gather(1, row[1:].unsqueeze(1)).squeeze(1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@strategies
def test_a_checkpoint_brings_back_weights_and_optimizer(runs, strategy):
    for run in (runs["one"], *runs["two"]):
        weights = run[strategy]["actor"]["weights"]
        assert_same(weights["restored"], weights["after"])
        assert_same(weights["again"], weights["second"], tolerance=1e-6)
        assert not torch.equal(weights["second"]["lm_head.weight"], weights["after"]["lm_head.weight"])
