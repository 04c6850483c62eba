# SPDX-License-Identifier: Apache-2.0
"""Logits at the tokens before response tokens only: which models can, where those tokens are, and what a model may answer."""

import types

import pytest
import torch

pytest.importorskip("verl")

from verl_entropy.hosts.verl_engine.predicting import Predicting, keeps_logits, response_positions

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "granite",
    "olmo2",
    "smollm3",
]


@pytest.mark.parametrize("kind", MODELS)
def test_models_give_the_asked_rows_of_their_logits(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES)).eval()
    assert keeps_logits(model)
    ids, where_N = torch.randint(3, 64, (1, 12)), torch.tensor([3, 4, 5, 9])
    with torch.no_grad():
        every, asked = model(ids).logits, model(ids, logits_to_keep=where_N).logits
    torch.testing.assert_close(asked, every[:, where_N])


def test_a_forward_that_takes_no_tensor_gives_all_logits():
    from transformers import FuyuForCausalLM
    from verl.models.transformers.qwen2_vl import forward_with_normal_backend

    for forward in (FuyuForCausalLM.forward, forward_with_normal_backend, lambda input_ids, logits_to_keep=0: None):
        assert not keeps_logits(types.SimpleNamespace(forward=forward))


@pytest.mark.parametrize("tokens", [None, [0, 2]])
def test_rows_of_what_the_model_answers(tokens):
    """The asked rows, or all of them from a model that ignores the request; anything else is refused."""
    where_N, logits = torch.tensor([1, 2, 5]), torch.randn(1, 8, 7)
    token_N = None if tokens is None else torch.tensor(tokens)
    expected = logits[0, where_N] if tokens is None else logits[0, where_N[tokens]]
    asked = Predicting(where_N, where_N, 8, True)
    assert torch.equal(asked.logits(logits[:, where_N], token_N), expected)
    assert torch.equal(asked.logits(logits, token_N), expected)
    assert torch.equal(Predicting(where_N, where_N, 8, False).logits(logits, token_N), expected)
    with pytest.raises(ValueError, match=r"logits of 4 tokens, expected 3 .* or 8"):
        asked.logits(logits[:, :4], token_N)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shift", [-1, 0])
def test_positions_of_all_response_tokens(packed, shift):
    """Also with a row whose response is empty."""
    prompts, responses = (3, 1, 4, 2), (5, 2, 0, 1)
    columns = {
        name: torch.nested.as_nested_tensor([torch.zeros(n) for n in lengths], layout=torch.jagged)
        for name, lengths in (("prompts", prompts), ("responses", responses))
    }
    width = max(p + r for p, r in zip(prompts, responses, strict=True))
    expected, start = [], 0
    for p, r in zip(prompts, responses, strict=True):
        expected += [start + p + t + shift for t in range(r)]
        start += p + r if packed else width
    assert response_positions(columns, packed, shift).tolist() == expected
