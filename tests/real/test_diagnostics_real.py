# SPDX-License-Identifier: Apache-2.0
"""Diagnostics in verl's own trainer: a run whose entropy is first driven down and then, after a resume, made to erupt.

How the eruption is induced: verl's own ``entropy_coeff`` is negative in the first session, so the policy sharpens from near uniform,
and positive in the second, so entropy climbs back. The detector sees nothing but the entropy of the run. ``rise_share`` is below its
default of one half, because a policy over 36 words that has sharpened to 2.8 nats has 3.6 to go to.
"""

import json
import math
from dataclasses import dataclass

import pytest
from runs import Result

from verl_entropy.diagnostics import glossary, live
from verl_entropy.diagnostics.phases import Phases, detect
from verl_entropy.runs.runfile import RunReader

pytestmark = pytest.mark.real

FIRST, LAST = 14, 60
DIAGNOSTICS = "++algorithm.entropy.diagnostics"
P = live.PREFIX


@dataclass
class Sessions:
    """Both sessions, and the run file as it was between them and at the end."""

    first: Result
    second: Result
    between: RunReader
    end: RunReader


@pytest.fixture(scope="module")
def sessions(runner):
    """Plain GRPO with nothing of ours but the diagnostics."""
    folder = runner.folder / "run-file"

    def session(steps: int, coeff: float, *more: str) -> tuple[Result, RunReader]:
        result = runner.run(
            "diagnosed",
            f"trainer.total_training_steps={steps}",
            f"trainer.save_freq={FIRST}",
            f"actor_rollout_ref.actor.entropy_coeff={coeff}",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            f"{DIAGNOSTICS}.costly_every=2",
            "actor_rollout_ref.actor.optim.lr=3e-3",
            f"{DIAGNOSTICS}.on_eruption=stop",
            f"{DIAGNOSTICS}.detector.rise_share=0.1",
            f"{DIAGNOSTICS}.run_file.folder={folder}",
            f"{DIAGNOSTICS}.run_file.samples_every=4",
            f"{DIAGNOSTICS}.run_file.max_samples=3",
            *more,
        )
        return result, RunReader(folder)

    first, between = session(FIRST, -1.0, "trainer.val_before_train=True")
    second, end = session(LAST, 1.0)
    return Sessions(first, second, between, end)


def test_every_metric_is_in_the_glossary(sessions):
    logged = set().union(*sessions.first.steps.values(), *sessions.second.steps.values())
    assert [key for key in sorted(logged) if key.startswith(P) and glossary.find(key) is None] == []
    for key in (
        *("entropy", "success", "turn_entropy/0", "cumulative_entropy", "predictor/repo", "predictor_agreement/repo"),
        *("aem_drift/surprisal", "likelihood/wrong_log_prob_mean", "clipfrac_high", "group/zero_variance", "phase"),
        *("duplication", "repeated_action_ratio", "format_error_ratio", "interference/drift_negative"),
        *("interference/cosine", "representation/distance", "timing_s/diagnostics"),
    ):
        assert P + key in logged, key
    assert "training/rollout_probs_diff_mean" in logged


def test_the_run_file_has_what_verl_logged(sessions):
    """All steps and all numbers of verl's file logger, the validation before training too."""
    reader = sessions.between
    assert reader.steps.tolist() == list(range(FIRST + 1)) and reader.problems == []
    for step, logged in sessions.first.steps.items():
        for key, value in logged.items():
            steps, values = reader.series(key)
            stored = values[steps == step]
            assert len(stored) == 1 and (stored[0] == value or not math.isfinite(value)), (step, key)
    assert reader.config["actor_rollout_ref"]["actor"]["entropy_coeff"] == -1.0


def test_turns_and_trajectories_of_the_run_file(sessions):
    turns = sessions.between.turns()
    assert sorted(set(turns["step"].tolist())) == list(range(1, FIRST + 1))
    sampled = (turns["step"] == 1) | (turns["step"] % 2 == 0)
    assert (turns["interference"] == turns["interference"]).tolist() == sampled.tolist()  # 16 trajectories: all are sampled
    samples = dict(sessions.between.samples())
    assert sorted(samples) == [4, 8, 12]
    told = [s for s in samples[4] if s.get("turns")]
    assert len(told) == 3 and len(samples[4]) == 16
    first = told[0]["turns"][0]
    assert {"prompt", "observation", "action", "reward", "advantage", "advantage_before", "entropy"} <= first.keys()
    assert "".join(first["tokens"]) == first["text"] and told[0]["task"]
    seen, prompt = ("".join(first[key].lower().split()) for key in ("observation", "prompt"))  # tokenizers move spaces
    assert seen[:40] in prompt
    assert all(len(s["representation"]) == 8 for s in samples[4])
    for turn in (turn for s in told for turn in s["turns"]):
        assert turn["text"] and len(turn["tokens"]) == len(turn["entropy"]) and {"reward", "valid", "advantage"} <= turn.keys()
        assert len(turn["clip"]) == len(turn["tokens"]) and set(turn["clip"]) <= {-1, 0, 1}  # came back from the workers
    assert not any("clipped_tokens" in key for key in sessions.between.keys)


def test_the_detectors_state_is_in_the_checkpoint(sessions):
    state = json.loads((sessions.first.folder / f"global_step_{FIRST}" / "verl_entropy.json").read_text())
    assert state["diagnostics"]["detector"]["seen"] == FIRST
    assert state["diagnostics"]["cumulative"]["total"] == sessions.first.steps[FIRST][P + "cumulative_entropy"]


def test_the_induced_eruption_is_marked_and_stops_the_run(sessions):
    steps, end = sessions.second.steps, sessions.end
    last = max(steps)
    assert min(steps) == FIRST + 1 and end.steps.tolist() == list(range(last + 1))
    entropy = end.series(P + "entropy")[1]
    assert entropy[0] > entropy[FIRST - 1] + 0.2, "the first session must sharpen the policy"
    assert last < LAST and [s for s in steps if steps[s][P + "phase"] == 2.0] == [last]
    assert steps[last][P + "eruptions"] == 1.0
    log = sessions.second.log
    assert "entropy erupts" in log and f"training ends after step {last} of {LAST}" in log
    assert f"eruption at step {last}" in log
    assert (sessions.second.folder / f"global_step_{last}" / "verl_entropy.json").is_file()
    _, spans = detect(*map(list, end.series(P + "entropy")), Phases(rise_share=0.1), resumes=[FIRST + 1])
    assert [s.phase for s in spans] == ["descent", "eruption"] and FIRST <= spans[1].first <= FIRST + 8


def test_the_cost_is_small(sessions):
    """Steps of a toy take about a second; those of a real model take minutes and have the same cost per row."""
    shares = [s[P + "timing_s/diagnostics"] / s["timing_s/step"] for s in sessions.first.steps.values() if "timing_s/step" in s]
    assert sorted(shares)[len(shares) // 2] < 0.1
