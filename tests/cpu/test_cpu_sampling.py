# SPDX-License-Identifier: Apache-2.0
"""The sampling loop of the hf rollout, against transformers and against one full forward pass."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import tiny_llama as tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from verl_entropy.cpu.sampling import (
    UNIFORMS_PER_DRAW,
    Request,
    SamplingParams,
    apply_repetition_penalty,
    draw,
    generate,
    truncate,
)

RANDOM = random.Random(0)
PROMPTS = [[RANDOM.randrange(6, tiny.VOCABULARY) for _ in range(RANDOM.randrange(1, 40))] for _ in range(16)]


def requests(prompts=PROMPTS, **params):
    params = {"max_tokens": 12, **params}
    return [Request(prompt, SamplingParams(**params), (7, i)) for i, prompt in enumerate(prompts)]


def complete(model, batch, **kwargs):
    return generate(model, batch, pad_id=tiny.PAD, eos_ids=[tiny.EOS], **kwargs)


def full_logits(model, prompt, tokens):
    """Logits of every new token from one forward pass without padding and cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()


def test_greedy_equals_transformers(model):
    expected = [model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False)[0, len(p) :].tolist() for p in PROMPTS]
    found = [c.token_ids for c in complete(model, requests(temperature=0.0))]
    assert found == expected
    assert len({len(tokens) for tokens in found}) > 1  # rows left the batch at different times


def test_repetition_penalty_equals_transformers(model):
    expected = [
        model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, repetition_penalty=1.7)[0, len(p) :].tolist()
        for p in PROMPTS
    ]
    assert [c.token_ids for c in complete(model, requests(temperature=0.0, repetition_penalty=1.7))] == expected
    scores = torch.randn(3, tiny.VOCABULARY)
    ids = torch.randint(0, tiny.VOCABULARY, (3, 9))
    seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, ids, True)
    ours = apply_repetition_penalty(scores, seen, torch.full((3,), 1.3))
    torch.testing.assert_close(ours, RepetitionPenaltyLogitsProcessor(1.3)(ids, scores.clone()), rtol=0, atol=0)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5])
def test_log_probs_are_those_of_a_full_forward(model, temperature):
    for prompt, completion in zip(PROMPTS, complete(model, requests(temperature=temperature)), strict=True):
        logits = full_logits(model, prompt, completion.token_ids) / temperature
        expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.token_ids).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(torch.tensor(completion.log_probs), expected, rtol=0, atol=1e-5)


def test_log_probs_modes_under_truncation(model):
    """processed: of the distribution that was drawn from; raw: of the model's own logits."""
    batch = requests(temperature=0.7, top_k=5, top_p=0.9)
    processed, raw = (complete(model, batch, logprobs_mode=mode) for mode in ("processed_logprobs", "raw_logprobs"))
    for prompt, a, b in zip(PROMPTS, processed, raw, strict=True):
        assert a.token_ids == b.token_ids
        logits = full_logits(model, prompt, a.token_ids)
        chosen = torch.tensor(a.token_ids).unsqueeze(1)
        warped = TopPLogitsWarper(0.9)(None, TopKLogitsWarper(5)(None, logits / 0.7))
        for expected, found in ((warped, a.log_probs), (logits, b.log_probs)):
            expected = expected.log_softmax(-1).gather(1, chosen).squeeze(1)
            torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(-1, 1.0), (1, 1.0), (7, 1.0), (500, 1.0), (-1, 0.3), (-1, 0.95), (9, 0.5), (-1, 1e-6)],
)
def test_truncation_equals_transformers(top_k, top_p):
    torch.manual_seed(0)
    logits = torch.randn(32, 50) * 3
    expected = logits.clone()
    if top_k > 0:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    # In a batch where every row has other settings.
    k = torch.tensor([top_k, -1]).repeat(16)
    p = torch.tensor([top_p, 1.0]).repeat(16)
    found = truncate(logits, k, p)
    torch.testing.assert_close(found[::2], expected[::2], rtol=0, atol=0)
    torch.testing.assert_close(found[1::2], logits[1::2], rtol=0, atol=0)


def test_draw_inverts_the_cumulative_distribution():
    log_probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log()
    for uniform, token in ((0.0, 1), (0.2499, 1), (0.2501, 3), (0.7499, 3), (0.7501, 4), (1.0 - 2**-53, 4)):
        assert draw(log_probs, torch.tensor([uniform], dtype=torch.float64)).item() == token
    torch.manual_seed(0)
    logits = torch.randn(1, 8)
    tokens = draw(logits.log_softmax(-1).expand(50_000, 8), torch.rand(50_000, dtype=torch.float64))
    frequency = torch.bincount(tokens, minlength=8) / 50_000
    torch.testing.assert_close(frequency, logits.softmax(-1)[0], rtol=0, atol=0.01)  # 4 sigma of the largest is 0.009


def test_limits_and_stops_are_per_request(model):
    base = complete(model, requests(max_tokens=12))
    stop = [c.token_ids[min(3, len(c.token_ids) - 1)] for c in base]
    batch = [
        Request(p, SamplingParams(max_tokens=1 + i % 12, stop_token_ids=(stop[i],) if i % 2 else ()), (7, i))
        for i, p in enumerate(PROMPTS)
    ]
    for i, (was, now) in enumerate(zip(base, complete(model, batch), strict=True)):
        expected = was.token_ids[: 1 + i % 12]
        if i % 2 and stop[i] in expected:
            expected = expected[: expected.index(stop[i]) + 1]
        assert now.token_ids == expected
        assert len(now.log_probs) == len(expected) and not now.aborted


def test_end_of_sequence_can_be_ignored(model):
    stopped, ignored = (complete(model, requests(ignore_eos=flag, max_tokens=40)) for flag in (False, True))
    early = [c for c in stopped if len(c.token_ids) < 40]
    assert early and all(c.token_ids[-1] == tiny.EOS and tiny.EOS not in c.token_ids[:-1] for c in early)
    assert all(len(c.token_ids) == 40 for c in ignored)


def test_positions_are_those_of_the_unpadded_prompt():
    """Learned absolute positions, unlike rotary ones, see padding that is counted; none beyond the last exists."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tiny.VOCABULARY,
        n_positions=48,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=2,
        eos_token_id=5,
        initializer_range=0.3,
    )
    gpt2 = GPT2LMHeadModel(config).eval()
    # The longest row fills the context and ends long before the others.
    limits = [48 - len(p) if len(p) == max(map(len, PROMPTS)) else 12 for p in PROMPTS]
    batch = [Request(p, SamplingParams(max_tokens=n, temperature=0.0), (7,)) for p, n in zip(PROMPTS, limits, strict=True)]
    expected = [
        gpt2.generate(torch.tensor([p]), max_new_tokens=n, do_sample=False)[0, len(p) :].tolist()
        for p, n in zip(PROMPTS, limits, strict=True)
    ]
    assert [c.token_ids for c in complete(gpt2, batch)] == expected


MIXED = [
    {"temperature": (0.0, 0.5, 1.0, 2.0)[i % 4], "top_k": (-1, 4)[i // 2 % 2], "top_p": (1.0, 0.8)[i // 4 % 2]}
    | {"repetition_penalty": (1.0, 1.5)[i // 8 % 2], "max_tokens": 5 + 2 * i}
    for i in range(len(PROMPTS))
]


def test_a_request_does_not_depend_on_its_batch(model):
    """Neither order nor neighbours with other settings make a difference; another stream does."""
    batch = [Request(p, SamplingParams(**settings), (7, i)) for i, (p, settings) in enumerate(zip(PROMPTS, MIXED, strict=True))]
    together = complete(model, batch)
    order = list(range(len(batch)))
    random.Random(1).shuffle(order)
    shuffled = complete(model, [batch[i] for i in order])
    assert [shuffled[order.index(i)].token_ids for i in range(len(batch))] == [c.token_ids for c in together]
    for alone, completion in zip([complete(model, [request])[0] for request in batch], together, strict=True):
        assert alone.token_ids == completion.token_ids
        torch.testing.assert_close(torch.tensor(alone.log_probs), torch.tensor(completion.log_probs), rtol=0, atol=1e-5)
    other = complete(model, [Request(r.prompt_ids, r.params, (8, i)) for i, r in enumerate(batch)])
    assert [a.token_ids == b.token_ids for a, b in zip(together, other, strict=True)] == [r.params.greedy for r in batch]


def test_a_token_is_the_inverse_of_the_cumulative_distribution_at_its_uniform(model):
    """Token t of a request uses number t of its own stream, also after other rows left and past the first block."""
    steps = UNIFORMS_PER_DRAW + 12
    limits = [5, 9, steps, 20, steps, 40]
    batch = [
        Request(p, SamplingParams(max_tokens=n, ignore_eos=True), (3, i))
        for i, (p, n) in enumerate(zip(PROMPTS, limits, strict=False))
    ]
    for request, completion in zip(batch, complete(model, batch), strict=True):
        tokens = torch.tensor(completion.token_ids)
        uniform = torch.from_numpy(np.random.default_rng(request.stream).random(len(tokens)))
        probs = full_logits(model, request.prompt_ids, completion.token_ids).double().softmax(-1)
        upper = probs.cumsum(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        lower = upper - probs.gather(1, tokens.unsqueeze(1)).squeeze(1)
        assert len(tokens) == request.params.max_tokens
        assert ((lower - 1e-5 <= uniform) & (uniform <= upper + 1e-5)).all()


def test_abort_returns_what_there_is(model):
    whole = complete(model, requests())
    calls = iter(range(100))
    cut = complete(model, requests(), aborted=lambda: next(calls) == 4)
    for was, now in zip(whole, cut, strict=True):
        assert now.token_ids == was.token_ids[:4]
        assert now.aborted == (len(was.token_ids) > 4)


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"temperature": 1.0, "min_p": 0.1}, ["min_p=0.1", "allowed", "top_p"]),
        ({"top_p": 0.0}, ["top_p=0.0"]),
        ({"top_k": -2}, ["top_k=-2"]),
        ({"repetition_penalty": 0.0}, ["repetition_penalty=0.0"]),
        ({"seed": -1}, ["seed=-1"]),
    ],
)
def test_bad_parameters_are_refused_by_name(params, names):
    with pytest.raises(ValueError) as error:
        SamplingParams.from_request(params, default_max_tokens=4, limit=8)
    assert all(name in str(error.value) for name in names)


def test_parameters_are_read_as_verl_sends_them():
    params = {
        "temperature": 0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "stop": None,
    }
    read = SamplingParams.from_request(params, default_max_tokens=4, limit=8, ignore_eos=True)
    assert read == SamplingParams(max_tokens=4, temperature=0, logprobs=True, ignore_eos=True)
    for given, expected in (
        ({"max_tokens": 3}, 3),
        ({"max_new_tokens": 5}, 5),
        ({"max_tokens": 99}, 8),
        ({"max_tokens": 0}, 1),
    ):
        assert SamplingParams.from_request(given, default_max_tokens=4, limit=8).max_tokens == expected


def test_a_round_of_64_requests_is_fast():
    """0.25 M parameters, 64 prompts of about 100 tokens, 8 new tokens, one thread: about 0.2 s on a free
    core.
    """
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    ).eval()
    prompts = [[RANDOM.randrange(6, 256) for _ in range(RANDOM.randrange(80, 120))] for _ in range(64)]
    complete(model, requests(prompts[:2]))
    start = time.process_time()
    complete(model, requests(prompts, max_tokens=8))
    assert time.process_time() - start < 2.0  # CPU time, and slack for a slow or shared core


def test_log_probs_of_the_most_likely_words(model):
    """Those of one full forward pass, for every row that asked; the tokens drawn are the same as without."""
    found = complete(model, requests(top_logprobs=5))
    assert [c.token_ids for c in found] == [c.token_ids for c in complete(model, requests())]
    for prompt, completion in zip(PROMPTS, found, strict=True):
        wanted = full_logits(model, prompt, completion.token_ids).log_softmax(-1).topk(5).values
        torch.testing.assert_close(torch.tensor(completion.top_log_probs), wanted, atol=1e-4, rtol=1e-4)
    assert complete(model, requests())[0].top_log_probs is None
