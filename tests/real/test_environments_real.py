# SPDX-License-Identifier: Apache-2.0
"""verl's own trainer on several environments at once: every one that runs here trains in both steps of one run."""

import json
import math
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "env"))
from conformance import specs

pytestmark = pytest.mark.real

STEPS, ROLLOUTS = 2, 2


def write_inputs(folder, chosen):
    """A loop per environment (JSON is YAML), and a parquet file whose n-th batch has the n-th row of each."""
    loops = [
        {
            "name": spec.name,
            "_target_": "verl_entropy.agent.stepwise.StepwiseAgentLoop",
            "env": {"name": spec.name, "kwargs": {"split": spec.split, **spec.kwargs}},
        }
        for spec in chosen
    ]
    (folder / "environments.yaml").write_text(json.dumps(loops))
    first = {spec.name: spec.first(STEPS) for spec in chosen}
    rows = [
        {
            "data_source": spec.name,
            "agent_name": spec.name,
            "prompt": [{"role": "user", "content": first[spec.name][step]["prompt"]}],
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": spec.name},
            "extra_info": {"seed": first[spec.name][step]["seed"], "options": json.dumps(first[spec.name][step]["options"])},
        }
        for step in range(STEPS)
        for spec in chosen
    ]
    pd.DataFrame(rows).to_parquet(folder / "environments.parquet")


def test_every_environment_trains_in_both_steps(runner):
    chosen = [spec for spec in specs() if not spec.missing()]
    names = {spec.name for spec in chosen}
    assert "household" in names
    write_inputs(runner.folder, chosen)
    dumps = runner.folder / "environments-dump"
    result = runner.run(
        "environments",
        "+entropy=[aem,epo]",
        f"data.train_files={runner.folder}/environments.parquet",
        f"data.train_batch_size={len(chosen)}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={len(chosen)}",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={runner.folder}/environments.yaml",
        f"trainer.rollout_data_dir={dumps}",
        "data.env.max_turns=2",
    )
    assert sorted(result.steps) == [1, 2]
    for step, metrics in result.steps.items():
        assert metrics["verl_entropy/active"] == 1.0
        assert math.isfinite(metrics["verl_entropy/epo/entropy"]) and metrics["actor/grad_norm"] > 0
        assert metrics["response_length/min"] >= 1  # every row has trained tokens
        rows = [json.loads(line) for line in (dumps / f"{step}.jsonl").read_text().splitlines()]
        rows = [row for row in rows if not row["uid"].startswith("pad")]  # verl fills the batch up with copies that train nothing
        sessions = {name: {row["uid"].rsplit("_", 1)[0] for row in rows if row["gts"] == name} for name in names}
        assert {name: len(found) for name, found in sessions.items()} == dict.fromkeys(names, ROLLOUTS)
    assert "given up" not in result.log  # no episode was dropped
