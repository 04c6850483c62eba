# SPDX-License-Identifier: Apache-2.0
"""The diagnostics' sample in the real engine: exact gradients, any split and any number of ranks, and log-probs left as they are."""

import itertools

import pytest
import torch
from ranks import run_ranks

STRATEGIES = ("fsdp", "fsdp2")


@pytest.fixture(scope="module")
def on_one(model, tmp_path_factory):
    return run_ranks(model, tmp_path_factory.mktemp("sample1") / "out", STRATEGIES, 1, "sample_rank.py")


@pytest.fixture(scope="module", params=(1, 2), ids=("one_rank", "two_ranks"))
def ranks(request, on_one, model, tmp_path_factory):
    if request.param == 1:
        return on_one
    return run_ranks(model, tmp_path_factory.mktemp("sample2") / "out", STRATEGIES, request.param, "sample_rank.py")


def merged(ranks, key) -> torch.Tensor:
    """Vectors of the sampled trajectories, which lead rows of different ranks."""
    rows = {j: row for rank in ranks for j, row in rank[key]["sampled"].items()}
    return torch.stack([rows[j] for j in sorted(rows)])


@pytest.mark.parametrize(("strategy", "packed", "budget"), itertools.product(STRATEGIES, (False, True), (1000, 24)))
def test_equal_to_autograd_under_every_split(on_one, ranks, strategy, packed, budget):
    gram, mean = on_one[0]["expected"]
    found = merged(ranks, (strategy, packed, budget))
    torch.testing.assert_close(found[:, :3], gram, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[:, 3:], mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_log_probs_and_entropy_are_untouched(on_one, strategy):
    with_sample, without = on_one[0][strategy, False, 1000], on_one[0][strategy, "without"]
    assert "sampled" not in without
    for name in ("log_probs", "entropy"):
        assert all(torch.equal(a, b) for a, b in zip(with_sample[name], without[name], strict=True))
