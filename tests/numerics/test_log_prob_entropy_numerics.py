# SPDX-License-Identifier: Apache-2.0
"""Precision, autocast, banned words, memory and gradients of the chunked log-probability and entropy pass."""

import pytest
import torch

from verl_entropy.batch.numerics import log_probs_and_entropy

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def problem(tokens=6, vocab=50, dtype=torch.float32, offset=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(tokens, vocab, generator=generator) * 3 + offset).to(dtype)
    return logits, torch.randint(0, vocab, (tokens,), generator=generator)


def exact(logits, labels, temperature=1.0):
    log_p = (logits.double() / temperature).log_softmax(-1)
    weighted = torch.where(log_p == -torch.inf, 0.0, log_p.exp() * log_p)
    return log_p.gather(-1, labels[:, None]).squeeze(-1), -weighted.sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 50.0, -100.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_logits_are_within_1e4_nats_of_fp64(dtype, offset, autocast):
    logits, labels = problem(16, 151_936, dtype, offset)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        log_probs, entropy = log_probs_and_entropy(logits, labels)
    expected_log_probs, expected_entropy = exact(logits, labels)
    assert log_probs.dtype == entropy.dtype == torch.float32
    assert (log_probs - expected_log_probs).abs().max() < 1e-4
    assert (entropy - expected_entropy).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_no_bit(dtype):
    results = []
    for enabled in (False, True):
        logits, labels = problem(dtype=dtype)
        logits.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            log_probs, entropy = log_probs_and_entropy(logits, labels, temperature=0.8)
            (log_probs.sum() + entropy.sum()).backward()
        results.append((log_probs.detach(), entropy.detach(), logits.grad))
    assert all(torch.equal(plain, cast) for plain, cast in zip(*results, strict=True))
    assert results[0][2].dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_change_no_bit(dtype):
    results = []
    for chunk_tokens in (None, 1, 4, 100):
        logits, labels = problem(7, 1000, dtype)
        logits.requires_grad_()
        log_probs, entropy = log_probs_and_entropy(logits, labels, chunk_tokens=chunk_tokens)
        (log_probs - 2 * entropy).sum().backward()
        results.append((log_probs.detach(), entropy.detach(), logits.grad))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("temperature", [None, 0.7, torch.tensor([0.5, 1.0, 2.0]), torch.tensor([[0.5], [1.0], [2.0]])])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_gradcheck(temperature, with_entropy):
    logits, labels = problem(3, 5, torch.float64)

    def function(x):
        log_probs, entropy = log_probs_and_entropy(x, labels, temperature, chunk_tokens=2, with_entropy=with_entropy)
        return (log_probs, entropy) if with_entropy else log_probs

    assert torch.autograd.gradcheck(function, logits.requires_grad_())


def test_temperature_per_row_and_leading_dimensions():
    logits, labels = problem(6, 9)
    temperature = torch.tensor([[0.5], [2.0]])  # one per row of a (2, 3, V) batch
    log_probs, entropy = log_probs_and_entropy(logits.view(2, 3, 9), labels.view(2, 3), temperature)
    assert log_probs.shape == entropy.shape == (2, 3)
    for row, value in enumerate((0.5, 2.0)):
        expected = exact(logits[3 * row : 3 * row + 3], labels[3 * row : 3 * row + 3], value)
        torch.testing.assert_close((log_probs[row].double(), entropy[row].double()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("which", ["log_probs", "entropy", "both"])
def test_banned_words_give_finite_values_and_gradients(dtype, which):
    logits, labels = problem(4, 10, dtype)
    labels[:] = 0
    logits[0, 3:] = -torch.inf  # some words
    logits[1, 1:] = -torch.inf  # all but the label
    logits[2] = -torch.inf  # every word
    logits.requires_grad_()
    log_probs, entropy = log_probs_and_entropy(logits, labels)
    expected = exact(logits.detach()[[0, 1, 3]], labels[[0, 1, 3]])
    torch.testing.assert_close(entropy[[0, 1, 3]].double(), expected[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(log_probs[[0, 1, 3]].double(), expected[0], atol=1e-5, rtol=0)
    assert entropy[2] == 0 and log_probs[2] == -torch.inf
    terms = {"log_probs": log_probs, "entropy": entropy, "both": log_probs + entropy}
    terms[which].sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[0, 3:].any()


def test_banned_label_is_minus_infinity_with_a_finite_gradient():
    logits = torch.tensor([[1.0, -torch.inf, 0.0]], requires_grad=True)
    log_probs, _ = log_probs_and_entropy(logits, torch.tensor([1]))
    assert log_probs.item() == -torch.inf
    log_probs.backward()
    assert torch.isfinite(logits.grad).all()


def test_peaked_and_flat_rows():
    logits = torch.zeros(2, 1000)
    logits[0, 7] = 80.0
    logits.requires_grad_()
    _, entropy = log_probs_and_entropy(logits, torch.tensor([7, 7]))
    torch.testing.assert_close(entropy, torch.tensor([0.0, 1000.0]).clamp(min=1).log(), atol=1e-5, rtol=0)
    entropy.sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros_like(logits), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_keeps_the_logits_and_vectors_only(dtype):
    logits, labels = problem(64, 500, dtype)
    logits.requires_grad_()
    kept = {}

    def pack(x):
        kept[x.data_ptr()] = x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        log_probs_and_entropy(logits, labels, torch.full((64,), 0.9))
    assert kept.pop(logits.data_ptr()) == logits.numel() * logits.element_size()
    assert sum(kept.values()) <= 64 * (8 + 4 + 4)  # labels, logsumexp, temperature


def test_no_rows():
    logits = torch.zeros(0, 5, requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.zeros(0, dtype=torch.long))
    assert log_probs.shape == entropy.shape == (0,)
    (log_probs.sum() + entropy.sum()).backward()
    assert logits.grad.shape == (0, 5)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"temperature": 0.0}, "temperature=0.0: must be > 0"),
        ({"chunk_tokens": 0}, "chunk_tokens=0: must be >= 1"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, r"labels has shape \(3,\), expected \(2,\)"),
    ],
)
def test_wrong_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        log_probs_and_entropy(**{"logits": torch.zeros(2, 4), "labels": torch.zeros(2, dtype=torch.long), **changes})


@pytest.mark.parametrize(("dtype", "offset"), [(torch.bfloat16, 4000.0), (torch.float16, 4000.0), (torch.bfloat16, 1e7)])
def test_large_half_precision_logits_are_within_1e4_nats_of_fp64(dtype, offset):
    logits, labels = problem(16, 1000, dtype, offset)
    log_probs, entropy = log_probs_and_entropy(logits, labels, chunk_tokens=8)
    expected_log_probs, expected_entropy = exact(logits, labels)
    assert (log_probs - expected_log_probs).abs().max() < 1e-4 and (entropy - expected_entropy).abs().max() < 1e-4


def test_two_tied_logits_of_1e7_have_probability_one_half():
    log_probs, _ = log_probs_and_entropy(torch.tensor([[1e7, 1e7]], dtype=torch.bfloat16), torch.tensor([0]))
    assert float(log_probs) == pytest.approx(-0.6931472, abs=1e-6)


def test_mean_and_std_of_millions_of_tokens():
    from verl_entropy.batch.packed import mean_and_std

    x = torch.rand(3_300_000, generator=torch.Generator().manual_seed(0)) * 5
    mean, std = mean_and_std(x, correction=1)
    assert mean == pytest.approx(float(x.double().mean()), rel=1e-7) and std == pytest.approx(float(x.double().std()), rel=1e-7)
