# SPDX-License-Identifier: Apache-2.0
"""The diagnostics in the trainer's process, without a trainer: what is read, kept, stored and done."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from episodes import make_episodes
from test_live import context

pytest.importorskip("verl")
from omegaconf import OmegaConf

from verl_entropy.config import checks, plan
from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics import live
from verl_entropy.diagnostics.interference import interference
from verl_entropy.diagnostics.settings import Live, read_live
from verl_entropy.hosts.common import diagnostics_side, state
from verl_entropy.hosts.common.trainer_keys import CLIPPED, ROW, ROW_SIZE
from verl_entropy.hosts.verl_engine import driver
from verl_entropy.runs.runfile import RunReader

P = live.PREFIX


class Words:
    """A tokenizer of numbers."""

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def batch_decode(self, rows, **_):
        return [self.decode(row) for row in rows]


def rows_of(x) -> dict:
    """The queue's answer: responses of the context's rows."""
    lengths = [max(int(m.nonzero().max()) + 1 if m.any() else 1, 1) for m in x.mask_RT]
    return {"responses": torch.nested.as_nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged)}


def opened(tmp_path, **more) -> diagnostics_side.DiagnosticsSide:
    side = diagnostics_side.DiagnosticsSide(
        read_live({"run_file": {"folder": str(tmp_path / "run"), "samples_every": 1}, **more})
    )
    side.open(OmegaConf.create({"trainer": {"experiment_name": "e"}}))
    return side


def test_two_batches_of_a_step_move_the_state_once_and_are_stored_together(tmp_path):
    side, x = opened(tmp_path), context(make_episodes(0))
    metrics = side.step(x, rows_of(x), Words())
    again = side.step(x, rows_of(x), Words())
    assert f"{P}cumulative_entropy" in metrics and f"{P}cumulative_entropy" not in again
    assert side.live.detector.seen == 1
    logged = {**metrics, "actor/grad_norm": float("nan")}
    side.finish(1, logged)
    assert logged[f"{P}timing_s/diagnostics"] > 0
    reader = RunReader(tmp_path / "run")
    turns = reader.turns()
    assert len(turns["turn"]) == 2 * x.turns.num_turns
    assert len(np.unique(turns["trajectory"])) == 2 * x.turns.num_trajectories
    assert np.isnan(reader.series("actor/grad_norm")[1]).all() and reader.name == "e"
    ((step, samples),) = reader.samples()
    assert step == 1 and samples[0]["turns"][0]["text"]


def test_a_stored_turn_tells_on_which_side_its_tokens_were_clipped(tmp_path):
    side, x = opened(tmp_path), context(make_episodes(0))
    assert side.worker_columns(x)[ROW].tolist() == list(range(1, len(x.mask_RT) + 1))
    side.step(x, rows_of(x), Words())
    assert side.worker_columns(x) == {}  # a second batch of the step is not stored
    n = max(range(len(side._told)), key=lambda n: len(side._told[n][2]))
    _, row, places = side._told[n]
    metrics = {CLIPPED: [0, (row + 1) * ROW_SIZE + places[0], -((row + 1) * ROW_SIZE + places[-1])], "loss": [1.0]}
    side.take_clipped(metrics)
    side.finish(1, metrics)
    ((_, samples),) = RunReader(tmp_path / "run").samples()
    told = [t for s in samples for t in s.get("turns", ())]
    assert metrics.keys() >= {"loss"} and CLIPPED not in metrics
    assert told[n]["clip"] == [1, *[0] * (len(places) - 2), -1] and sum(any(turn["clip"]) for turn in told) == 1


def test_interference_is_between_the_rollouts_of_a_prompt():
    x = context(make_episodes(3))
    turns, generator = x.turns, torch.Generator().manual_seed(0)
    trajectory = torch.arange(turns.num_trajectories)
    states = torch.randn(len(trajectory), 5, generator=generator)
    gram = states @ states.T
    x.advantages_RT = turns.to_tokens(torch.randn(turns.num_turns, generator=generator))
    metrics, found = diagnostics_side.sampled_metrics(x, trajectory, gram, states)
    advantage = torch.tensor(
        [float(turns.mean(x.advantages_RT)[turns.trajectory_K == j].double() @ w) for j, w in _weights(turns)]
    )
    drifts = []
    for group in range(turns.num_groups):
        inside = turns.group_J == group
        part = interference(gram[inside][:, inside], advantage[inside].float())
        drifts.append(float(part["drift"]))
        np.testing.assert_allclose(found["coefficient"][inside.numpy()], part["coefficient_J"].numpy(), rtol=1e-5)
    assert metrics[f"{P}interference/drift"] == pytest.approx(np.mean(drifts), rel=1e-4)
    parts = metrics[f"{P}interference/drift_positive"] + metrics[f"{P}interference/drift_negative"]
    assert parts == pytest.approx(metrics[f"{P}interference/drift"], rel=1e-4)
    distances = torch.cdist(torch.tensor(found["coordinates"]), torch.tensor(found["coordinates"]))
    torch.testing.assert_close(distances, torch.cdist(states, states), rtol=1e-3, atol=1e-3)  # all of 5 dimensions are kept


def test_the_cosine_of_gradients_without_length_is_left_out():
    group = torch.tensor([0, 0, 0, 1, 1])
    gram = torch.zeros(5, 5)
    gram[:2, :2] = torch.tensor([[4.0, -1.0], [-1.0, 1.0]])
    gram[2, 2], gram[0, 2], gram[2, 0] = -1e-9, 1e-4, 1e-4  # rounding noise of a trajectory that the policy was sure of
    gram[3, 4] = gram[4, 3] = 1e-8
    assert diagnostics_side._cosine(gram, group) == pytest.approx(-0.5)
    assert np.isnan(diagnostics_side._cosine(torch.zeros(5, 5), group))


def test_a_step_that_was_sampled_with_other_weights_is_said_once(tmp_path, capsys):
    side = opened(tmp_path)
    for step, gap in enumerate((0.002, 0.166, 0.14, 0.002, 0.08), 1):
        side.finish(step, {"training/rollout_probs_diff_mean": gap})
    side.finish(6, {})
    said = [line for line in capsys.readouterr().err.splitlines() if "other weights than the trainer" in line]
    assert [line.split("step ")[1].split(":")[0] for line in said] == ["2", "5"]


def _weights(turns):
    """Share of each turn in the tokens of its trajectory."""
    for j in range(turns.num_trajectories):
        lengths = turns.lengths_K[turns.trajectory_K == j].double()
        yield j, lengths / lengths.sum()


@pytest.mark.parametrize(
    ("action", "save_freq", "step", "saves", "stops"),
    [
        ("none", 5, 7, 0, False),
        ("warn", 5, 7, 0, False),
        ("checkpoint", 5, 7, 1, False),
        ("checkpoint", -1, 7, 1, False),
        ("checkpoint", 7, 7, 0, False),  # verl saves this step itself
        ("stop", 5, 7, 1, True),
        ("stop", -1, 7, 0, True),
        ("stop", 7, 7, 0, True),
    ],
)
def test_actions_on_an_eruption(action, save_freq, step, saves, stops, capsys):
    saved = []
    trainer = SimpleNamespace(
        global_steps=step,
        total_training_steps=100,
        config=SimpleNamespace(trainer=SimpleNamespace(save_freq=save_freq)),
        _save_checkpoint=lambda: saved.append(step),
    )
    side = diagnostics_side.DiagnosticsSide(Live(on_eruption=action))
    x = context(make_episodes(1))
    for x.step in range(60):
        x.entropy = 0.2 + 0.05 * max(x.step - 30, 0)
        side.step(x, {}, Words())
    assert side.live.detector.phase == "eruption"
    side.act(trainer)
    side.act(trainer)
    assert len(saved) == saves and trainer.total_training_steps == (step if stops else 100)
    told = capsys.readouterr().err
    assert ("entropy erupts" in told) == (action != "none") and "eruption at step" in told and "early signs: none" in told


def test_state_survives_and_older_ones_start_afresh(tmp_path, capsys):
    raw = {"algorithm": {"adv_estimator": "grpo", "entropy": {"diagnostics": {"enabled": True}}}}
    run, x = state.Run(plan.read(raw)), context(make_episodes(1))
    run.diagnostics.step(x, {}, Words())
    state.save(run, tmp_path / "new", 1)
    resumed = state.Run(plan.read(raw))
    state.load(resumed, tmp_path / "new")
    assert resumed.diagnostics.state_dict() == run.diagnostics.state_dict() and resumed.diagnostics.live.detector.seen == 1
    content = json.loads((tmp_path / "new" / state.FILE).read_text())
    for name, value in (("old", None), ("foreign", {"detector": 1})):
        (tmp_path / name).mkdir()
        kept = {k: v for k, v in content.items() if k != "diagnostics"} if value is None else {**content, "diagnostics": value}
        (tmp_path / name / state.FILE).write_text(json.dumps(kept))
        fresh = state.Run(plan.read(raw))
        state.load(fresh, tmp_path / name)
        assert fresh.diagnostics.live.detector.seen == 0
    assert "start afresh" in capsys.readouterr().err


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[]", b'{"state": 3}'])
def test_a_damaged_state_is_named(tmp_path, text):
    run = state.Run(plan.read({"algorithm": {"adv_estimator": "grpo", "entropy": {"diagnostics": {"enabled": True}}}}))
    (tmp_path / state.FILE).write_bytes(text)
    with pytest.raises(ConfigError, match="Resume from another checkpoint"):
        state.load(run, tmp_path)


def test_a_lost_disk_ends_the_run_file_only(tmp_path, capsys):
    side, x = opened(tmp_path, costly_every=0), context(make_episodes(0))
    side.step(x, rows_of(x), Words())
    (tmp_path / "run" / "turns").rename(tmp_path / "gone")
    side.finish(1, {})
    side.finish(2, {})
    assert side.writer is None and "the training goes on" in capsys.readouterr().err


def test_a_second_session_in_the_same_folder_says_what_it_replaces(tmp_path, capsys):
    for steps in (range(1, 6), range(4, 7)):
        side = opened(tmp_path)
        for step in steps:
            side.finish(step, {"m": float(step + len(steps))})
        side.writer.close()
    assert RunReader(tmp_path / "run").series("m")[1].tolist() == [6.0, 7.0, 8.0, 7.0, 8.0, 9.0]
    assert "steps 4 to 5 of an earlier session are replaced" in capsys.readouterr().err


# ----------------------------------------------------------------------------- settings

PLAIN = {
    "trainer": {"use_v1": True},
    "actor_rollout_ref": {"actor": {"strategy": "fsdp2"}, "rollout": {"n": 4}},
}


def read(entropy, **more):
    return plan.read({"algorithm": {"adv_estimator": "grpo", "entropy": entropy}, **PLAIN, **more})


@pytest.mark.parametrize(
    ("entropy", "active", "runs"),
    [
        (None, False, False),
        ({"diagnostics": {}}, True, True),
        ({"diagnostics": {"enabled": False}}, False, False),
        ({"transforms": ["aem"]}, True, True),
        ({"transforms": ["aem"], "diagnostics": {"enabled": False}}, True, False),
    ],
)
def test_when_the_diagnostics_run(entropy, active, runs):
    chosen = read(entropy)
    assert chosen.active == active and (state.Run(chosen).diagnostics is not None) == runs
    assert any("diagnostics: " in line for line in chosen.describe())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"evry": 3}, "diagnostics.evry"),
        ({"costly_every": -1}, "costly_every=-1"),
        ({"run_file": "run"}, "group of settings"),
        ({"run_file": {"folder": 3}}, "run_file.folder=3"),
        ({"run_file": {"folder": " "}}, "give a folder"),
        ({"run_file": {"max_tokens": 0}}, "run_file.max_tokens=0"),
        ({"on_eruption": "panic"}, "on_eruption='panic'"),
    ],
)
def test_wrong_settings_stop_the_run_at_start(settings, text):
    with pytest.raises(ConfigError, match=text):
        checks.check(read({"diagnostics": settings}), {"algorithm": {}, **PLAIN})


def test_an_action_needs_the_entropy():
    raw = {**PLAIN, "algorithm": {"adv_estimator": "grpo", "entropy": {"diagnostics": {"on_eruption": "stop"}}}}
    raw["algorithm"]["rollout_correction"] = {"bypass_mode": True}
    with pytest.raises(ConfigError, match="bypass_mode"):
        checks.check(plan.read(raw), raw)


def test_what_cannot_be_measured_is_said_at_start():
    config = OmegaConf.create({**PLAIN, "algorithm": {"adv_estimator": "grpo", "entropy": {"diagnostics": {}}}, "data": {}})
    config.actor_rollout_ref.model = {"use_fused_kernels": True}
    config.actor_rollout_ref.actor.entropy_coeff = 0.0
    lines = driver.banner(driver.read_plan(config), config)
    assert any("no metrics of interference" in line for line in lines)
    assert any("compare sampler and trainer" in line for line in lines)


def test_a_fresh_run_moves_the_run_that_was_there_aside(tmp_path, capsys):
    config = OmegaConf.create({"trainer": {"experiment_name": "e"}})
    first = opened(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"actor/entropy": float(step)})
    settings = read_live({"run_file": {"folder": str(tmp_path / "run")}})
    second = diagnostics_side.DiagnosticsSide(settings)
    second.open(config, resumed=False)
    second.write(1, {"actor/entropy": 9.0})
    aside = tmp_path / "run" / "earlier-1"
    out = capsys.readouterr()
    assert str(aside) in out.out + out.err
    assert RunReader(aside).steps.tolist() == [1, 2, 3] and RunReader(tmp_path / "run").steps.tolist() == [1]
    third = diagnostics_side.DiagnosticsSide(settings)
    third.open(config, resumed=True)  # goes on from a checkpoint of step 1
    third.write(2, {"actor/entropy": 8.0})
    assert RunReader(tmp_path / "run").steps.tolist() == [1, 2] and not (tmp_path / "run" / "earlier-2").exists()


def test_the_compact_profile_spares_the_loggers_and_not_the_run_file(tmp_path):
    """Some twenty keys for verl's loggers, no flag that was 0 throughout, all of verl's and of the methods'; everything on disk."""
    side, x, steps = opened(tmp_path, profile="compact"), context(make_episodes(0)), []
    for x.step in (1, 2, 3):
        x.entropy = 0.6 + 0.1 * x.step
        logged = {**side.step(x, rows_of(x), Words()), "actor/loss": 1.0, P + "gigpo/step_return": 0.5, P + "event/dead": 0.0}
        logged |= {P + "event/non_finite": float(x.step == 3), f"actor/{P}clipfrac_low": 0.0}
        side.finish(x.step, logged)
        steps.append(logged)
    stored = {key for key in RunReader(tmp_path / "run").keys if key.startswith(P)}
    ours = {key for logged in steps for key in logged if key.startswith(P)}
    assert len(stored) > 45 and 10 <= len(ours) <= 22 and ours < stored
    assert {P + "entropy_change", P + "success", P + "phase", P + "gigpo/step_return"} <= ours
    assert not [key for key in ours if key.startswith((P + "sign/", P + "turn_entropy/", P + "timing_s/", P + "event/dead"))]
    assert all({"actor/loss", f"actor/{P}clipfrac_low"} <= logged.keys() for logged in steps)
    assert [P + "event/non_finite" in logged for logged in steps] == [False, False, True]
    with pytest.raises(ConfigError, match="full, compact"):
        read_live({"profile": "small"})
