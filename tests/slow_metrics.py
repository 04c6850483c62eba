# SPDX-License-Identifier: Apache-2.0
"""Metrics written over every token, as their sources state them: what the quick forms of ``verl_entropy.diagnostics`` must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_entropy.batch.turns import Turns
from verl_entropy.diagnostics.likelihood import valid_trajectories
from verl_entropy.diagnostics.predictors import aem_drift_of_turns, covariance_predictor, token_mean
from verl_entropy.diagnostics.windows import EntropyWindows, window_means


def trajectory_log_prob(log_prob_RT: Tensor, turns: Turns) -> tuple[Tensor, Tensor]:
    """Sum and token mean of the log-probability of each trajectory, fp32 [J]; 0 for a trajectory without trained tokens.

    SEAL (arXiv 2605.27954), Fig. 5 and 10, says "log-probability" only; hence both.
    """
    zeros = torch.zeros(turns.num_trajectories, dtype=torch.float64, device=turns.mask_RT.device)
    total = zeros.index_add(0, turns.trajectory_K, turns.sum(log_prob_RT).double())
    count = zeros.index_add(0, turns.trajectory_K, turns.lengths_K.double())
    return total.float(), (total / count.clamp_min(1.0)).float()


def likelihood_by_class(log_prob_RT: Tensor, turns: Turns) -> dict[str, float]:
    """Mean over the trajectories of a class of their log-probability, summed and per token.

    Keys ``<class>_log_prob_sum`` and ``<class>_log_prob_mean`` for correct, wrong and valid; a class without
    trajectories has no key. These are the current samples, not a fixed probe set: the class mean also moves
    because the samples do.
    """
    total_J, mean_J = trajectory_log_prob(log_prob_RT, turns)
    classes = {"correct": turns.success_J, "wrong": ~turns.success_J, "valid": valid_trajectories(turns)}
    metrics = {}
    for name, member_J in classes.items():
        if member_J is not None and bool(member_J.any()):
            metrics[f"{name}_log_prob_sum"] = float(total_J[member_J].double().mean())
            metrics[f"{name}_log_prob_mean"] = float(mean_J[member_J].double().mean())
    return metrics


def likelihood_covariance(log_prob_RT: Tensor, delta_log_prob_RT: Tensor, mask_RT: Tensor) -> Tensor:
    """Cov(log pi, d log pi) over the valid tokens (ddof 0); below 0 entropy rises (SEAL, arXiv 2605.27954, Lemma 3.4).

    ``delta_log_prob_RT`` is the realised change of the log-probability of the same tokens. Note the sign:
    unlike the predictors above, negative means rising. Shapes [R, T]; 0-d result.
    """
    return -covariance_predictor(delta_log_prob_RT, log_prob_RT, mask_RT)


def aem_drift(advantages_RT: Tensor, log_prob_RT: Tensor, entropy_RT: Tensor, turns: Turns) -> dict[str, Tensor]:
    """``predictors.aem_drift_of_turns`` from tokens, [R, T]."""
    return aem_drift_of_turns(turns.mean(advantages_RT), turns.mean(log_prob_RT), turns.mean(entropy_RT), turns)


def clip_fractions(
    log_prob_RT: Tensor, old_log_prob_RT: Tensor, advantages_RT: Tensor, mask_RT: Tensor, *, eps_low: float, eps_high: float
) -> tuple[Tensor, Tensor]:
    """Shares of valid tokens clipped above (w > 1 + eps_high, A > 0) and below (w < 1 - eps_low, A < 0); REPO, appendix A.1.

    Rounding of 16-bit logits moves tokens from the lower to the upper side, so the two are worth logging
    apart.
    """
    ratio = (log_prob_RT - old_log_prob_RT).exp()
    high = token_mean(((ratio > 1.0 + eps_high) & (advantages_RT > 0)).float(), mask_RT)
    low = token_mean(((ratio < 1.0 - eps_low) & (advantages_RT < 0)).float(), mask_RT)
    return high, low


def mean_representation(hidden_RTD: Tensor, turns: Turns) -> Tensor:
    """Mean hidden state over the trained tokens of each trajectory, fp32 [J, D]; 0 for a trajectory without any.

    Source: SEAL (arXiv 2605.27954), Fig. 3: last layer, averaged over the response tokens.
    """
    states = hidden_RTD[turns.mask_RT].float()
    trajectory = turns.trajectory_K[turns.turn_RT[turns.mask_RT]]
    total = torch.zeros(turns.num_trajectories, hidden_RTD.shape[-1], device=states.device).index_add(0, trajectory, states)
    count = torch.bincount(trajectory, minlength=turns.num_trajectories).clamp_min(1)
    return total / count.unsqueeze(-1)


def windows_by_turn(entropy_RT: Tensor, turns: Turns, n: int = 10) -> EntropyWindows:
    """First and last ``n`` turns; a turn's value is the mean entropy of its tokens.

    Source: EPO (arXiv 2509.22576), Fig. 1 and 7, whose caption says trajectory steps; the authors' code logs
    the entropy of each environment step.
    """
    length_J = torch.bincount(turns.trajectory_K, minlength=turns.num_trajectories)
    return window_means(turns.mean(entropy_RT), turns.index_K, length_J, turns.trajectory_K, n)


def windows_by_token(entropy_RT: Tensor, turns: Turns, n: int = 10) -> EntropyWindows:
    """First and last ``n`` trained tokens of the whole episode.

    Source: EPO, appendix B.4.1 (n = 10), which contradicts the caption; hence both.
    """
    row, column = turns.mask_RT.nonzero(as_tuple=True)
    turn = turns.turn_RT[row, column]
    # Tokens come row by row; turn ids follow trajectories and positions, so a stable sort by turn gives episode order.
    order = turn.argsort(stable=True)
    trajectory = turns.trajectory_K[turn[order]]
    length_J = torch.bincount(trajectory, minlength=turns.num_trajectories)
    start_J = length_J.cumsum(0) - length_J
    rank = torch.arange(len(order), device=order.device) - start_J[trajectory]
    row, column = row[order], column[order]
    return window_means(entropy_RT[row, column].float(), rank, length_J, trajectory, n)
