# SPDX-License-Identifier: Apache-2.0
"""verl's own V1 trainer with rows, ranks, sharding and a mode other than those of ``test_runs.py``."""

import pytest
from runs import OURS, stop

pytestmark = pytest.mark.real


def test_a_row_per_trajectory_on_two_ranks_of_fsdp1_with_a_broken_environment(runner):
    """An episode whose environment crashes fails alone, and the batch trains on."""
    result = runner.run(
        "spans",
        *OURS,
        "actor_rollout_ref.rollout.agent.default_agent_loop=span_env",
        "data.max_response_length=96",
        "actor_rollout_ref.rollout.response_length=96",
        "+data.env.kwargs.crash_seed=2",
        "+data.env.max_tokens_per_turn=16",
        strategy="fsdp",
        world=2,
    )
    assert sorted(result.steps) == [1, 2]
    for step in result.steps.values():
        assert step["verl_entropy/active"] == 1.0 and step["verl_entropy/turns"] > 1
        assert step["verl_entropy/entropy"] == pytest.approx(step["actor/entropy"], abs=1e-5)
        assert step["verl_entropy/epo/entropy"] == pytest.approx(step["actor/entropy_loss"], abs=1e-4)
    assert "the simulator crashed" in result.log


def test_colocate_async(runner):
    result = runner.run("colocate", *OURS, "trainer.v1.trainer_mode=colocate_async")
    assert all(step["verl_entropy/active"] == 1.0 for step in result.steps.values())


def test_environments_that_cannot_be_built_end_an_asynchronous_run(runner):
    """verl alone takes every failed prompt for one to be replaced, and would ask for another for ever."""
    process = runner.start("unbuilt", "trainer.v1.trainer_mode=colocate_async", "+data.env.kwargs.colour=mauve")
    try:
        assert process.wait(timeout=600) != 0
    finally:
        stop(process)
    log = runner.result("unbuilt", 1).log
    assert "verl-entropy: an agent-loop worker cannot go on: the environment cannot be built" in log
    assert "unexpected keyword argument 'colour'" in log and "data.env.kwargs" in log
