# SPDX-License-Identifier: Apache-2.0
"""What only a card can show of the engine: bf16 and fp16, torch.compile, gradient checkpointing, packed sequences.

Runs with VERL_ENTROPY_TEST_DEVICE=cuda (tests/gpu/run.sh).
"""

import math

import pytest
from ranks import CUDA, run_ranks

pytestmark = pytest.mark.skipif(not CUDA, reason="needs a GPU and VERL_ENTROPY_TEST_DEVICE=cuda")

STRATEGIES = ("fsdp", "fsdp2")
PATHS = {
    "bf16": ("dtype=bf16", 0.1),
    "fp16": ("dtype=fp16", 0.02),
    "compiled": ("compile=1", 1e-4),
    "checkpointed": ("checkpointing=1", 1e-4),
    "packed": ("packed=1", 1e-4),
    "all": ("dtype=bf16-compile=1-checkpointing=1-packed=1-budget=24", 0.1),
}
"""Options and how far the entropy of a token may be from the fp32 engine's (nats): the model computes in that dtype."""


@pytest.fixture(scope="module")
def matrix(model, tmp_path_factory):
    kinds = {"full": "", "stock": "", "neutral": "-logp=verl"}
    names = [f"{s}-{kind}-{options}{end}" for s in STRATEGIES for options, _ in PATHS.values() for kind, end in kinds.items()]
    return run_ranks(model, tmp_path_factory.mktemp("cuda") / "out", names, 1)[0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_updates_are_finite_and_near_fp32(one, matrix, strategy, path):
    options, tolerance = PATHS[path]
    full = matrix[f"{strategy}-full-{options}"]
    assert math.isfinite(full["first"]["loss"]) and math.isfinite(full["first"]["grad_norm"])
    assert full["first"]["metrics"]["verl_entropy/active"] == 1.0
    plain = one[f"{strategy}-full"]["inference"]["entropy"]
    for a, b in zip(full["inference"]["entropy"], plain, strict=True):
        assert a.dtype == b.dtype and (a - b).abs().max() < tolerance


@pytest.mark.parametrize("path", [p for p in PATHS if p not in ("compiled", "all")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_neutral_settings_change_nothing(matrix, strategy, path):
    """With verl's log-probs, where ours are better (bf16 and fp16 logits). Compiled kernels of verl's loss and ours differ in rounding."""
    options = PATHS[path][0]
    stock, neutral = matrix[f"{strategy}-stock-{options}"], matrix[f"{strategy}-neutral-{options}-logp=verl"]
    assert neutral["first"]["loss"] == pytest.approx(stock["first"]["loss"], abs=1e-6)
    assert neutral["first"]["grad_norm"] == pytest.approx(stock["first"]["grad_norm"], rel=1e-3)
