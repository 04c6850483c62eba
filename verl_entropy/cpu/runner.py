# SPDX-License-Identifier: Apache-2.0
"""The model behind the ``hf`` rollout: weights, sampling settings and random streams. No Ray and no asyncio.

Random streams. A request draws from a stream seeded by ``rollout.seed``, the replica, the weights version
(``global_steps``), the request id if it can be repeated, the prompt tokens, and how many such requests this
replica has seen since the last weight update. Neither the order of arrival nor the requests that share a
batch enter it.

* ``rollout.full_determinism=True``: verl passes on the agent loop's request id, so a loop with repeatable and
  distinct ids (those of ``verl_entropy.agent``) gets the same tokens in every run.
* Otherwise verl replaces the id by a fresh uuid, which is left out. Sessions of one prompt are then told
  apart by their count alone: the *set* of their first turns repeats, but who gets which of them depends on
  arrival, and later turns with it.
* A ``seed`` in the request's ``sampling_params`` replaces all of that, as in vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from verl_entropy.cpu.sampling import (
    LOGPROBS_MODES,
    Completion,
    Request,
    SamplingParams,
    digest,
    generate,
    prompt_digest,
)


def end_of_sequence_ids(model, tokenizer) -> tuple[int, ...]:
    """End tokens of the tokenizer, of the generation config and of the model config."""
    found: list[int] = []
    for value in (tokenizer.eos_token_id, model.generation_config.eos_token_id, model.config.eos_token_id):
        if value is not None:
            found.extend(value if isinstance(value, list | tuple) else [value])
    return tuple(sorted(set(found)))


class ModelRunner:
    """One fp32 model in this process. ``rollout`` is verl's ``RolloutConfig``."""

    def __init__(self, model, tokenizer, rollout, replica_rank: int = 0):
        if rollout.logprobs_mode not in LOGPROBS_MODES:
            raise ValueError(
                f"actor_rollout_ref.rollout.logprobs_mode={rollout.logprobs_mode!r} must be one of "
                f"{', '.join(LOGPROBS_MODES)} for rollout.name=hf; fix: remove it"
            )
        self.model = model.eval().requires_grad_(False)
        self.rollout = rollout
        self._seed, self._repeated = (getattr(rollout, name, 0) for name in ("seed", "full_determinism"))  # keys of verl 0.9
        self.replica_rank = replica_rank
        self.eos_ids = end_of_sequence_ids(model, tokenizer)
        pad_id = tokenizer.pad_token_id
        self.pad_id = 0 if pad_id is None else pad_id  # masked: any valid token does
        positions = model.config.get_text_config().max_position_embeddings
        self.max_model_len = min(positions, rollout.max_model_len or positions)
        self.global_steps = 0
        self._served: Counter[tuple[int, int]] = Counter()
        self._received: set[str] = set()

    def request(self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str = "") -> Request:
        """Check a request; raises ValueError with the reason."""
        room = self.max_model_len - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise ValueError(
                f"a prompt of {len(prompt_ids)} tokens cannot be completed: allowed are 1 to "
                f"{self.max_model_len - 1} (max_model_len {self.max_model_len}); fix: lower "
                "data.max_prompt_length or shorten the agent's history"
            )
        config = self.rollout
        default = min(config.response_length, config.prompt_length + config.response_length - len(prompt_ids))
        params = SamplingParams.from_request(
            sampling_params,
            default_max_tokens=default,
            limit=room,
            repetition_penalty=config.repetition_penalty,
            ignore_eos=config.ignore_eos,
        )
        return Request(prompt_ids=prompt_ids, params=params, stream=self._stream(prompt_ids, params, request_id))

    def _stream(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str) -> tuple[int, ...]:
        if params.seed is not None:
            return (1, params.seed)
        name = digest(request_id.encode()) if self._repeated else 0
        key = (name, prompt_digest(prompt_ids))
        self._served[key] += 1
        return (0, self._seed, self.replica_rank, self.global_steps, *key, self._served[key])

    def run(self, requests: Sequence[Request], aborted: Callable[[], bool] = lambda: False) -> list[Completion]:
        return generate(
            self.model,
            requests,
            pad_id=self.pad_id,
            eos_ids=self.eos_ids,
            logprobs_mode=self.rollout.logprobs_mode,
            aborted=aborted,
        )

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, torch.Tensor], last: bool = True) -> None:
        """Copy one bucket of weights.

        After the ``last`` one every parameter must have been given; one name of a tied pair will do.
        """
        own = self.model.state_dict()
        self._refuse("does not have", sorted(weights.keys() - own.keys()))
        for name, tensor in weights.items():
            if own[name].shape != tensor.shape:
                raise ValueError(
                    f"weight update of the hf rollout: {name} has shape {tuple(tensor.shape)}, the rollout "
                    f"model {tuple(own[name].shape)}; fix: train and roll out the same architecture"
                )
            own[name].copy_(tensor)
        self._received.update(weights)
        if last:
            filled = {own[name].data_ptr() for name in self._received}
            self._received.clear()
            missing = sorted(name for name, tensor in own.items() if tensor.data_ptr() not in filled)
            self._refuse("did not get", missing)

    @staticmethod
    def _refuse(what: str, names: list[str]) -> None:
        if names:
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise ValueError(
                f"weight update of the hf rollout: its model {what} {len(names)} weight(s): {shown}; fix: "
                "train and roll out the same architecture, keep auxiliary heads out of get_per_tensor_param, and "
                "merge LoRA adapters (model.lora.merge=True)"
            )

    def set_global_steps(self, global_steps: int) -> None:
        """New weights version: random streams start afresh."""
        self.global_steps = int(global_steps)
        self._served.clear()
