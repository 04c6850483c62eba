# SPDX-License-Identifier: Apache-2.0
"""The tokens before response tokens: where they are, and their logits, which with packed rows are the only ones computed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch

from verl_entropy.hosts.common.loss_tools import trained_positions


def response_positions(micro_batch, packed: bool, shift: int) -> torch.Tensor:
    """``trained_positions`` of all response tokens, trained or not. No host sync."""
    responses = micro_batch["responses"]
    token_N = torch.arange(responses.values().shape[0], device=responses.device)
    row_N = torch.searchsorted(responses.offsets()[1:], token_N, right=True)
    return trained_positions(micro_batch, packed, shift, token_N, row_N)


@dataclass
class Predicting:
    """The tokens before response tokens, whose logits a loss reads: flat indices (N,), in row order."""

    packed_N: torch.Tensor
    """Among the micro-batch's tokens: labels, temperatures, log-probs."""
    model_N: torch.Tensor
    """Among the model's tokens: packed, or rows x width."""
    width: int
    """How many tokens the model sees."""
    kept: bool
    """Whether the model was asked for the logits of these tokens only."""

    def logits(self, logits: torch.Tensor, token_N: torch.Tensor | None = None) -> torch.Tensor:
        """Rows (N, V) of the model's ``logits``, or those of some of the tokens only; the backward pass sorts nothing."""
        rows_NV = logits.reshape(-1, logits.shape[-1])
        if self.kept and len(rows_NV) == len(self.model_N):
            return rows_NV if token_N is None else rows_NV.index_select(0, token_N)
        if len(rows_NV) != self.width:
            raise ValueError(
                f"the model gave logits of {len(rows_NV)} tokens, expected {len(self.model_N)} (those before response tokens) or "
                f"{self.width} (all). Set actor_rollout_ref.model.use_remove_padding=False or +algorithm.entropy.log_probs=verl."
            )
        return rows_NV.index_select(0, self.model_N if token_N is None else self.model_N.index_select(0, token_N))


def keeps_logits(module: torch.nn.Module) -> bool:
    """Whether the model computes the logits of given tokens only: its forward declares a tensor ``logits_to_keep``."""
    parameter = inspect.signature(module.forward).parameters.get("logits_to_keep")
    return parameter is not None and "Tensor" in str(parameter.annotation)
