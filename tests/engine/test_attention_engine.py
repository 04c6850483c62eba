# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP engine with ``use_remove_padding=True`` and ``attn_implementation=varlen`` against padded rows and sdpa.

On a card (VERL_ENTROPY_TEST_DEVICE=cuda) also in bf16, which takes torch's flash kernel.
"""

import json

import pytest
import torch
from ranks import CUDA, run_ranks

PACKED = "packed=1-attn=varlen"
CASES = [
    f"fsdp-save-{PACKED}",
    f"fsdp2-save-{PACKED}",
    f"fsdp-full-{PACKED}-checkpointing=1",
    f"fsdp2-full-{PACKED}-checkpointing=1-budget=24",
    "fsdp2-full-attn=varlen",  # padded rows
]
EXACT = [f"{s}-full" for s in ("fsdp", "fsdp2")]
WAYS = ("packed=1-attn=sdpa", PACKED, f"{PACKED}-checkpointing=1")
BF16 = [f"{s}-full-{way}-dtype=bf16" for s in ("fsdp", "fsdp2") for way in WAYS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("attention")


@pytest.fixture(scope="module")
def runs(model, folder):
    return run_ranks(model, folder / "out", [*CASES, *EXACT, *(BF16 if CUDA else [])], 1)[0]


@pytest.mark.parametrize("case", CASES)
def test_packed_rows_give_the_update_of_padded_rows(runs, case):
    padded, packed = runs[f"{case.split('-')[0]}-full"], runs[case]
    for name in ("log_probs", "entropy"):
        for a, b in zip(padded["inference"][name], packed["inference"][name], strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=0)
    assert packed["first"]["loss"] == pytest.approx(padded["first"]["loss"], abs=2e-6)
    assert packed["first"]["grad_norm"] == pytest.approx(padded["first"]["grad_norm"], rel=2e-5)
    for key, value in padded["first"]["weights"].items():
        # The first Adam step magnifies rounding where a gradient is about eps.
        torch.testing.assert_close(packed["first"]["weights"][key], value, atol=2e-4, rtol=0)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_a_checkpoint_loads_without_this_package(runs, folder, strategy):
    """Its config.json does not name an implementation that only this package has."""
    assert f"{strategy}-save-{PACKED}" in runs
    saved = json.loads((folder / f"checkpoint-{strategy}" / "huggingface" / "config.json").read_text())
    assert "varlen" not in json.dumps(saved)


@pytest.mark.skipif(not CUDA, reason="needs a GPU and VERL_ENTROPY_TEST_DEVICE=cuda")
@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_bf16_is_as_near_to_fp32_as_sdpa(runs, strategy, way):
    exact = runs[f"{strategy}-full"]
    sdpa, varlen = (runs[f"{strategy}-full-{w}-dtype=bf16"] for w in (WAYS[0], way))

    def error(run):
        pairs = zip(run["inference"]["log_probs"], exact["inference"]["log_probs"], strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)

    assert error(varlen) < 2 * error(sdpa) + 0.02
    assert varlen["first"]["grad_norm"] == pytest.approx(exact["first"]["grad_norm"], rel=0.1)
