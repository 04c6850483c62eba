# SPDX-License-Identifier: Apache-2.0
"""Estimate of the memory that entropy and log-probs need in the training workers; plain arithmetic, no torch.

A cell is one token times one word of the vocabulary. Everything is counted beyond what exists on any path with logits: the
model's logits and their gradient. "Kept" is alive from the forward to the backward pass; "transient" is an upper bound of what
is needed besides at any moment of the two. tests/cli/test_memory.py compares the eager, chunked, checkpointed and our own path
with what torch really allocates on the CPU; the compiled and fused ones are read off the code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_entropy.config import engines
from verl_entropy.config.checks import sequence_parallel
from verl_entropy.config.settings import lookup

CHUNK_CELLS = 2**24
"""``numerics.CHUNK_CELLS``, repeated because that module imports torch (a test compares them)."""
OUR_BYTES = {2: 17, 4: 13}
"""Bytes per cell of a chunk that our pass has alive at a time (backward), by the size of a logit."""
EAGER_KEPT = {2: 8, 4: 4}
"""Bytes per cell that entropy_from_logits keeps under autocast: the softmax, and the fp32 copy of 16-bit logits."""
EAGER_BACKWARD = {2: 18, 4: 16}
EAGER_FORWARD = {2: 12, 4: 8}
"""The most it has alive besides: in the backward pass, and in a forward pass without gradient."""
FUSED_ROWS, FUSED_BUFFERS = 512, 7
"""verl's FusedLinearForPPO: rows of a chunk and fp32 buffers of it."""
TRITON_BLOCK, TRITON_COLUMNS = 1024, 9504
"""verl's triton linear_cross_entropy: vocabulary per block of the forward, columns of the buffer of the backward."""
"""Per word of the vocabulary, transient: siren's sort of a chunk of 128 tokens, clip_v's reduction of one of 256."""
SAMPLE_BYTES = 10
"""Per cell of the tokens that the diagnostics sample (``diagnostics.sample_tokens`` of ``sample_trajectories``)."""
ADAM_BYTES = 16
"""fp32 weight, gradient and two moments."""
DTYPES = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
}
"""verl's spellings of a dtype."""


@dataclass(frozen=True)
class Batch:
    """Size of one micro-batch on one GPU."""

    tokens: int
    """Tokens the model runs over, prompts included."""
    response: int
    """Response tokens among them, at most."""
    vocab: int
    hidden: int
    logit_bytes: int = 2
    unit_temperature: bool = True
    packed: bool = False
    """Packed rows, not sharded. Our pass then asks the model for the logits of response tokens only; one whose forward takes no
    tensor ``logits_to_keep`` gives all of them."""

    @property
    def cells(self) -> int:
        return self.tokens * self.vocab

    @property
    def response_cells(self) -> int:
        return self.response * self.vocab


@dataclass(frozen=True)
class Cost:
    """Bytes."""

    kept: int
    transient: int


def chunked(b: Batch, grad: bool, entropy: bool = True, chunk_cells: int = CHUNK_CELLS) -> Cost:
    """Our pass: the response tokens' logits, gathered once unless the model gives no others, worked through in chunks."""
    copy = 0 if b.packed else b.logit_bytes * b.response_cells
    buffers = OUR_BYTES[b.logit_bytes] * min(chunk_cells, b.response_cells)
    return Cost(copy, buffers) if grad else Cost(0, copy + buffers)


def _scaled_copy(b: Batch) -> int:
    """verl divides the logits by the temperature out of place, unless it is 1."""
    return 0 if b.unit_temperature else b.logit_bytes * b.cells


def compiled(b: Batch, grad: bool, entropy: bool = True) -> Cost:
    """verl's entropy under torch.compile (its default): nothing of vocabulary size but the division by the temperature."""
    copy = _scaled_copy(b)
    second_gradient = b.logit_bytes * b.cells if entropy else 0  # inplace_backward=False with an entropy
    return Cost(copy, second_gradient) if grad else Cost(0, copy)


def eager(b: Batch, grad: bool, entropy: bool = True) -> Cost:
    """verl's entropy_from_logits without compilation, under autocast."""
    if not entropy:
        return compiled(b, grad, entropy=False)
    copy = _scaled_copy(b)
    if grad:
        return Cost(copy + EAGER_KEPT[b.logit_bytes] * b.cells, EAGER_BACKWARD[b.logit_bytes] * b.cells)
    return Cost(0, copy + EAGER_FORWARD[b.logit_bytes] * b.cells)


def rows_chunked(b: Batch, grad: bool, entropy: bool = True, rows: int = 2048) -> Cost:
    """verl's entropy_from_logits_with_chunking, eager: it bounds what is transient, not what training keeps."""
    if not entropy:
        return compiled(b, grad, entropy=False)
    copy, chunk = _scaled_copy(b), min(rows, b.tokens) * b.vocab
    if grad:
        # every chunk's gradient is padded to the size of the logits before they are added
        transient = max(b.logit_bytes * b.cells, EAGER_BACKWARD[b.logit_bytes] * chunk)
        return Cost(copy + EAGER_KEPT[b.logit_bytes] * b.cells, transient)
    return Cost(0, copy + EAGER_FORWARD[b.logit_bytes] * chunk)


def checkpointed(b: Batch, grad: bool, entropy: bool = True) -> Cost:
    """entropy_checkpointing: nothing is kept, and the eager cost comes back in the backward pass."""
    full, copy = eager(b, grad, entropy), _scaled_copy(b)
    return Cost(copy, full.kept - copy + full.transient) if grad and entropy else full


def fused_torch(b: Batch, grad: bool, entropy: bool = True) -> Cost:
    """use_fused_kernels with the torch backend: no logits at all."""
    return Cost(0, FUSED_BUFFERS * 4 * min(FUSED_ROWS, b.tokens) * b.vocab)


def fused_triton(b: Batch, grad: bool, entropy: bool = True) -> Cost:
    """use_fused_kernels with the triton backend: no logits, a few numbers per token."""
    forward = 3 * 4 * b.tokens * math.ceil(b.vocab / TRITON_BLOCK)
    return Cost(12 * b.tokens, max(forward, 2 * b.tokens * TRITON_COLUMNS)) if grad else Cost(0, forward)


PATHS = {
    "chunked": ("verl-entropy's fp32 pass over response tokens", chunked),
    "compiled": ("verl, torch.compile (its default)", compiled),
    "eager": ("verl, use_torch_compile=False", eager),
    "rows_chunked": ("verl, eager, entropy_from_logits_with_chunking", rows_chunked),
    "checkpointed": ("verl, eager, entropy_checkpointing", checkpointed),
    "fused_torch": ("verl, use_fused_kernels, torch backend", fused_torch),
    "fused_triton": ("verl, use_fused_kernels, triton backend", fused_triton),
}
WITHOUT_LOGITS = ("fused_torch", "fused_triton")


def head_bytes(hidden: int, layers: int) -> int:
    """Weights, gradient and Adam of the SEAL head in fp32, before sharding."""
    per_layer = hidden * hidden + hidden + 2 * hidden  # linear with bias, norm
    return ADAM_BYTES * ((layers - 1) * per_layer + hidden + 1)


@dataclass(frozen=True)
class Size:
    """Vocabulary and hidden size of the model, and where they were found."""

    vocab: int
    hidden: int
    source: str


def model_size(path: str | None, vocab: int | None, hidden: int | None) -> Size | None:
    """From the options, else from config.json in the model's folder; None where neither has it."""
    found: dict[str, Any] = {}
    file = Path(path).expanduser() / "config.json" if path else None
    if file is not None and file.is_file():
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file}: not JSON ({error}). Mend the file, or give --vocab and --hidden.") from None
        if not isinstance(found, dict):
            raise ValueError(f"{file}: not a JSON object. Mend the file, or give --vocab and --hidden.")
        found = found.get("text_config") or found
    vocab, hidden = vocab or found.get("vocab_size"), hidden or found.get("hidden_size")
    for name, value in (("vocab", vocab), ("hidden", hidden)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} size {value!r}: must be an integer >= 1. Set --{name}.")
    if vocab is None or hidden is None:
        return None
    return Size(vocab, hidden, str(file) if found else "--vocab and --hidden")


OTHER = "other"
"""Path of another training engine, whose memory is not estimated."""


def param_dtype(raw: Mapping[str, Any]) -> str:
    """dtype of the actor's computation, and so of its logits (verl's default: bf16)."""
    named = str(lookup(raw, "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "bf16"))
    return DTYPES.get(named, named)


def path_of(raw: Mapping[str, Any], log_probs: str, has_flash: bool) -> str:
    """Which path computes entropy and log-probs under a resolved configuration; ``OTHER`` where the engine is neither FSDP nor ours."""
    if lookup(raw, "actor_rollout_ref.actor.strategy", "fsdp") not in engines.ADAPTERS:
        return OTHER
    if lookup(raw, "actor_rollout_ref.model.use_fused_kernels", False):  # gives no logits, so our pass stands back
        backend = lookup(raw, "actor_rollout_ref.model.fused_kernel_options.impl_backend", "torch")
        return "fused_triton" if backend == "triton" else "fused_torch"
    if log_probs == "chunked" or (log_probs == "auto" and not has_flash):
        return "chunked"
    fsdp = lookup(raw, "actor_rollout_ref.actor.fsdp_config", {})
    packed = bool(lookup(raw, "actor_rollout_ref.model.use_remove_padding", False))
    if fsdp.get("use_torch_compile", True) and packed:  # without packing verl calls the eager function
        return "compiled"
    if fsdp.get("entropy_checkpointing", False):
        return "checkpointed"
    return "rows_chunked" if packed and fsdp.get("entropy_from_logits_with_chunking", False) else "eager"


def _tokens(raw: Mapping[str, Any], side: str) -> tuple[int, int] | None:
    """(tokens, response tokens) of a micro-batch of the update ("actor") or of the old-log-prob pass ("rollout")."""
    prompt, response = (int(lookup(raw, f"data.max_{part}_length", 0)) for part in ("prompt", "response"))
    names = {
        "actor": ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"),
        "rollout": ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu"),
    }[side]
    dynamic, longest, rows = (lookup(raw, f"actor_rollout_ref.{side}.{name}") for name in names)
    if dynamic and longest:
        return int(longest), int(longest)
    if rows and prompt + response:
        return int(rows) * (prompt + response), int(rows) * response
    return None


def batches(raw: Mapping[str, Any], size: Size) -> dict[str, Batch]:
    """The largest micro-batch of each pass; a pass whose size the configuration leaves open is left out."""
    dtype = param_dtype(raw)
    temperature = float(lookup(raw, "actor_rollout_ref.rollout.temperature", 1.0))
    packed = bool(lookup(raw, "actor_rollout_ref.model.use_remove_padding", False)) and sequence_parallel(raw) == 1
    logit_bytes = 4 if dtype == "fp32" else 2
    found = {}
    for name, side in (("old_log_prob", "rollout"), ("update", "actor")):
        tokens = _tokens(raw, side)
        if tokens is not None:
            found[name] = Batch(*tokens, size.vocab, size.hidden, logit_bytes, temperature == 1.0, packed)
    return found


def estimate(
    raw: Mapping[str, Any],
    size: Size,
    log_probs: str = "auto",
    has_flash: bool = True,
    chunks: Mapping[str, int] | None = None,
    head_layers: int = 0,
    sampled: int = 0,
) -> dict[str, Any]:
    """The memory of each pass on the path that the configuration selects, and on the others for comparison."""
    chosen = path_of(raw, log_probs, has_flash)
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    with_entropy = bool(actor.get("calculate_entropy") or float(actor.get("entropy_coeff") or 0.0) != 0.0)
    result: dict[str, Any] = {"model": asdict(size), "path": chosen, "what": PATHS[chosen][0], "update_entropy": with_entropy}
    for name, batch in batches(raw, size).items():
        grad, entropy = name == "update", name == "old_log_prob" or with_entropy
        costs = {path: asdict(function(batch, grad, entropy)) for path, (_, function) in PATHS.items()}
        cells = batch.response_cells if chosen == "chunked" and batch.packed else batch.cells
        logits = 0 if chosen in WITHOUT_LOGITS else batch.logit_bytes * cells
        result[name] = {**asdict(batch), "logits": logits, **costs[chosen], "paths": costs}
    extras = {
        **{what: number * size.vocab for what, number in (chunks or {}).items()},
        f"diagnostics: gradients of {sampled} sampled tokens": SAMPLE_BYTES * size.vocab * sampled,
        "SEAL head: weights, gradient and Adam, before sharding": head_bytes(size.hidden, head_layers) if head_layers else 0,
    }
    result["extras"] = {name: number for name, number in extras.items() if number}
    return result
