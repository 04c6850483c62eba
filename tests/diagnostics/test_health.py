# SPDX-License-Identifier: Apache-2.0
"""Events of a step's metrics: not finite, dead, template collapse; and what the settings do on them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
from episodes import make_episodes
from test_live import context

from verl_entropy.diagnostics import live
from verl_entropy.diagnostics.health import Health
from verl_entropy.diagnostics.settings import ACTING, read_live

FINE = {"actor/entropy": 0.4, "actor/loss": 0.1, "actor/grad_norm": 0.3, "verl_entropy/duplication": 0.1}


def seen(*steps: dict) -> list[list[str]]:
    health = Health(0.7, 0.02)
    return [[name for name, _ in health.update({**FINE, **step})] for step in steps]


@pytest.mark.parametrize("key", ["actor/entropy", "actor/loss", "actor/pg_loss", "actor/grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, [0.1, math.nan]])
def test_not_finite_is_an_event_from_the_first_step_and_once(key, value):
    assert seen({key: value}, {key: value}, {}, {key: value}) == [["non_finite"], [], [], ["non_finite"]]


@pytest.mark.parametrize("step", [{"actor/grad_norm": 0.0}, {"verl_entropy/group/zero_variance": 1.0}])
def test_a_dead_run(step):
    assert seen(step, step, step, step) == [[], [], ["dead"], []]


def test_collapse_to_templates_needs_entropy_that_stands():
    repeated = {"verl_entropy/duplication": 0.9}
    assert seen(*[repeated] * 3) == [[], [], ["template_collapse"]]
    assert seen(*[{**repeated, "actor/entropy": 0.01}] * 3) == [[], [], []]


def test_state_survives():
    whole, part = Health(0.7, 0.02), Health(0.7, 0.02)
    for health in (whole, part):
        health.update({"actor/grad_norm": 0.0})
    resumed = Health(0.7, 0.02)
    resumed.load_state_dict(json.loads(json.dumps(part.state_dict())))
    for health in (whole, resumed):
        health.update({"actor/grad_norm": 0.0})
        assert [name for name, _ in health.update({"actor/grad_norm": 0.0})] == ["dead"]
    assert whole.state_dict() == resumed.state_dict()


def test_every_event_has_an_action():
    settings = read_live({f"on_{event}": "checkpoint" for event in ACTING})
    assert {settings.action_on(event) for event in ACTING} == {"checkpoint"}
    assert settings.action_on("subsidence") == "none" and read_live({}).action_on("non_finite") == "warn"


@pytest.mark.parametrize("action", ["none", "warn", "checkpoint", "stop"])
def test_a_gradient_that_is_not_finite_acts_in_its_own_step(action, capsys):
    side_module = pytest.importorskip("verl_entropy.hosts.common.diagnostics_side")
    saved = []
    trainer = SimpleNamespace(
        global_steps=1,
        total_training_steps=9,
        config=SimpleNamespace(trainer=SimpleNamespace(save_freq=5)),
        _save_checkpoint=lambda: saved.append(1),
    )
    side = side_module.DiagnosticsSide(read_live({"on_non_finite": action}))
    metrics = {"actor/grad_norm": math.nan}
    side.act(trainer, metrics)
    assert metrics["verl_entropy/event/non_finite"] == 1.0 and metrics["verl_entropy/event/dead"] == 0.0
    assert len(saved) == (action in ("checkpoint", "stop")) and trainer.total_training_steps == (1 if action == "stop" else 9)
    told = capsys.readouterr().err
    assert "non finite at step 1 (actor/grad_norm=nan)" in told and ("is not finite (step 1)" in told) == (action != "none")


def test_a_resume_is_told_to_the_detector():
    x, diagnostics = context(make_episodes(1)), live.LiveDiagnostics()
    for x.step in range(100):
        x.entropy = 0.2 if x.step < 50 else 0.9
        if x.step == 50:
            diagnostics.load_state_dict(diagnostics.state_dict())
            diagnostics.resumed()
        assert ("verl_entropy/resumed" in diagnostics.step(x)) == (x.step == 50)
    told = [e.name for e in diagnostics.detector.events]
    assert "step_change" in told and "eruption" not in told
