# SPDX-License-Identifier: Apache-2.0
"""The memory estimate against what torch really allocates on the CPU."""

import functools
import json

import pytest

from verl_entropy.config import memory

torch = pytest.importorskip("torch")
N, V = 512, 1024


def peak(function):
    """Result, bytes that stay, and the most at any moment, from the allocator's events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = function()
    events = [(e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for _, number in sorted(events):
        now += number
        most = max(most, now)
    return result, now, most


def measure(entropy, dtype, grad):
    """(kept, transient) beyond the logits and their gradient."""
    logits = torch.randn(N, V).to(dtype).requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        out, kept, most = peak(lambda: entropy(logits))
        transient = most - kept
        if grad:
            _, _, backward = peak(lambda: torch.autograd.grad(out.sum(), logits))
            transient = max(transient, backward - logits.nbytes)
    return kept, transient


def ours(logits, response, chunk):
    from verl_entropy.batch.numerics import log_probs_and_entropy

    labels = torch.zeros(response, dtype=torch.long)
    log_probs, entropy = log_probs_and_entropy(logits[torch.arange(response)], labels, chunk_tokens=chunk)
    return log_probs + entropy


def verls(logits, name):
    functional = pytest.importorskip("verl.utils.torch_functional")
    # CUDA's autocast runs softmax and logsumexp in fp32; on the CPU the cast is written out.
    eager = functools.partial(lambda x: functional.entropy_from_logits(x.float()))
    if name == "eager":
        return eager(logits)
    if name == "rows_chunked":
        return functional.entropy_from_logits_with_chunking(logits, chunk_size=64)
    return torch.utils.checkpoint.checkpoint(eager, logits, use_reentrant=False)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("path", ["chunked", "eager", "rows_chunked", "checkpointed"])
def test_kept_is_what_is_kept_and_transient_is_a_close_bound(path, dtype, grad):
    size = torch.tensor([], dtype=dtype).element_size()
    batch = memory.Batch(N, N, V, 64, size)
    if path == "chunked":
        kept, transient = measure(lambda x: ours(x, N, 32), dtype, grad)
        cost = memory.chunked(batch, grad, chunk_cells=32 * V)
    else:
        kept, transient = measure(lambda x: verls(x, path), dtype, grad)
        extra = {"rows": 64} if path == "rows_chunked" else {}
        cost = memory.PATHS[path][1](batch, grad, **extra)
    slack = 0.03 * N * V  # vectors of length N
    assert abs(kept - cost.kept) < slack
    assert transient < cost.transient + slack
    assert cost.transient < 2.2 * transient + slack


def test_our_pass_grows_with_the_response_tokens_only():
    kept, _ = measure(lambda x: ours(x, N // 4, 32), torch.bfloat16, True)
    assert abs(kept - memory.chunked(memory.Batch(N, N // 4, V, 64, 2), True).kept) < 0.03 * N * V


def test_the_chunk_and_the_head_are_those_of_the_code():
    from verl_entropy.batch import numerics
    from verl_entropy.methods.heads.seal import SealHead

    assert memory.CHUNK_CELLS == numerics.CHUNK_CELLS
    for layers in (1, 3):
        parameters = sum(p.numel() for p in SealHead(48, layers=layers).parameters())
        assert memory.head_bytes(48, layers) == 16 * parameters


def raw(**fsdp):
    model = {"use_remove_padding": fsdp.pop("packed", True), "use_fused_kernels": fsdp.pop("fused", False)}
    return {"actor_rollout_ref": {"model": model, "actor": {"fsdp_config": {"use_torch_compile": True, **fsdp}}}}


@pytest.mark.parametrize(
    ("setting", "log_probs", "flash", "path"),
    [
        ({}, "auto", True, "compiled"),
        ({}, "auto", False, "chunked"),
        ({}, "chunked", True, "chunked"),
        ({}, "verl", False, "compiled"),
        ({"packed": False}, "auto", True, "eager"),
        ({"use_torch_compile": False}, "auto", True, "eager"),
        ({"use_torch_compile": False, "entropy_from_logits_with_chunking": True}, "auto", True, "rows_chunked"),
        ({"use_torch_compile": False, "entropy_checkpointing": True}, "auto", True, "checkpointed"),
        ({"fused": True}, "auto", False, "fused_torch"),
    ],
)
def test_the_path_is_the_one_that_the_settings_select(setting, log_probs, flash, path):
    assert memory.path_of(raw(**setting), log_probs, flash) == path


def test_the_size_comes_from_the_options_else_from_the_models_config(tmp_path):
    assert memory.model_size(str(tmp_path), None, None) is None
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 100, "hidden_size": 8}}))
    assert (memory.model_size(str(tmp_path), None, None).vocab, memory.model_size(str(tmp_path), 7, None).vocab) == (100, 7)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="--vocab and --hidden"):
        memory.model_size(str(tmp_path), None, None)


@pytest.mark.parametrize(("packed", "shards", "rows"), [(True, 1, 100), (True, 2, 400), (False, 1, 400)])
def test_packed_rows_have_logits_of_response_tokens_only_in_our_pass(packed, shards, rows):
    config = raw(packed=packed, ulysses_sequence_parallel_size=shards)
    config["actor_rollout_ref"]["actor"]["ppo_micro_batch_size_per_gpu"] = 1
    config["data"] = {"max_prompt_length": 300, "max_response_length": 100}
    size = memory.Size(V, 64, "test")
    ours = memory.estimate(config, size, "chunked")["update"]
    assert ours["logits"] == 2 * rows * V and ours["kept"] == (0 if rows == 100 else 2 * 100 * V)
    assert memory.estimate(config, size, "verl")["update"]["logits"] == 2 * 400 * V
