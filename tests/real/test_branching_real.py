# SPDX-License-Identifier: Apache-2.0
"""verl's own trainer with rollouts that branch: an environment that clones, one whose actions are played again, and verl's tool loop."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from runs import differing

pytestmark = pytest.mark.real

N = 6
LOOPS = {"again": "colours:Colours", "cloned": "household"}
TOOLS = "tools"


PLAIN = ("verl_entropy.agent.stepwise.StepwiseAgentLoop", "every_tool.Loop")
HELD_UP = ("held_up.Stepwise", "held_up.Tools")


def inputs(folder, classes=PLAIN):
    """Two rows of each environment, and of the tool loop, in every batch of six."""
    loop, tool_loop = classes
    loops = [{"name": name, "_target_": loop, "env": {"name": env, "max_tokens_per_turn": 16}} for name, env in LOOPS.items()]
    loops.append({"name": TOOLS, "_target_": tool_loop})
    function = {"name": "count", "description": "count", "parameters": {"type": "object", "properties": {}, "required": []}}
    tool = {
        "class_name": "every_tool.Count",
        "config": {"type": "native"},
        "tool_schema": {"type": "function", "function": function},
    }
    (folder / "tools.yaml").write_text(json.dumps({"tools": [tool]}))
    (folder / "branching.yaml").write_text(json.dumps(loops))
    names = (*LOOPS, TOOLS)
    rows = [
        {
            "data_source": name,
            "agent_name": name,
            "prompt": [{"role": "user", "content": "go"}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": name},
            "extra_info": {"index": len(names) * seed + place, "seed": seed},  # rows are ordered by it
        }
        for seed in range(4)
        for place, name in enumerate(names)
    ]
    pd.DataFrame(rows).to_parquet(folder / "branching.parquet")
    return (
        "+entropy=[aepo]",
        f"data.train_files={folder}/branching.parquet",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/branching.yaml",
        f"actor_rollout_ref.rollout.n={N}",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={folder}/tools.yaml",
        "actor_rollout_ref.rollout.multi_turn.format=every_answer",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4",
        "data.train_batch_size=6",
        "data.max_response_length=64",
        "actor_rollout_ref.rollout.response_length=64",
        "data.max_prompt_length=400",
        "actor_rollout_ref.rollout.prompt_length=400",
        "algorithm.entropy.branching.roots=2",
        "algorithm.entropy.branching.penalty=0",
        "algorithm.entropy.branching.alpha=0.52",  # an untrained policy's entropy hardly changes: branch unless it falls by .1
        "algorithm.entropy.branching.shared=mean",
        "trainer.save_freq=1",
    )


def texts(file):
    """What was asked and answered in a step, its score, session and place in the session, in an order of its own."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted((row["input"], row["output"], row["score"], *row["uid"].rsplit("_", 2)[1:]) for row in rows)


@pytest.fixture(scope="module")
def whole(runner):
    return runner.run("branching", *inputs(runner.folder), f"trainer.rollout_data_dir={runner.folder}/branching-dump")


def test_both_environments_branch_in_every_step(runner, whole):
    assert sorted(whole.steps) == [1, 2] and "[verl-entropy] rollout: branching" in whole.log
    assert "played again" not in whole.log and "given up" not in whole.log
    for step, metrics in whole.steps.items():
        rows = [json.loads(line) for line in (runner.folder / f"branching-dump/{step}.jsonl").read_text().splitlines()]
        leaves = {(row["gts"], row["uid"].rsplit("_", 1)[0]) for row in rows if not row["uid"].startswith("pad")}
        assert sorted(name for name, _ in leaves) == sorted([*LOOPS, TOOLS] * 2 * N)  # n leaves of every prompt
        assert metrics["verl_entropy/active"] == 1.0 and metrics["actor/grad_norm"] > 0
        assert metrics["verl_entropy/rollout/generated_tokens"] > metrics["verl_entropy/rollout/reused_tokens"] > 0
        assert metrics["verl_entropy/branching/branched_leaves"] > 0.5  # more than one environment's alone could be
        # what was taken over is trained once: as many tokens left the loss
        assert metrics["verl_entropy/branching/copied_tokens"] == metrics["verl_entropy/rollout/reused_tokens"]
        assert all(math.isfinite(metrics[f"verl_entropy/branching/{part}_entropy"]) for part in ("root", "tool"))
        assert metrics["training/rollout_probs_diff_max"] < 1e-5
    state = json.loads((whole.folder / "global_step_1" / "verl_entropy.json").read_text())["state"]["branching"]
    assert state["root"] == pytest.approx(whole.steps[1]["verl_entropy/branching/root_entropy"])


def test_a_resumed_step_is_the_uninterrupted_one(runner, whole):
    """The same leaves in the same sessions, token for token, though requests come in another order: so a row falls into the same
    mini-batch, and metrics agree."""
    resume = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={whole.folder}/global_step_1")
    dump = f"trainer.rollout_data_dir={runner.folder}/branching-again-dump"
    again = runner.run("branching-again", *inputs(runner.folder, HELD_UP), *resume, dump)
    assert sorted(again.steps) == [2]
    assert texts(runner.folder / "branching-again-dump/2.jsonl") == texts(runner.folder / "branching-dump/2.jsonl")
    for key in differing(whole.steps[2], again.steps[2]):  # the sampler's log-probs have other last bits in another batch
        assert again.steps[2][key] == pytest.approx(whole.steps[2][key], rel=1e-6, abs=1e-9), key
