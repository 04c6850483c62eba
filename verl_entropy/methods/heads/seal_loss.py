# SPDX-License-Identifier: Apache-2.0
"""The auxiliary loss of SEAL (arXiv 2605.27954) and its labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from verl_entropy.batch.turns import Turns


def seal_loss(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None, *, row_weight_R: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of each token, to minimise; (R, T), fp32, 0 outside the mask.

        loss = -[z log p + (1 - z) log(1 - p)],   p = sigmoid(logit), z = 1 on a correct trajectory      Eq. 3

    The paper's L_SEAL is the token mean over the global batch: ``aggregate(loss_RT, ..., "token-mean")``. The
    authors' code differs in the label, see ``advantage_label``, and reads the token's own hidden state.

    Args:
        logits_RT: output of ``SealHead``, with gradient; masked positions may hold anything.
        label: bool or 0/1, one per row (R,) or token (R, T).
        mask_RT: trained tokens. None: ``logits_RT`` holds the trained tokens alone, as the head returns them, and label and
            weight are given per token, all (N,).
        row_weight_R: weight of the row's loss, for example ``mixed_group_weight``; the denominator stays.
    """
    logits_RT, label_RT = _masked(logits_RT, label, mask_RT)
    loss_RT = F.binary_cross_entropy_with_logits(logits_RT, label_RT, reduction="none")
    if row_weight_R is not None:
        loss_RT = loss_RT * _per_token(row_weight_R.to(loss_RT.dtype), loss_RT)
    return loss_RT if mask_RT is None else torch.where(mask_RT.bool(), loss_RT, 0.0)


def seal_parts(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None) -> dict[str, Tensor]:
    """Per-token accuracy, probability and label; their token means are ``verl_entropy/methods/heads/<name>``. Layouts as ``seal_loss``."""
    logits_RT, label_RT = _masked(logits_RT.detach(), label, mask_RT)
    parts = {
        "accuracy": ((logits_RT > 0) == label_RT.bool()).to(logits_RT.dtype),
        "probability": torch.sigmoid(logits_RT),
        "label": label_RT,
    }
    if mask_RT is None:
        return parts
    return {name: torch.where(mask_RT.bool(), part, 0.0) for name, part in parts.items()}


def _masked(logits_RT: Tensor, label: Tensor, mask_RT: Tensor | None) -> tuple[Tensor, Tensor]:
    """fp32 logits and labels, per token, 0 outside the mask."""
    logits_RT = logits_RT.to(torch.promote_types(logits_RT.dtype, torch.float32))
    label_RT = _per_token(label.to(logits_RT.dtype), logits_RT).expand_as(logits_RT)
    if mask_RT is None:
        return logits_RT, label_RT
    mask_RT = mask_RT.bool()
    return torch.where(mask_RT, logits_RT, 0.0), torch.where(mask_RT, label_RT, 0.0)


def _per_token(value: Tensor, like: Tensor) -> Tensor:
    """A value per row as one that broadcasts over the row's tokens."""
    return value[:, None] if value.dim() < like.dim() else value


def success_label(turns: Turns) -> Tensor:
    """Label of the paper: every turn of a trajectory that reached its goal is correct; (R,), bool."""
    return _to_rows(turns.success_J[turns.trajectory_K], turns)


def advantage_label(advantages_RT: Tensor) -> Tensor:
    """Label of the authors' code: "correct" where the advantage is not negative, 0 included; (R, T), bool."""
    return advantages_RT >= 0


def mixed_group_weight(turns: Turns) -> Tensor:
    """1 for rows of prompt groups with correct and wrong trajectories, 0 for uniform groups; (R,), fp32."""
    correct_J = turns.success_J.long()
    correct_P = correct_J.new_zeros(turns.num_groups).index_add_(0, turns.group_J, correct_J)
    size_P = torch.bincount(turns.group_J, minlength=turns.num_groups)
    mixed_P = (correct_P > 0) & (correct_P < size_P)
    return _to_rows(mixed_P[turns.group_K], turns).float()


def _to_rows(value_K: Tensor, turns: Turns) -> Tensor:
    """Value of the row's turns, which agree; 0 for rows without a turn."""
    return value_K.new_zeros(turns.mask_RT.shape[0]).index_copy_(0, turns.row_K, value_K)
