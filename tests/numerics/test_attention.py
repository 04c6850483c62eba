# SPDX-License-Identifier: Apache-2.0
"""``attn_implementation=varlen``: packed rows give the values and gradients of each row alone under sdpa, or a clear error.

The flash kernel itself is compared in ``tests/engine/test_attention_cuda.py``.
"""

import gc
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen2MoeConfig  # noqa: E402

from verl_entropy.upstream import varlen as attention  # noqa: E402

LENGTHS = (5, 1, 9, 3)
SIZES = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama, equal heads": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, window": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1),
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    attention.register()


def network(config, implementation, **settings):
    config = type(config)(**{**config.to_dict(), **settings})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=implementation)


def packed(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 40, (1, sum(lengths)), generator=generator)
    return {"input_ids": ids, "position_ids": torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)}


def padded(batch, lengths=LENGTHS):
    rows = batch["input_ids"][0].split(lengths)
    pad = torch.nn.utils.rnn.pad_sequence
    return {"input_ids": pad(rows, True), "attention_mask": pad([torch.ones_like(r) for r in rows], True)}


def gradients(model, logits_NV):
    weight = torch.linspace(-1, 1, logits_NV.numel()).view_as(logits_NV)
    model.zero_grad()
    (logits_NV.log_softmax(-1) * weight).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-4)


def by_row(model, batch, lengths=LENGTHS):
    """Logits of each row alone, end to end."""
    return torch.cat([model(input_ids=row.unsqueeze(0)).logits[0] for row in batch["input_ids"][0].split(lengths)])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_are_each_row_alone(name, checkpointing):
    config, batch = CONFIGS[name], packed()
    reference, model = network(config, "sdpa"), network(config, "varlen")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    expected, got = by_row(reference, batch), model(**batch, attention_mask=None, use_cache=False).logits[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    close(gradients(model, got), gradients(reference, expected))


@pytest.mark.parametrize("name", CONFIGS)
def test_padded_rows_are_sdpas(name):
    batch = padded(packed())
    expected = network(CONFIGS[name], "sdpa")(**batch).logits
    assert torch.equal(network(CONFIGS[name], "varlen")(**batch).logits, expected)


def test_generation_is_sdpas():
    ids = packed((6,))["input_ids"]
    runs = [network(CONFIGS["llama"], a).generate(ids, max_new_tokens=6, do_sample=False) for a in ("sdpa", "varlen")]
    assert torch.equal(*runs) and runs[0].shape[1] > 6


def test_rows_are_read_once_for_all_layers_and_the_recomputation(monkeypatch):
    reads = []
    read = attention._read
    monkeypatch.setattr(attention, "_read", lambda *a: reads.append(a) or read(*a))
    model = network(CONFIGS["llama"], "varlen", num_hidden_layers=4).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    gradients(model, model(**packed(), use_cache=False).logits[0])
    assert len(reads) == 1


def test_rows_are_forgotten_with_their_positions_and_read_again_when_these_change():
    positions = packed()["position_ids"]
    before = len(attention._rows)
    assert attention.rows_of(positions).longest == max(LENGTHS)
    positions.copy_(torch.arange(sum(LENGTHS)))
    assert attention.rows_of(positions).longest == sum(LENGTHS)
    assert len(attention._rows) == before + 1
    del positions
    gc.collect()
    assert len(attention._rows) == before
    with torch.inference_mode():
        assert attention.rows_of(packed()["position_ids"]).starts.tolist() == [0, 5, 6, 15, 18]


def test_autocast_computes_in_its_dtype():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer, inputs = layer_inputs()
        out, _ = attention.varlen_attention(layer, *inputs, None, position_ids=packed()["position_ids"])
    assert out.dtype == torch.bfloat16


def layer_inputs(heads=6, groups=3, width=8, tokens=sum(LENGTHS)):
    torch.manual_seed(0)
    inputs = [torch.randn(1, n, tokens, width) for n in (heads, heads // groups, heads // groups)]
    return types.SimpleNamespace(is_causal=True, num_key_value_groups=groups), inputs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dropout": 0.1}, "attention_dropout=0.0"),
        ({"softcap": 50.0}, "soft capping"),
        ({"s_aux": torch.zeros(6)}, "attention sinks"),
        ({"position_ids": None}, "gives none"),
        ({"position_ids": torch.zeros(3, 1, sum(LENGTHS))}, r"gives shape \(3, 1, 18\)"),
        ({"position_ids": torch.arange(7, 7 + sum(LENGTHS)).unsqueeze(0)}, "jumps to 7"),
        ({"sliding_window": 4}, "sliding_window=4"),
    ],
)
def test_what_it_cannot_do_is_refused(change, message):
    layer, inputs = layer_inputs()
    with pytest.raises(ValueError, match=message):
        attention.varlen_attention(layer, *inputs, None, **{"position_ids": packed()["position_ids"], **change})


def test_a_window_that_only_the_mask_knows_is_refused():
    """Qwen2-MoE's layers do not hand their window on to the attention."""
    config = Qwen2MoeConfig(**SIZES, use_sliding_window=True, sliding_window=4, num_experts=2, decoder_sparse_step=9)
    with pytest.raises(ValueError, match="local to 4 tokens"):
        network(config, "varlen")(**packed(), use_cache=False)


def test_blocks_that_see_both_ways_keep_their_mask():
    from transformers.masking_utils import create_causal_mask

    model = network(CONFIGS["llama"], "varlen")
    blocks = torch.full((1, sum(LENGTHS)), -1).index_fill(1, torch.tensor([1, 2]), 0)
    arguments = {"inputs_embeds": torch.zeros(1, sum(LENGTHS), 24), "attention_mask": None, "past_key_values": None}
    assert create_causal_mask(model.config, **arguments, position_ids=packed()["position_ids"]) is None
    mask = create_causal_mask(model.config, **arguments, position_ids=packed()["position_ids"], block_sequence_ids=blocks)
    assert mask[0, 0, 1, 2] and not mask[0, 0, 2, 3]


def test_shared_sequences_are_refused(monkeypatch):
    monkeypatch.setattr(attention, "shards", lambda: 2)
    with pytest.raises(ValueError, match="ulysses_sequence_parallel_size=2"):
        network(CONFIGS["llama"], "varlen")(**packed(), use_cache=False)


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(attention, "TORCH", (2, 9))
    with pytest.raises(ValueError, match=r"needs torch >= 2\.10"):
        attention.check_torch()


@pytest.mark.skipif(attention.TORCH < attention.FIRST_TORCH, reason="varlen_attn came with torch 2.10")
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("window", [None, 4])
def test_the_installed_torch_takes_the_call(groups, window):
    """On the meta device: the signature of varlen_attn, the shapes and the gradient's shapes, without a card."""
    if window is not None and attention.TORCH < attention.SCALE_AND_WINDOW:
        pytest.skip("needs torch 2.11")
    _, inputs = layer_inputs(groups=groups)
    q, k, v = (x[0].transpose(0, 1).to("meta", torch.bfloat16).requires_grad_() for x in inputs)
    rows = attention.Rows(torch.empty(5, dtype=torch.int32, device="meta"), 9, 0, sum(LENGTHS))
    out = attention.flash(q, k, v, rows, 8**-0.5, window)
    out.sum().backward()
    assert out.shape == q.shape and k.grad.shape == k.shape


def test_a_taken_name_stays(monkeypatch, capsys):
    from verl_entropy.upstream import varlen_hooks as glue

    monkeypatch.setattr(attention, "register", lambda: pytest.fail("registered over it"))
    glue.register(types.SimpleNamespace(ALL_ATTENTION_FUNCTIONS={"varlen": by_row}))
    assert "is taken by" in capsys.readouterr().err


def test_verls_configuration_does_not_keep_the_name():
    verl_model = pytest.importorskip("verl.utils.model")
    from transformers import AutoConfig

    from verl_entropy.hosts.install import activate

    activate.install()

    config = AutoConfig.for_model("llama", **SIZES, attn_implementation="varlen")
    verl_model.update_model_config(config, {"attn_implementation": "varlen", "attention_dropout": 0.25})
    assert config._attn_implementation == "varlen" and config.attention_dropout == 0.25
    assert "varlen" not in config.to_json_string()
    verl_model.update_model_config(config, {"attn_implementation": "sdpa"})  # verl's own way is left as it is
    assert config.attn_implementation == "sdpa"


def test_verls_value_model_takes_the_implementation(tmp_path):
    verl_model = pytest.importorskip("verl.utils.model")
    from verl_entropy.hosts.install import activate

    activate.install()
    network(CONFIGS["llama"], "sdpa").save_pretrained(tmp_path)
    config = LlamaConfig.from_pretrained(tmp_path, attn_implementation="varlen", num_labels=1)
    model = verl_model.load_valuehead_model(str(tmp_path), torch.float32, config, False)
    batch = packed()
    torch.testing.assert_close(model(**batch, use_cache=False).logits[0], by_row(model, batch), atol=1e-5, rtol=1e-5)
