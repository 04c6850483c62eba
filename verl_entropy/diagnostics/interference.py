# SPDX-License-Identifier: Apache-2.0
"""Gradient interference between trajectories at the output layer."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def interference_gram(logits_NV: Tensor, tokens_N: Tensor, hidden_ND: Tensor, trajectory_N: Tensor, num: int) -> Tensor:
    """Inner products of the trajectories' output-layer gradients, fp32 [num, num].

        <g_i, g_j> = sum_{k, k'} (q_ik . q_jk') (h_ik . h_jk'),   q = onehot(y) - pi
        q . q' = 1[y = y'] - pi'(y) - pi(y') + pi . pi'

    ``logits_NV`` [N, V] and ``hidden_ND`` [N, D] belong to the positions that predict the N tokens;
    ``trajectory_N`` in [0, num) says whose they are. Needs N x V x 4 bytes and two N x N matrices: meant for
    a sample of some hundred tokens.

    Source: SEAL (arXiv 2605.27954), Lemma 3.2. The backbone's part of the gradient is left out, as there;
    with tied embeddings the input side of the matrix is not counted either.
    """
    prob = torch.softmax(logits_NV.float(), dim=-1)
    chosen = prob[:, tokens_N]
    same = (tokens_N.unsqueeze(1) == tokens_N.unsqueeze(0)).float()
    hidden = hidden_ND.float()
    kernel = (same - chosen - chosen.T + prob @ prob.T) * (hidden @ hidden.T)
    rows = torch.zeros(num, len(tokens_N), device=kernel.device).index_add(0, trajectory_N, kernel)
    return torch.zeros(num, num, device=kernel.device).index_add(1, trajectory_N, rows)


def interference(gram_JJ: Tensor, advantage_J: Tensor) -> dict[str, Tensor]:
    """Effect of the update on the mean log-likelihood, and its parts by the sign of the advantage.

        c_j = (1 / G) sum_i <g_i, g_j>       (includes i = j)
        d/dt mean_i log pi(y_i) = sum_j A_j c_j

    Source: SEAL (arXiv 2605.27954), Lemma 3.3. Returns ``coefficient_J`` and the 0-d ``drift``,
    ``drift_positive`` and ``drift_negative`` (the paper compares the strength of the latter before and after
    an eruption).
    """
    coefficient_J = gram_JJ.mean(0)
    part_J = advantage_J * coefficient_J
    zero = torch.zeros_like(part_J)
    return {
        "coefficient_J": coefficient_J,
        "drift": part_J.sum(),
        "drift_positive": torch.where(advantage_J > 0, part_J, zero).sum(),
        "drift_negative": torch.where(advantage_J < 0, part_J, zero).sum(),
    }
