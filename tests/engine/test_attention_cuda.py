# SPDX-License-Identifier: Apache-2.0
"""torch's flash kernel over packed rows on a card, against each row alone under sdpa.

Runs with VERL_ENTROPY_TEST_DEVICE=cuda (tests/gpu/run.sh).
"""

import pytest
import torch
from ranks import CUDA

from verl_entropy.upstream import varlen as attention

pytestmark = pytest.mark.skipif(not CUDA, reason="needs a GPU and VERL_ENTROPY_TEST_DEVICE=cuda")

LENGTHS = (37, 1, 300, 64, 5)
HEADS = {"grouped": (9, 3), "equal": (4, 4)}  # grouped: SmolLM2-135M's
WIDTH = 64
WINDOWS = [None, pytest.param(16, marks=pytest.mark.skipif(attention.TORCH < (2, 11), reason="needs torch 2.11"))]


def positions():
    return torch.cat([torch.arange(n) for n in LENGTHS]).unsqueeze(0).cuda()


def inputs(heads, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(LENGTHS), n, WIDTH) for n in (heads[0], heads[1], heads[1])]
    return [torch.randn(*s, generator=generator).cuda().to(dtype).requires_grad_() for s in shapes]


def by_row(query, key, value, window):
    """sdpa row by row."""
    out = []
    for q, k, v in zip(*(x.split(LENGTHS) for x in (query, key, value)), strict=True):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        at = torch.arange(len(q), device=q.device)
        back = at.unsqueeze(1) - at
        mask = (back >= 0) & (back < (window or len(q)))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1))
    return torch.cat(out)


def gradients(tensors, out):
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    return torch.autograd.grad((out.float() * weight).sum(), tensors)


def distance(a, b):
    """Relative error of ``a``."""
    return float((a.float() - b.float()).norm() / b.float().norm())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("dtype", attention.HALF, ids=["bf16", "fp16"])
def test_kernel_values_and_gradients(dtype, heads, window):
    """Against fp32 of the same values. One row more or less, of one token, would be 1 / sqrt(407) = 0.05."""
    tensors = inputs(heads, dtype)
    out = attention.flash(*tensors, attention.rows_of(positions()), WIDTH**-0.5, window)
    exact_tensors = [x.detach().float().requires_grad_() for x in tensors]
    exact = by_row(*exact_tensors, window)
    tolerance = 2 * torch.finfo(dtype).eps  # rounding to the dtype is a quarter of eps on average, here three times in a row
    assert out.dtype == dtype and distance(out, exact) < tolerance
    for got, expected in zip(gradients(tensors, out), gradients(exact_tensors, exact), strict=True):
        assert distance(got, expected) < tolerance


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_fp32_takes_the_rows_padded(heads, window):
    tensors = inputs(heads, torch.float32)
    out = attention.row_by_row(*tensors, attention.rows_of(positions()), WIDTH**-0.5, window)
    exact = by_row(*tensors, window)
    torch.testing.assert_close(out, exact, atol=1e-3, rtol=1e-3)
    for got, expected in zip(gradients(tensors, out), gradients(tensors, exact), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


def model(heads, implementation, dtype):
    from transformers import AutoModelForCausalLM, LlamaConfig

    attention.register()
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=heads[0] * WIDTH,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation).cuda().to(dtype)


def model_gradients(network, logits_NV):
    chosen = logits_NV.float().log_softmax(-1)[:, 7]
    network.zero_grad()
    (chosen * torch.linspace(-1, 1, len(chosen), device=chosen.device)).mean().backward()
    return torch.cat([p.grad.float().flatten() for p in network.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("way", ["bf16", "autocast"])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_model_in_bf16(heads, way, checkpointing, monkeypatch):
    """Logits and gradient are as near to fp32's as those of each row alone under sdpa, and the kernel computed every layer."""
    calls = []
    flash = attention.flash
    monkeypatch.setattr(attention, "flash", lambda *a: calls.append(a) or flash(*a))
    ids = torch.randint(512, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(2)).cuda()
    dtype = torch.bfloat16 if way == "bf16" else torch.float32

    def alone(network):
        return torch.cat([network(input_ids=row).logits[0] for row in ids.split(LENGTHS, dim=1)])

    exact = model(heads, "sdpa", torch.float32)
    exact_NV = alone(exact)
    exact_gradient = model_gradients(exact, exact_NV)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=way == "autocast"):
        sdpa, varlen = model(heads, "sdpa", dtype), model(heads, "varlen", dtype)
        sdpa_NV = alone(sdpa)
        if checkpointing:
            varlen.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        varlen_NV = varlen(input_ids=ids, attention_mask=None, position_ids=positions(), use_cache=False).logits[0]
    assert distance(varlen_NV, exact_NV) < 1.5 * distance(sdpa_NV, exact_NV)
    sdpa_gradient, varlen_gradient = model_gradients(sdpa, sdpa_NV), model_gradients(varlen, varlen_NV)
    assert distance(varlen_gradient, exact_gradient) < 1.5 * distance(sdpa_gradient, exact_gradient)
    assert len(calls) == (6 if checkpointing else 3)
