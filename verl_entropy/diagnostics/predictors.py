# SPDX-License-Identifier: Apache-2.0
"""First-order predictors of the change of entropy, from numbers that a training step has anyway.

They rest on different assumptions and can disagree in sign: log all of them. A positive value predicts rising entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns


def token_mean(x_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """Mean over the valid tokens in fp32, 0-d; 0 on an empty mask."""
    total = torch.where(mask_RT, x_RT.float(), 0.0).sum(dtype=torch.float64)
    return (total / mask_RT.sum().clamp_min(1)).float()


def repo_predictor(advantages_RT: Tensor, log_prob_RT: Tensor, entropy_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """-mean(A L pi) with L = log pi + H: REPO, Cor. 1, for a softmax policy whose logits take a gradient step.

    Per unit of learning rate, exact for one state if A is centred under the policy. Shapes [R, T]; 0-d
    result.
    """
    centred = log_prob_RT + entropy_RT
    return -token_mean(advantages_RT * centred * log_prob_RT.exp(), mask_RT)


def covariance_predictor(advantages_RT: Tensor, log_prob_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """-Cov(A, log pi) over the valid tokens (ddof 0): Cui et al., arXiv 2505.22617, for a natural-gradient step.

    Shapes [R, T]; 0-d result. It pools tokens of all states, while the theorem is per state.
    """
    advantages = advantages_RT - token_mean(advantages_RT, mask_RT)
    return -token_mean(advantages * (log_prob_RT - token_mean(log_prob_RT, mask_RT)), mask_RT)


def discriminator_predictor(
    advantages_RT: Tensor, log_prob_RT: Tensor, entropy_RT: Tensor, vocab_centre_RT: Tensor, mask_RT: Tensor
) -> Tensor:
    """-mean(A (S - N)), S = pi (H + log pi), N = sum_v pi_v^2 (H + log pi_v): arXiv 2602.03392, Thm 3.3.

    The change per unit of step of the policy-gradient update of each sampled token; N from
    ``transforms.clip_v.vocab_centre``. Shapes [R, T]; 0-d result.
    """
    score = log_prob_RT.exp() * (entropy_RT + log_prob_RT)
    return -token_mean(advantages_RT * (score - vocab_centre_RT), mask_RT)


def group_mean(value_K: Tensor, turns: Turns) -> Tensor:
    """Mean of a turn's value over the turns of its prompt group, given to each of them, fp32 [K]."""
    zeros = torch.zeros(turns.num_groups, dtype=torch.float64, device=value_K.device)
    total = zeros.index_add(0, turns.group_K, value_K.double())
    count = zeros.index_add(0, turns.group_K, torch.ones_like(value_K, dtype=torch.float64))
    return (total / count.clamp_min(1.0))[turns.group_K].float()


def aem_drift_of_turns(advantage_K: Tensor, log_prob_K: Tensor, entropy_K: Tensor, turns: Turns) -> dict[str, Tensor]:
    """Mean over turns of A (S - H_resp), the entropy drift of AEM (arXiv 2605.00425, Thm 3.2); positive: entropy rises.

    S = -log pi(response). The response entropy H_resp is not observable; the readings differ in what stands
    for S - H_resp:

        surprisal             S minus the mean of S over the prompt group
        surprisal_per_token   the same for S / length
        entropy_proxy         mean token entropy minus its group mean (AEM's own proxy, the predictable part)
        martingale            (S - sum_t H_t) / length, the zero-mean noise that the proxy leaves out

    Group means are a baseline only for turns that share their state (the first turn); later turns differ in
    state. From the token means of each turn, [K]; 0-d results, 0 without turns.
    """
    surprisal_K = -log_prob_K * turns.lengths_K
    difference = {
        "surprisal": surprisal_K - group_mean(surprisal_K, turns),
        "surprisal_per_token": -log_prob_K - group_mean(-log_prob_K, turns),
        "entropy_proxy": entropy_K - group_mean(entropy_K, turns),
        "martingale": -log_prob_K - entropy_K,
    }
    return {name: (advantage_K * d).sum() / max(turns.num_turns, 1) for name, d in difference.items()}
