# SPDX-License-Identifier: Apache-2.0
"""verl's RayPPOTrainer under Ray on the CPU backend: trainer.use_v1=False, or any verl before 0.9."""

import json
import math

import pytest
from runs import OURS, differing

from verl_entropy.runs.runfile import RunReader

pytestmark = pytest.mark.real

TURNS = (*OURS, "trainer.use_v1=False", "trainer.save_freq=2", "trainer.test_freq=3")
"""A row per turn: more rows than verl sent prompts, filled up to whole mini-batches."""


@pytest.fixture(scope="module")
def whole(runner):
    file = f"++algorithm.entropy.diagnostics.run_file.folder={runner.folder}/file"
    told = "++algorithm.entropy.diagnostics.run_file.samples_every=1"
    return runner.run("ray", *TURNS, "trainer.total_training_steps=3", file, told)


def test_every_seam_and_the_state(runner, whole):
    """Estimator, transform, regularizer, head and diagnostics act in verl's metrics; state and run file are written."""
    assert sorted(whole.steps) == [1, 2, 3]
    for step in whole.steps.values():
        assert step["verl_entropy/active"] == 1.0 and step["verl_entropy/turns"] > 1
        for key in ("gigpo/anchor_groups", "epo/beta", "seal/loss", "turn_entropy/0", "timing_s/diagnostics"):
            assert math.isfinite(step[f"verl_entropy/{key}"]), key
        assert step["verl_entropy/entropy"] == pytest.approx(step["actor/entropy"], abs=1e-5)
        assert step["training/rollout_probs_diff_max"] < 1e-5
    assert math.isfinite(whole.steps[1]["verl_entropy/interference/drift"])  # the sample went through the log-prob pass
    assert any(key.startswith("val-core/colours/acc") for key in whole.steps[3])  # a validation counts episodes
    state = json.loads((whole.folder / "global_step_2" / "verl_entropy.json").read_text())
    assert state["state"]["epo"]["count"] == 2
    reader = RunReader(runner.folder / "file")
    assert list(reader.series("actor/grad_norm")[0]) == [1, 2, 3] and not any("clipped_tokens" in key for key in reader.keys)
    turn = dict(reader.samples())[2][0]["turns"][0]
    assert len(turn["clip"]) == len(turn["tokens"])  # came back from the workers


def test_resume_gives_the_same_next_step(runner, whole):
    """From the checkpoint of step 2, head, history and diagnostics go on as in the run that was not stopped."""
    (whole.folder / "latest_checkpointed_iteration.txt").write_text("2")
    resumed = runner.run("ray", *TURNS, "trainer.total_training_steps=3")
    assert differing(whole.steps[3], resumed.steps[3]) == []
