# SPDX-License-Identifier: Apache-2.0
"""Our numerics against verl's own functions, bit for bit where that is promised."""

import pytest
import torch
from episodes import lay_out, make_episodes

from verl_entropy.batch.numerics import AGGREGATIONS, aggregate, log_probs_and_entropy
from verl_entropy.methods.estimators.gigpo import gigpo
from verl_entropy.methods.estimators.loop import loop

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
verl_F = pytest.importorskip("verl.utils.torch_functional")

SIZES = [(1, 5), (7, 33), (64, 1000), (3, 40_000)]


@pytest.fixture(autouse=True)
def one_thread():
    """With more threads torch adds up a long vector in another order than a row of a matrix."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(tokens, vocab, scale=4.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(tokens * vocab)
    logits = (torch.randn(tokens, vocab, generator=generator) * scale + 3.0).to(dtype)
    return logits, torch.randint(0, vocab, (tokens,), generator=generator)


@pytest.mark.parametrize("tokens, vocab", SIZES)
@pytest.mark.parametrize("chunk_tokens", [None, 1, 5])
@pytest.mark.parametrize("temperature", [None, 0.7])
def test_fp32_values_are_verls_bit_for_bit(tokens, vocab, chunk_tokens, temperature):
    logits, labels = problem(tokens, vocab)
    log_probs, entropy = log_probs_and_entropy(logits, labels, temperature, chunk_tokens)
    scaled = logits if temperature is None else logits / temperature
    assert torch.equal(log_probs, verl_F.logprobs_from_logits_v2(scaled, labels))
    assert torch.equal(entropy, verl_F.entropy_from_logits(scaled))


@pytest.mark.parametrize("tokens, vocab", SIZES)
@pytest.mark.parametrize("with_zero_entropy_gradient", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fp32_log_prob_gradient_is_verls_bit_for_bit(tokens, vocab, with_zero_entropy_gradient, temperature):
    logits, labels = problem(tokens, vocab)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    upstream = torch.randn(tokens, generator=torch.Generator().manual_seed(1))
    log_probs, entropy = log_probs_and_entropy(ours, labels, temperature)
    ((log_probs * upstream).sum() + 0.0 * entropy.sum() * with_zero_entropy_gradient).backward()
    (verl_F.logprobs_from_logits_v2(theirs / temperature, labels) * upstream).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("tokens, vocab", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_of_both_is_closer_to_fp64_than_autograd_of_verls(tokens, vocab, temperature):
    logits, labels = problem(tokens, vocab)
    a, b = torch.randn(2, tokens, generator=torch.Generator().manual_seed(2))

    def gradient(function, x):
        x = x.clone().requires_grad_()
        log_probs, entropy = function(x)
        ((log_probs * a).sum() + (entropy * b).sum()).backward()
        return x.grad.double()

    def ours(x):
        return log_probs_and_entropy(x, labels, temperature)

    def verls(x):
        z = x / temperature
        return verl_F.logprobs_from_logits_v2(z, labels), verl_F.entropy_from_logits(z)

    exact = gradient(verls, logits.double())
    ours_error, verls_error = ((gradient(f, logits) - exact).abs().max() for f in (ours, verls))
    assert ours_error < 5e-6 and ours_error <= verls_error + 5e-7
    torch.testing.assert_close(gradient(ours, logits.double()), exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize("mode", [mode for mode in AGGREGATIONS if mode != "nested-mean"])
@pytest.mark.parametrize("dp_size", [1, 4])
def test_aggregate_is_verls_agg_loss(mode, dp_size):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(9, 12, generator=generator) < 0.5
    mask[3] = False
    x = torch.randn(9, 12, generator=generator)
    counts = {"dp_size": dp_size, "batch_num_tokens": 140, "global_batch_size": 21, "loss_scale_factor": 12}
    theirs = core_algos.agg_loss(x, mask.float(), mode, **counts)
    ours = aggregate(x, mask, mode, num_tokens=140, num_rows=21, dp_size=dp_size, scale_factor=12)
    torch.testing.assert_close(ours, theirs, atol=0, rtol=2e-7)


@pytest.mark.parametrize("seed", range(3))
def test_one_turn_episodes_reproduce_verls_grpo_and_rloo(seed):
    episodes = make_episodes(seed, groups=6, most_turns=1)
    batch = lay_out(episodes, "step-wise")
    turns, mask = batch.turns(), batch.mask.float()
    rewards = torch.zeros_like(batch.entropy)
    rewards[:, 0] = batch.rows["score_R"]  # every response has a first token
    groups = batch.rows["group_R"]
    for ours, theirs in (
        (gigpo(turns, omega=0.0, singleton="raw")[0], core_algos.compute_grpo_outcome_advantage),
        (loop(turns, singleton="raw")[0], core_algos.compute_rloo_outcome_advantage),
    ):
        torch.testing.assert_close(turns.to_tokens(ours), theirs(rewards, mask, groups)[0], atol=2e-5, rtol=1e-5)
