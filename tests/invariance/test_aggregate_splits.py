# SPDX-License-Identifier: Apache-2.0
"""The aggregate and its gradient do not depend on the split into micro-batches and ranks."""

import pytest
import torch
from episodes import lay_out, make_episodes

from verl_entropy.batch.numerics import AGGREGATIONS, aggregate
from verl_entropy.batch.turns import nested_token_weight
from verl_entropy.methods.heads.seal import mixed_group_weight, seal_loss, success_label


def split(rows: int, ranks: int, micro: int, seed: int) -> list[list[torch.Tensor]]:
    """Uneven shares: random cuts, so that a rank or micro-batch may be empty."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(rows, generator=generator)
    place = torch.randint(0, ranks * micro, (rows,), generator=generator)
    place[place == ranks * micro - 1] = 0  # the last share is always empty, unless it is the only one
    return [[order[place == rank * micro + m] for m in range(micro)] for rank in range(ranks)]


@pytest.fixture
def data():
    batch = lay_out(make_episodes(11), "one-row", padding=2)
    turns = batch.turns()
    return turns, batch.garbage, turns.mask_RT, nested_token_weight(turns)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_value_and_gradient(data, mode, ranks, micro):
    _, entropy, mask, weight = data
    counts = {
        "num_tokens": int(mask.sum()),
        "num_rows": int(mask.any(-1).sum()),
        "scale_factor": 32.0,
    }

    def term(x, rows, dp_size):
        return aggregate(x[rows], mask[rows], mode, dp_size=dp_size, weight=weight[rows], **counts)

    whole = entropy.clone().requires_grad_()
    expected = term(whole, torch.arange(len(mask)), 1)
    expected.backward()
    x = entropy.clone().requires_grad_()
    total = 0.0
    for shares in split(len(mask), ranks, micro, seed=ranks * 10 + micro):
        for rows in shares:
            value = term(x, rows, ranks)
            (value / ranks).backward()  # FSDP averages over ranks
            total += float(value) / ranks
    assert total == pytest.approx(float(expected), rel=1e-5)
    torch.testing.assert_close(x.grad, whole.grad, atol=1e-7, rtol=1e-5)
    assert not x.grad[~mask].any()


@pytest.mark.parametrize("ranks, micro", [(1, 4), (4, 2)])
def test_seal_loss(data, ranks, micro):
    """Ranks may hold one class only; labels and group weights come from the driver, so nothing changes."""
    turns, logits, mask, _ = data
    label, weight = success_label(turns), mixed_group_weight(turns)
    assert 0 < weight.sum() < len(weight)

    def term(x, rows, dp_size):
        loss = seal_loss(x[rows], label[rows], mask[rows], row_weight_R=weight[rows])
        return aggregate(loss, mask[rows], "token-mean", num_tokens=int(mask.sum()), num_rows=None, dp_size=dp_size)

    whole, x = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    term(whole, torch.arange(len(mask)), 1).backward()
    for shares in split(len(mask), ranks, micro, seed=5):
        for rows in shares:
            (term(x, rows, ranks) / ranks).backward()
    torch.testing.assert_close(x.grad, whole.grad, atol=1e-8, rtol=1e-5)


def test_row_weights_multiply_rows():
    x, mask = torch.arange(6.0).view(2, 3), torch.tensor([[1, 1, 1], [1, 0, 0]])
    value = aggregate(x, mask, "token-mean", num_tokens=4, num_rows=2, weight=torch.tensor([0.0, 2.0]))
    assert float(value) == 2 * 3.0 / 4


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mode": "mean"}, "mode='mean': allowed are token-mean"),
        ({"mode": "token-mean", "num_tokens": None}, "needs num_tokens"),
        ({"mode": "seq-mean-token-sum", "num_rows": None}, "needs num_rows"),
        ({"mode": "nested-mean"}, "nested_token_weight"),
        ({"mode": "seq-mean-token-sum-norm"}, "scale_factor=None"),
    ],
)
def test_counts_are_never_guessed(changes, message):
    settings = {"num_tokens": 4, "num_rows": 2, **changes}
    with pytest.raises(ValueError, match=message):
        aggregate(torch.ones(2, 2), torch.ones(2, 2), settings.pop("mode"), **settings)


def test_a_constant_keeps_its_value_in_every_mini_batch_of_the_nested_mean():
    """Lengths 2 and 100 in two mini-batches: divided by their tokens, a loss of 1 was 25.5 and .51."""
    mask = torch.arange(100)[None] < torch.tensor([[2], [100]])
    weight = torch.where(mask, 102 / (2 * mask.sum(-1, keepdim=True)), 0.0)
    for row in (slice(0, 1), slice(1, 2)):
        tokens, total = int(mask[row].sum()), float(weight[row].sum())
        value = aggregate(
            torch.ones(1, 100), mask[row], "nested-mean", num_tokens=tokens, num_rows=1, weight=weight[row], weight_sum=total
        )
        assert float(value) == pytest.approx(1.0, rel=1e-6)
