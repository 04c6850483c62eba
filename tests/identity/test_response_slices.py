# SPDX-License-Identifier: Apache-2.0
"""The response's part of a model's output in verl's losses: verl's values and gradients, without its loop over rows."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("verl")

from verl.workers.utils import losses

from verl_entropy.hosts.install import activate

activate.install()
ours = losses.no_padding_2_padding
stock = ours.__wrapped__


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def micro_batch(rows):
    g = torch.Generator().manual_seed(rows)
    prompts = [torch.arange(int(n)) for n in torch.randint(1, 9, (rows,), generator=g)]
    responses = [torch.arange(int(n)) for n in torch.randint(1, 7, (rows,), generator=g)]
    total = sum(map(len, prompts)) + sum(map(len, responses))
    return {"prompts": nested(prompts), "responses": nested(responses)}, torch.randn(total, generator=g)


class Waits(TorchDispatchMode):
    """Counts what would wait for a device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [False, True], ids=["flat", "nested"])
def test_values_and_gradients_are_verls(rows, dtype, packed):
    data, values = micro_batch(rows)
    weight, found = None, []
    for function in (stock, ours):
        flat = values.to(dtype).requires_grad_()
        offsets = torch.nn.functional.pad(
            (data["prompts"].offsets().diff() + data["responses"].offsets().diff()).cumsum(0), (1, 0)
        )
        padded = function(torch.nested.nested_tensor_from_jagged(flat, offsets) if packed else flat, data)
        weight = torch.randn(padded.shape, generator=torch.Generator().manual_seed(3)) if weight is None else weight
        (padded * weight.to(dtype)).sum().backward()
        found.append((padded.detach(), flat.grad))
    for verls, own in zip(*found, strict=True):
        assert own.dtype is dtype and torch.equal(verls, own)


def test_what_is_not_finite_stays_in_its_row():
    data, values = micro_batch(5)
    values[-1], values[0] = float("nan"), float("inf")
    assert torch.equal(ours(values, data).isfinite(), stock(values, data).isfinite())


def test_it_never_waits_for_a_row():
    counts = {}
    for rows in (4, 40):
        data, values = micro_batch(rows)
        for function in (stock, ours):
            with Waits() as waits:
                function(values, data)
            counts[rows, function] = waits.count
    assert counts[40, stock] >= counts[4, stock] + 36 and counts[40, ours] == counts[4, ours] <= 3


def test_other_forms_go_verls_way(monkeypatch):
    data, values = micro_batch(3)
    wide = torch.stack([values, values], dim=-1)
    assert torch.equal(ours(wide, data), stock(wide, data))
    with pytest.raises(AssertionError):
        ours(values[:-1], data)
    no_prompt = {**data, "prompts": nested([torch.arange(0), *data["prompts"].unbind()[1:]])}
    with pytest.raises(AssertionError, match="prompt_len > 0"):
        ours(values[len(data["prompts"].unbind()[0]) :], no_prompt)
