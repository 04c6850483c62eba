# SPDX-License-Identifier: Apache-2.0
"""Self-check at start: are entropies in the order of the rows when batches are split by length?

verl-agent's ``compute_log_prob`` puts log-probs back in order and not entropies. The check runs that method, and ours, on a few
rows whose "log-prob" and "entropy" are their own row number.
"""

from __future__ import annotations

import torch
from torch import nn
from verl import DataProto
from verl.utils.debug import performance
from verl.workers.actor.dp_actor import DataParallelPPOActor

from verl_entropy.hosts.install.rebound import rebound
from verl_entropy.hosts.verl_agent.actor import EntropyActor, Record

LENGTHS = (2, 9, 3, 8, 1, 7)
"""Response lengths so mixed that a split by length changes the order."""


def _numbers(micro_batch) -> tuple[torch.Tensor, torch.Tensor]:
    number_RT = micro_batch["responses"].float()
    return number_RT, number_RT


class _PlainProbe(DataParallelPPOActor):
    def __init__(self):
        self.actor_module, self.ulysses_sequence_parallel_size = nn.Identity(), 1

    def _forward_micro_batch(self, micro_batch, temperature, calculate_entropy=False):
        return _numbers(micro_batch)


class _OurProbe(EntropyActor):
    def __init__(self):
        self.actor_module, self.ulysses_sequence_parallel_size = nn.Identity(), 1
        self.outputs, self._record, self._last = {}, None, None

    def _forward_micro_batch(self, micro_batch, temperature, calculate_entropy=False):
        record: Record = self._record
        entropy, log_probs = _numbers(micro_batch)
        record.log_probs.append(log_probs)
        record.own_entropy.append(entropy)
        return entropy, log_probs


def _batch() -> DataProto:
    rows, width = len(LENGTHS), max(LENGTHS)
    mask = torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]
    number = torch.arange(rows)[:, None].expand(rows, width).clone()
    tensors = {"responses": number, "input_ids": number, "attention_mask": mask.long(), "position_ids": number}
    meta = {"micro_batch_size": 2, "temperature": 1.0, "use_dynamic_bsz": True, "max_token_len": 10}
    return DataProto.from_dict(tensors=tensors, meta_info=meta)


def in_order(actor: DataParallelPPOActor) -> bool:
    """Whether ``compute_log_prob`` of ``actor`` gives row r the entropy r."""
    entropy = actor.compute_log_prob(_batch(), calculate_entropy=True)[1]
    return bool((entropy == torch.arange(len(LENGTHS))[:, None]).all())


def lines(dynamic: bool) -> list[str]:
    """Result of the self-check; RuntimeError if our own order is wrong."""
    # verl-agent logs the GPU's memory around the pass: the check also runs where there is no GPU.
    with rebound(performance, _get_current_mem_info=lambda *_, **__: ("0", "0", "0", "0")):
        own, ours = in_order(_PlainProbe()), in_order(_OurProbe())
    if not ours:
        raise RuntimeError(
            "verl-entropy: the order self-check of the entropies failed. Set actor_rollout_ref.actor.use_dynamic_bsz=False."
        )
    stock = "keeps" if own else "loses"
    used = "on: put in order by verl-entropy" if dynamic else "off"
    return [f"order self-check of entropy: ok (dynamic batch size is {used}; verl-agent's own code {stock} the order)"]
