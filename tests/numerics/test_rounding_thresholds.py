# SPDX-License-Identifier: Apache-2.0
"""Differences of fp32 rounding are no differences; larger ones still are."""

import pytest
import torch
from episodes import scored

from verl_entropy.methods.estimators.group_norm import group_norm
from verl_entropy.methods.losses.steer import steer_weights
from verl_entropy.methods.transforms.aem import aem_weights


@pytest.mark.parametrize("noise", [1.2e-7, 1.9e-6])
def test_aem_gives_entropies_equal_up_to_rounding_weight_one(noise):
    turns = scored([("a", 0.0)] * 4)
    assert torch.equal(aem_weights(torch.tensor([1.0, 1.0, 1.0, 1.0 + noise]), turns), torch.ones(4))
    assert aem_weights(torch.tensor([1.0, 1.0, 1.0, 1.001]), turns)[3] < 0.5


@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_scores_equal_up_to_rounding_give_no_advantage(statistics):
    turns = scored([("a", 9.6999989)] + [("a", 9.6999998)] * 3)
    assert not group_norm(turns, statistics=statistics)[0].any()
    assert group_norm(scored([("a", 9.699)] + [("a", 9.7)] * 3), statistics=statistics)[0][0] < -1


def test_linear_steer_gives_changes_equal_up_to_rounding_the_middle_weight():
    mask = torch.ones(1, 4, dtype=torch.bool)
    tied = steer_weights(torch.tensor([[0.3, 0.3, 0.3, 0.3 + 3e-8]]), mask, mode="linear")
    assert torch.equal(tied, torch.ones(1, 4))
    apart = steer_weights(torch.tensor([[0.3, 0.3, 0.3, 0.31]]), mask, mode="linear")
    torch.testing.assert_close(apart, torch.tensor([[1.2, 1.2, 1.2, 0.8]]))
