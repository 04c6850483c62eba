# SPDX-License-Identifier: Apache-2.0
"""Gradient interference between trajectories at the output layer."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def interference_gram(logits_NV: Tensor, tokens_N: Tensor, hidden_ND: Tensor, trajectory_N: Tensor, num: int) -> Tensor:
    """Inner products of the trajectories' output-layer gradients, fp32 [num, num].

        <g_i, g_j> = sum_{k, k'} (q_ik . q_jk') (h_ik . h_jk'),   q = onehot(y) - pi

    ``logits_NV`` [N, V] and ``hidden_ND`` [N, D] belong to the positions that predict the N tokens;
    ``trajectory_N`` in [0, num) says whose they are. Needs N x V x 4 bytes and two N x N matrices: meant for
    a sample of some hundred tokens. q is formed before the product: q . q' written out in probabilities would
    cancel to rounding noise where a policy is sure, and give squared norms below 0.

    Source: SEAL (arXiv 2605.27954), Lemma 3.2. The backbone's part of the gradient is left out, as there;
    with tied embeddings the input side of the matrix is not counted either.
    """
    chosen_N1 = tokens_N.unsqueeze(-1)
    others_NV = torch.softmax(logits_NV.float(), dim=-1).scatter_(-1, chosen_N1, 0.0)
    rest_N1 = others_NV.sum(-1, keepdim=True)  # 1 - pi(y) to full precision, also where pi(y) rounds to 1
    q_NV = others_NV.neg_().scatter_(-1, chosen_N1, rest_N1)
    hidden = hidden_ND.float()
    kernel = (q_NV @ q_NV.T) * (hidden @ hidden.T)
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
