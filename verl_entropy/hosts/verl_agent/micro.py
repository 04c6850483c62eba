# SPDX-License-Identifier: Apache-2.0
"""A micro-batch of verl-agent (padded tensors) as the shared loss code of the verl route wants it (nested tensors).

Also the counts by which our terms are normalised. verl-agent averages the losses of micro-batches; ours are shares of a mean over
the global mini-batch, so that they do not depend on how it is split, and undo the factor that ``update_policy`` puts on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_entropy.config.plan import Plan
from verl_entropy.hosts.common.trainer_keys import HEAD_LOGITS, HEAD_ROWS, HEAD_TOKENS, WHOLE_MASKS
from verl_entropy.hosts.verl_agent.advantages import OLD_ENTROPY
from verl_entropy.methods.context import LossContext

NUM_TOKENS, NUM_ROWS = "verl_entropy_num_tokens", "verl_entropy_num_rows"
"""Columns with the counts of the row's global mini-batch: trained tokens, rows with one."""
WHOLE_TOKENS = "verl_entropy_whole_tokens"
"""Its trained tokens with those that a transform dropped from the policy's loss."""
SUM_OF, ROWS_OF = "verl_entropy_sum_of_", "verl_entropy_rows_of_"
"""Columns with the sum of one of our per-token columns over that mini-batch, and with its rows that hold a value above 0."""


def jagged(x_RT: Tensor) -> Tensor:
    """Rows of equal length as a nested tensor."""
    rows, width = x_RT.shape
    return torch.nested.nested_tensor_from_jagged(x_RT.reshape(-1), torch.arange(rows + 1, device=x_RT.device) * width)


class Columns(Mapping):
    """The columns of a micro-batch under the names and in the layout of the verl route."""

    def __init__(self, micro_batch: Any):
        self._micro_batch = micro_batch

    def __getitem__(self, name: str) -> Any:
        if name == "prompts":  # the loss code looks for the position before each response: one column
            return jagged(self._micro_batch["responses"][:, :1])
        value = self._micro_batch[OLD_ENTROPY if name == "entropy" else name]
        return jagged(value) if value.dim() == 2 else value

    def __iter__(self):
        return iter(self._micro_batch.keys())

    def __len__(self) -> int:
        return len(list(self._micro_batch.keys()))


def model_output(head_logits_N: Tensor | None, mask_RT: Tensor) -> dict[str, Tensor]:
    """What the shared loss code reads of the model's output; the head's outputs are of the tokens of ``mask_RT``."""
    if head_logits_N is None:
        return {}
    token_N = mask_RT.reshape(-1).nonzero().squeeze(-1)
    return {HEAD_LOGITS: head_logits_N, HEAD_TOKENS: token_N, HEAD_ROWS: token_N // mask_RT.shape[1]}


def context(
    plan: Plan,
    micro_batch: Any,
    mask_RT: Tensor,
    entropy_RT: Tensor | None,
    outputs: dict[str, Tensor],
    logits_RT: dict[str, Tensor],
    info: dict[str, Any],
    dp_size: int,
) -> LossContext:
    """The context of one call of the policy loss; ``logits_RT``: what the methods computed from the logits, by name."""
    mask_RT = mask_RT.bool()
    summed = [key.removeprefix(SUM_OF) for key in micro_batch.keys() if key.startswith(SUM_OF)]
    whole = {}
    if WHOLE_TOKENS in micro_batch.keys():
        whole_RT = micro_batch[WHOLE_MASKS["loss_mask"]].bool()
        whole = {"whole_mask_RT": whole_RT, "whole_loss_mask_RT": whole_RT, "whole_tokens": float(micro_batch[WHOLE_TOKENS][0])}
    return LossContext(
        plan=plan,
        micro_batch=Columns(micro_batch),
        model_output=outputs,
        entropy_RT=None if entropy_RT is None else entropy_RT.float(),
        mask_RT=mask_RT,
        loss_mask_RT=mask_RT,
        num_tokens=float(micro_batch[NUM_TOKENS][0]),
        num_rows=float(micro_batch[NUM_ROWS][0]),
        dp_size=dp_size,
        info=info,
        read_output=logits_RT.__getitem__,
        totals={name: (float(micro_batch[SUM_OF + name][0]), float(micro_batch[ROWS_OF + name][0])) for name in summed},
        **whole,
    )


def count_columns(mask_RT: Tensor, columns_RT: dict[str, Tensor], mini_batch: int, reduce) -> dict[str, Tensor]:
    """Count columns (R,) for a rank's rows, cut into mini-batches in order; ``reduce`` sums a tensor over the ranks.

    ``columns_RT``: our per-token columns by name, whose sums and rows above 0 are counted as well.
    """
    mini_R = torch.arange(len(mask_RT), device=mask_RT.device) // mini_batch
    numbers = {NUM_TOKENS: mask_RT.sum(-1), NUM_ROWS: mask_RT.bool().any(-1)}
    for name, column_RT in columns_RT.items():
        inside_RT = torch.where(mask_RT.bool(), column_RT, 0.0)
        numbers[SUM_OF + name] = inside_RT.double().sum(-1)
        numbers[ROWS_OF + name] = (inside_RT > 0).any(-1)
    counts = {}
    for name, number_R in numbers.items():
        total_M = torch.zeros(int(mini_R[-1]) + 1, dtype=torch.float64, device=mask_RT.device)
        counts[name] = reduce(total_M.index_add_(0, mini_R, number_R.double()))[mini_R]
    return counts


class Means:
    """Token means over global mini-batches of what the losses report, averaged over the mini-batches."""

    def __init__(self) -> None:
        self._sums: dict[str, float | Tensor] = {}

    def add(self, ctx: LossContext) -> None:
        scale = ctx.dp_size / max(ctx.num_tokens, 1.0)
        for name, x_RT in ctx.token_means.items():
            share = torch.where(ctx.mask_RT, x_RT.detach().float(), 0.0).sum().double() * scale
            self._sums[name] = self._sums.get(name, 0.0) + share
        for name, x in ctx.token_sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + x.detach().double() * scale

    def result(self, mini_batches: int, average) -> dict[str, float]:
        """The means; ``average`` averages a vector over the ranks."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        values = average(torch.stack([torch.as_tensor(self._sums[name]) for name in names])) / max(mini_batches, 1)
        return dict(zip((f"verl_entropy/{name}" for name in names), values.tolist(), strict=True))
