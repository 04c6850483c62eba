# SPDX-License-Identifier: Apache-2.0
"""The SEAL head: shape, precision, and weights from a seed alone."""

import pytest
import torch
from torch import nn

from verl_entropy.methods.heads.seal import SealHead


def weights(head):
    return torch.cat([p.detach().float().flatten() for p in head.parameters()])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_shape(layers):
    head = SealHead(8, layers=layers)
    linears = [m for m in head.modules() if isinstance(m, nn.Linear)]
    assert [m.out_features for m in linears] == [8] * (layers - 1) + [1]
    kinds = [type(m) for m in head.body]
    assert kinds == [nn.Linear, nn.GELU, nn.LayerNorm, nn.Dropout] * (layers - 1)
    assert head(torch.randn(2, 5, 8)).shape == (2, 5)


def test_weights_come_from_the_seed_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    head = SealHead(8, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(weights(SealHead(8, seed=3)), weights(head))
    assert not torch.equal(weights(SealHead(8, seed=4)), weights(head))
    assert torch.equal(weights(SealHead(8, seed=3, dtype=torch.bfloat16)), weights(head).bfloat16().float())


def test_weights_after_a_meta_device():
    with torch.device("meta"):
        head = SealHead(8, seed=3)
    assert all(p.is_meta for p in head.parameters())
    head = head.to_empty(device="cpu")
    head.reset_parameters()
    assert torch.equal(weights(head), weights(SealHead(8, seed=3)))


def test_initial_scale_is_torchs():
    weight, expected = SealHead(64).body.linear_0.weight.detach(), nn.Linear(64, 64).weight.detach()
    assert float(weight.std()) == pytest.approx(float(expected.std()), rel=0.1)
    assert weight.abs().max() <= 1 / 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_logits_are_fp32_and_the_gradient_reaches_the_hidden_states(dtype, autocast):
    head = SealHead(16, dtype=dtype).eval()
    hidden = torch.randn(3, 16, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = head(hidden)
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert hidden.grad.abs().sum() > 0
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in head.parameters())


@pytest.mark.parametrize("gradient", [True, False])
def test_the_output_is_no_view(gradient):
    """FSDP hooks the outputs of its modules, and torch warns where one of them is a view."""
    with torch.set_grad_enabled(gradient):
        assert not SealHead(4, layers=2)(torch.randn(3, 4))._is_view()


def test_dropout_acts_in_training_only():
    head, hidden = SealHead(16, dropout=0.5), torch.randn(4, 16)
    assert not torch.equal(head(hidden), head(hidden))
    head.eval()
    assert torch.equal(head(hidden), head(hidden))


def test_head_learns_to_separate():
    head = SealHead(16, layers=3, dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(64) % 2
    hidden = torch.randn(64, 16, generator=generator) + label[:, None]
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(40):
        loss = nn.functional.binary_cross_entropy_with_logits(head(hidden), label.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert ((head(hidden) > 0) == label.bool()).float().mean() > 0.95


@pytest.mark.parametrize("settings", [{"hidden_size": 0}, {"hidden_size": 4, "layers": 0}])
def test_wrong_sizes(settings):
    with pytest.raises(ValueError, match="both must be >= 1"):
        SealHead(**settings)
