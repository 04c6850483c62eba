# SPDX-License-Identifier: Apache-2.0
"""The response's part of the model's output inside verl's ``ppo_loss``: verl's values and gradients, without its loop over rows."""

import types

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("verl")

import verl.workers.engine_workers  # noqa: F401  (the plugin rebinds the loss's names there)
from verl.workers.utils import losses

from verl_entropy.glue.context import use_loss


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def micro_batch(rows):
    g = torch.Generator().manual_seed(rows)
    prompts = [torch.arange(int(n)) for n in torch.randint(1, 9, (rows,), generator=g)]
    responses = [torch.arange(int(n)) for n in torch.randint(1, 7, (rows,), generator=g)]
    total = sum(map(len, prompts)) + sum(map(len, responses))
    return {"prompts": nested(prompts), "responses": nested(responses)}, torch.randn(total, generator=g)


def context(data):
    width = int(data["responses"].offsets().diff().max())
    return use_loss(types.SimpleNamespace(micro_batch=data, mask_RT=torch.ones(len(data["responses"].offsets()) - 1, width)))


class Waits(TorchDispatchMode):
    """Counts what would wait for a device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_verls(rows, dtype):
    data, values = micro_batch(rows)
    weight, found = None, []
    for ours in (False, True):
        flat = values.to(dtype).requires_grad_()
        if ours:
            with context(data):
                padded = losses.no_padding_2_padding(flat, data)
        else:
            padded = losses.no_padding_2_padding(flat, data)
        weight = torch.randn(padded.shape, generator=torch.Generator().manual_seed(3)) if weight is None else weight
        (padded * weight.to(dtype)).sum().backward()
        found.append((padded.detach(), flat.grad))
    for stock, ours in zip(*found, strict=True):
        assert ours.dtype is dtype and torch.equal(stock, ours)


def test_what_is_not_finite_stays_in_its_row():
    data, values = micro_batch(5)
    values[-1], values[0] = float("nan"), float("inf")
    with context(data):
        padded = losses.no_padding_2_padding(values, data)
    assert torch.equal(padded.isfinite(), losses.no_padding_2_padding(values, data).isfinite())


def test_it_never_waits_for_a_row():
    counts = {}
    for rows in (4, 40):
        data, values = micro_batch(rows)
        with Waits() as stock:
            losses.no_padding_2_padding(values, data)
        with context(data), Waits() as ours:
            losses.no_padding_2_padding(values, data)
        counts[rows] = stock.count, ours.count
    assert counts[40][0] >= counts[4][0] + 36 and counts[40][1] == counts[4][1] == 0


def test_other_batches_and_forms_go_verls_way():
    data, values = micro_batch(3)
    other, _ = micro_batch(3)
    wide = torch.stack([values, values], dim=-1)
    with context(other):
        assert torch.equal(losses.no_padding_2_padding(values, data), losses.no_padding_2_padding(values, dict(data)))
    with context(data):
        assert losses.no_padding_2_padding(wide, data).shape[-1] == 2
