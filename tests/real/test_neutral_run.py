# SPDX-License-Identifier: Apache-2.0
"""verl's own V1 trainer with nothing of ours chosen, and with methods at settings that do nothing."""

import pytest
from runs import differing

pytestmark = pytest.mark.real


def test_neutral_settings_equal_verls_own_grpo_bit_for_bit(runner):
    """The same two steps with nothing of ours chosen and with neutral settings: every number that verl logs is the same."""
    stock = runner.run("stock")
    neutral = runner.run(
        "neutral",
        "+entropy=[aem,seal,epo]",
        "algorithm.entropy.aem.temperature=0",
        "actor_rollout_ref.actor.seal.alpha=0",
        "actor_rollout_ref.actor.policy_loss.epo.entropy_coeff=0",
    )
    assert not any("verl_entropy" in key for key in stock.steps[1])
    assert "[verl-entropy]" not in stock.log
    for step in (1, 2):
        assert differing(stock.steps[step], neutral.steps[step]) == []
    assert stock.steps[2]["actor/grad_norm"] != 0
