# SPDX-License-Identifier: Apache-2.0
"""A batch of RayPPOTrainer, padded on both sides, as its training workers get it with a plan of ours: nested columns, as on V1.

Everything in the workers (``hosts/verl_engine``) reads rows of their own length; verl's loss gets padded columns back, of the
width that it would have had, so that its sums have the same order.
"""

from __future__ import annotations

import torch

from verl_entropy.hosts.common.trainer_keys import PREFIX
from verl_entropy.upstream.rows import MARK

RESPONSE = ("response_mask", "loss_mask", "old_log_probs", "ref_log_prob", "advantages", "entropy", "rollout_is_weights")
"""Columns of the response layout that a training worker reads; our own are beside them."""
DROPPED = ("rm_scores", "token_level_scores", "token_level_rewards", "rollout_log_probs", "returns", "values", "reward_baselines")
"""Columns that verl's trainer reads and no actor."""


def nested(padded_RT: torch.Tensor, length_R: torch.Tensor) -> torch.Tensor:
    """A column of the response layout without its padding on the right."""
    inside_RT = torch.arange(padded_RT.shape[1], device=padded_RT.device) < length_R.unsqueeze(1)
    offsets = torch.nn.functional.pad(length_R.cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(padded_RT[inside_RT], offsets)


def lengths(data) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of each row's prompt and response, of a batch with ``attention_mask`` and ``prompts``."""
    width = data["prompts"].shape[1]
    return data["attention_mask"][:, :width].sum(1), data["attention_mask"][:, width:].sum(1)


def prompts(data) -> torch.Tensor:
    """The prompts without their padding on the left."""
    width = data["prompts"].shape[1]
    kept = data["attention_mask"][:, :width].bool()
    offsets = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
    return torch.nested.nested_tensor_from_jagged(data["prompts"][kept], offsets)


def for_workers(data):
    """What verl's ``left_right_2_no_padding`` gave, with every column of a row nested, and without columns that no worker reads.

    A column of Python objects (the data set's fields, the environment's records) costs a worker far more than one of tokens.
    """
    from tensordict import NonTensorData, NonTensorStack

    response_R = lengths(data)[1]
    objects = [name for name, column in data.items() if isinstance(column, NonTensorStack) and name != "multi_modal_inputs"]
    sent = data.exclude(*objects, *DROPPED)
    sent["prompts"] = prompts(data)
    for name in ("responses", *RESPONSE, *(key for key in sent.keys() if key.startswith(PREFIX))):
        column = sent.get(name, None)
        if isinstance(column, torch.Tensor) and column.dim() == 2 and not column.is_nested:
            sent[name] = nested(column, response_R)
    sent[MARK] = NonTensorData(True)
    return sent
