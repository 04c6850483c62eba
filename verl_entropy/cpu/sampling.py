# SPDX-License-Identifier: Apache-2.0
"""Token-by-token sampling from a transformers model on a CPU: pure tensor functions, no verl and no Ray.

A batch holds requests with their own prompt length, temperature, top-p, top-k, repetition penalty, length
limit, stop tokens and random stream. Suffixes: N request of the batch, A row that is still being generated, L
prompt, T new token, V vocabulary.

Random numbers. Request n has its own stream of uniforms u_nt, and token t is the inverse of the cumulative
distribution at u_nt. What a request draws therefore depends on its seed and on its logits alone, not on the
requests beside it; logits computed in another batch shape differ by rounding (about 1e-6), so a draw changes
only if u_nt lies that close to a boundary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

LOGPROBS_MODES = ("processed_logprobs", "raw_logprobs")

UNIFORMS_PER_DRAW = 128
"""Uniforms are drawn per request in blocks of this many tokens: a long limit costs no memory up front."""

COMPACT_FRACTION = 0.25
"""Finished rows leave the batch when they are this share of it; dropping them copies the cache once."""


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request.

    ``temperature <= 0`` is greedy; ``top_k <= 0``, ``top_p = 1`` and ``repetition_penalty = 1`` are off.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    """Log-probabilities of as many most likely words at each token; a rollout method asks for them."""

    def __post_init__(self) -> None:
        _require("max_tokens", self.max_tokens, self.max_tokens >= 1, "an integer >= 1")
        _require("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "in (0, 1]; 1 switches it off")
        _require("top_k", self.top_k, self.top_k >= -1, "an integer >= 1, or -1 or 0 to switch it off")
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, penalty > 0.0, "> 0; 1 switches it off")
        _require("seed", self.seed, self.seed is None or self.seed >= 0, "an integer >= 0 or null")

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0.0

    @classmethod
    def from_request(cls, params: Mapping[str, Any], *, default_max_tokens: int, limit: int, **defaults: Any) -> SamplingParams:
        """From the ``sampling_params`` of a verl request, as verl's vLLM server reads them.

        ``max_tokens`` is cut to ``limit`` (room in the context) and is at least 1; ``defaults`` fill keys
        that are not given.
        """
        given = {key: value for key, value in params.items() if value is not None}
        max_new_tokens = given.pop("max_new_tokens", default_max_tokens)
        given["max_tokens"] = max(1, min(int(given.get("max_tokens", max_new_tokens)), limit))
        given["stop_token_ids"] = tuple(given.get("stop_token_ids", ()))
        unknown = sorted(given.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise ValueError(
                f"sampling_params of the hf rollout has {', '.join(f'{k}={params[k]!r}' for k in unknown)}; "
                f"allowed are {', '.join([*cls.__dataclass_fields__, 'max_new_tokens'])}; "
                "fix: remove the key, or use rollout.name=vllm on an accelerator"
            )
        return cls(**{**defaults, **given})


def _require(key: str, value: Any, ok: bool, allowed: str) -> None:
    if not ok:
        raise ValueError(
            f"sampling_params.{key}={value!r} must be {allowed}; "
            f"fix: set actor_rollout_ref.rollout.{key} or what the agent loop sends"
        )


@dataclass(frozen=True)
class Request:
    """Prompt tokens, how to sample and the entropy of the random stream (integers >= 0)."""

    prompt_ids: Sequence[int]
    params: SamplingParams
    stream: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """New tokens with the log-probability of each; ``aborted`` if the generation was cut."""

    token_ids: list[int]
    log_probs: list[float]
    aborted: bool
    top_log_probs: list[list[float]] | None = None


def digest(data: bytes) -> int:
    """A 64-bit number that, unlike ``hash``, is the same in every process and run."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def prompt_digest(prompt_ids: Sequence[int]) -> int:
    return digest(np.asarray(prompt_ids, dtype=np.int64).tobytes())


def apply_repetition_penalty(logits_AV: torch.Tensor, seen_AV: torch.Tensor, penalty_A: torch.Tensor) -> torch.Tensor:
    """Divide positive and multiply negative logits of tokens in the prompt or the output by the penalty
    (arXiv 1909.05858).
    """
    penalty_A1 = penalty_A.unsqueeze(-1)
    return torch.where(seen_AV, torch.where(logits_AV > 0, logits_AV / penalty_A1, logits_AV * penalty_A1), logits_AV)


def truncate(logits_AV: torch.Tensor, top_k_A: torch.Tensor, top_p_A: torch.Tensor) -> torch.Tensor:
    """-inf outside the ``top_k`` largest logits, then outside the smallest set of the rest with mass >=
    ``top_p``.

    Ties at the k-th logit are all kept, as in vLLM and transformers; the most likely token always stays.
    """
    sorted_AV, order_AV = logits_AV.sort(dim=-1, descending=True)
    vocabulary = logits_AV.shape[-1]
    k_A = torch.where(top_k_A > 0, top_k_A, vocabulary).clamp(max=vocabulary)
    kth_A1 = sorted_AV.gather(-1, (k_A - 1).unsqueeze(-1))
    sorted_AV = sorted_AV.masked_fill(sorted_AV < kth_A1, -torch.inf)
    probs_AV = sorted_AV.softmax(-1)
    above_AV = probs_AV.cumsum(-1) - probs_AV  # mass of the tokens before this one
    drop_AV = (above_AV >= top_p_A.unsqueeze(-1)) & (top_p_A.unsqueeze(-1) < 1.0)
    drop_AV[:, 0] = False
    return torch.empty_like(logits_AV).scatter_(-1, order_AV, sorted_AV.masked_fill(drop_AV, -torch.inf))


def draw(log_probs_AV: torch.Tensor, uniform_A: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution at ``uniform_A`` in [0, 1), summed in fp64; never a token of
    probability 0.
    """
    cdf_AV = log_probs_AV.double().exp().cumsum(-1)
    # u = 1 - 2**-53 could round up to the total and fall off the end.
    target_A1 = uniform_A.clamp(max=1.0 - 1e-12).unsqueeze(-1) * cdf_AV[:, -1:]
    return torch.searchsorted(cdf_AV, target_A1, right=True).squeeze(-1)


class _Rows:
    """The rows of the batch that are still generated; every tensor shrinks in ``keep``. ``request_A`` says
    whose row it is.
    """

    def __init__(self, requests: Sequence[Request], eos_ids: Sequence[int], pad_id: int, vocabulary: int):
        params = [request.params for request in requests]
        self.streams = [np.random.default_rng(request.stream) for request in requests]
        self.uniform_AT: torch.Tensor | None = None
        self.request_A = torch.arange(len(requests))
        self.done_A = torch.zeros(len(requests), dtype=torch.bool)
        self.limit_A = torch.tensor([p.max_tokens for p in params])
        self.greedy_A = torch.tensor([p.greedy for p in params])
        # A greedy request ignores top-p and top-k, as in vLLM: the log-prob is that of the full distribution.
        self.temperature_A = torch.tensor([1.0 if p.greedy else p.temperature for p in params])
        self.top_p_A = torch.tensor([1.0 if p.greedy else p.top_p for p in params])
        self.top_k_A = torch.tensor([-1 if p.greedy else p.top_k for p in params])
        self.truncating = bool(((self.top_k_A > 0) | (self.top_p_A < 1.0)).any())
        self.penalty_A = torch.tensor([p.repetition_penalty for p in params])
        self.seen_AV = _seen(requests, vocabulary) if bool((self.penalty_A != 1.0).any()) else None
        stops = [[*p.stop_token_ids, *([] if p.ignore_eos else eos_ids)] for p in params]
        width = max(1, *map(len, stops))
        self.stop_AS = torch.tensor([stop + [-1] * (width - len(stop)) for stop in stops])
        self.input_AL, self.mask_AL = _pad_left(requests, pad_id)
        self.position_AL = (self.mask_AL.cumsum(-1) - 1).clamp(min=0)
        self.cache = None

    def forward(self, model) -> torch.Tensor:
        """Logits of the next token in fp32; the cache grows by the inputs."""
        output = model(
            input_ids=self.input_AL,
            attention_mask=self.mask_AL,
            position_ids=self.position_AL,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.cache = output.past_key_values
        return output.logits[:, -1].float()

    def uniform(self, step: int) -> torch.Tensor:
        column = step % UNIFORMS_PER_DRAW
        if column == 0:
            blocks = [self.streams[n].random(UNIFORMS_PER_DRAW) for n in self.request_A.tolist()]
            self.uniform_AT = torch.from_numpy(np.stack(blocks))
        return self.uniform_AT[:, column]

    def sample(self, logits_AV: torch.Tensor, step: int, logprobs_mode: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Next token of every row, its log-probability under ``logprobs_mode``, and those of all words."""
        raw_AV = logits_AV
        if self.seen_AV is not None:
            logits_AV = apply_repetition_penalty(logits_AV, self.seen_AV, self.penalty_A)
        logits_AV = logits_AV / self.temperature_A.unsqueeze(-1)
        if self.truncating:
            logits_AV = truncate(logits_AV, self.top_k_A, self.top_p_A)
        log_probs_AV = logits_AV.log_softmax(-1)
        token_A = torch.where(self.greedy_A, log_probs_AV.argmax(-1), draw(log_probs_AV, self.uniform(step)))
        scores_AV = raw_AV.log_softmax(-1) if logprobs_mode == "raw_logprobs" else log_probs_AV
        return token_A, scores_AV.gather(-1, token_A.unsqueeze(-1)).squeeze(-1), scores_AV

    def append(self, token_A: torch.Tensor, step: int) -> None:
        """Mark rows that end with this token and make it the next input of the others."""
        self.done_A = self.done_A | (token_A.unsqueeze(-1) == self.stop_AS).any(-1) | (self.limit_A <= step + 1)
        if self.seen_AV is not None:
            self.seen_AV.scatter_(-1, token_A.unsqueeze(-1), True)
        self.input_AL = token_A.unsqueeze(-1)
        self.mask_AL = torch.cat([self.mask_AL, self.mask_AL.new_ones(len(token_A), 1)], dim=-1)
        # A finished row stands still: one more position might not exist in the model.
        self.position_AL = self.position_AL[:, -1:] + (~self.done_A).long().unsqueeze(-1)

    def compact(self) -> bool:
        """Drop finished rows if there are enough of them; False if all are finished."""
        rows, finished = len(self.done_A), int(self.done_A.sum())
        if finished == rows:
            return False
        if finished and finished >= COMPACT_FRACTION * rows:
            self._keep((~self.done_A).nonzero().squeeze(-1))
        return True

    def _keep(self, index: torch.Tensor) -> None:
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value[index])
        self.cache.batch_select_indices(index)


def _seen(requests: Sequence[Request], vocabulary: int) -> torch.Tensor:
    seen_NV = torch.zeros(len(requests), vocabulary, dtype=torch.bool)
    for row, request in enumerate(requests):
        seen_NV[row, torch.tensor(request.prompt_ids)] = True
    return seen_NV


def _pad_left(requests: Sequence[Request], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(request.prompt_ids) for request in requests)
    ids_NL = np.full((len(requests), length), pad_id, dtype=np.int64)
    mask_NL = np.zeros((len(requests), length), dtype=np.int64)
    for row, request in enumerate(requests):
        ids_NL[row, length - len(request.prompt_ids) :] = request.prompt_ids
        mask_NL[row, length - len(request.prompt_ids) :] = 1
    return torch.from_numpy(ids_NL), torch.from_numpy(mask_NL)


@torch.inference_mode()
def generate(
    model,
    requests: Sequence[Request],
    *,
    pad_id: int,
    eos_ids: Sequence[int],
    logprobs_mode: str = "processed_logprobs",
    aborted: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Complete all requests together, each until a stop token (kept, as in vLLM) or its limit.

    log-probabilities: ``processed_logprobs`` of the distribution the token was drawn from, that is after
    repetition penalty, temperature, top-k and top-p, so equal to the actor's where those are off;
    ``raw_logprobs`` of the model's own logits. ``aborted`` is asked before every token; if true the
    unfinished requests are returned as they are.
    """
    rows = _Rows(requests, eos_ids, pad_id, model.config.get_text_config().vocab_size)
    steps = int(rows.limit_A.max())
    token_NT = torch.zeros(len(requests), steps, dtype=torch.long)
    log_prob_NT = torch.zeros(len(requests), steps)
    length_N = torch.zeros(len(requests), dtype=torch.long)
    cut_N = torch.zeros(len(requests), dtype=torch.bool)
    wanted = min(max(request.params.top_logprobs for request in requests), model.config.get_text_config().vocab_size)
    top_NTK = torch.zeros(len(requests), steps, wanted) if wanted else None
    for step in range(steps):
        if aborted():
            cut_N[rows.request_A] = ~rows.done_A
            break
        token_A, log_prob_A, scores_AV = rows.sample(rows.forward(model), step, logprobs_mode)
        if top_NTK is not None:
            top_NTK[rows.request_A, step] = scores_AV.topk(wanted).values
        token_NT[rows.request_A, step], log_prob_NT[rows.request_A, step] = token_A, log_prob_A
        length_N[rows.request_A] += (~rows.done_A).long()
        rows.append(token_A, step)
        if not rows.compact():
            break
    columns = zip(token_NT.tolist(), log_prob_NT.tolist(), length_N.tolist(), cut_N.tolist(), strict=True)
    top_N = (
        [None] * len(requests)
        if top_NTK is None
        else [top_NTK[n, :length].tolist() for n, length in enumerate(length_N.tolist())]
    )
    return [
        Completion(tokens[:length], log_probs[:length], cut, top)
        for (tokens, log_probs, length, cut), top in zip(columns, top_N, strict=True)
    ]
