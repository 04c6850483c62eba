# SPDX-License-Identifier: Apache-2.0
"""The phase detector: what it calls on simulated curves, its delay, its state, and missing values."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from synthetic_runs import entropy_curve

from verl_entropy.config.settings import ConfigError
from verl_entropy.diagnostics import simulate
from verl_entropy.diagnostics.phases import PhaseDetector, Phases, Span, detect


@pytest.fixture(scope="module")
def stored() -> dict:
    return json.loads(simulate.RESULTS.read_text())


@pytest.fixture(scope="module")
def result(stored) -> dict:
    return simulate.evaluate_detector(per_kind=stored["curves"] // len(simulate.KINDS), seed=stored["seed"])


def test_confusion_is_bounded(result):
    assert result["accuracy_without_hard"] >= 0.94
    assert result["false_alarm_rate_per_run_without_hard"] <= 0.03
    assert result["false_sign_rate_per_run"] <= 0.02
    assert result["delay_steps"]["p50"] <= 12
    assert result["onset_error_steps"]["p90"] <= 12


@pytest.mark.parametrize("kind", [k for k in simulate.KINDS if k not in simulate.HARD])
def test_each_shape_is_mostly_called_right(result, kind):
    row = result["confusion"][kind]
    assert row[result["expected"][kind]] >= 0.8 * sum(row.values())


def test_stated_limits_are_real(result):
    """The shapes that the docstring says cannot be told apart are indeed confused; otherwise the text is out of date."""
    assert all(row[result["expected"][k]] < sum(row.values()) for k, row in result["confusion"].items() if k in simulate.HARD)


def test_stored_numbers_are_those_of_the_code(result, stored):
    assert result == stored


def test_table_fits_a_terminal(result):
    assert max(map(len, simulate.render(result).splitlines())) <= 80


def test_phases_of_one_eruption_and_its_onset():
    _, spans = detect(range(120), entropy_curve(120, erupts=True, seed=3))
    assert [s.phase for s in spans] == ["descent", "eruption", "subsidence", "descent"]
    assert abs(spans[1].first - 48) <= 5 and 60 <= spans[2].first <= 76
    assert spans[0].first == 0 and spans[-1].last == 119


def test_missing_values_do_not_change_what_is_seen():
    curve = entropy_curve(120, erupts=True, seed=3)
    holes = [v for value in curve for v in (value, math.nan, None, math.inf)]
    sparse = detect(range(len(holes)), holes)[0].events
    assert [e.name for e in sparse] == [e.name for e in detect(range(120), curve)[0].events]


@pytest.mark.parametrize("cut", [3, 30, 57, 75, 100])
def test_resume_is_bit_equal(cut):
    curve, sign = entropy_curve(120, erupts=True, seed=5), -entropy_curve(120, erupts=True, seed=6)
    whole = PhaseDetector()
    part = PhaseDetector()
    for step in range(120):
        whole.update(step, curve[step], valid_log_prob=sign[step])
        if step == cut:
            state = json.loads(json.dumps(part.state_dict(), allow_nan=False))
            part = PhaseDetector()
            part.load_state_dict(state)
        part.update(step, curve[step], valid_log_prob=sign[step])
    assert whole.state_dict() == part.state_dict()
    assert any(e.name == "sign_likelihood" for e in whole.events)


def test_state_of_another_kind_is_refused():
    state = PhaseDetector().state_dict()
    del state["noise"]
    with pytest.raises(ValueError, match="noise"):
        PhaseDetector().load_state_dict(state)


def test_even_median_is_refused():
    with pytest.raises(ConfigError, match="smooth=4"):
        PhaseDetector(Phases(smooth=4))


def test_a_repeated_step_is_ignored():
    detector = PhaseDetector()
    for step in range(20):
        detector.update(step, 0.5)
    before = detector.state_dict()
    assert detector.update(19, 5.0) == [] and detector.state_dict() == before


@pytest.mark.parametrize("values", [[], [math.nan] * 30, [0.4] * 4])
def test_too_little_to_say(values):
    detector, spans = detect(range(len(values)), values)
    assert detector.phase == "warmup" and detector.events == []
    assert spans == ([Span("warmup", 0, len(values) - 1)] if values else [])


def test_signs_fire_on_a_fall_and_end():
    rng, detector = np.random.default_rng(0), PhaseDetector()
    level = np.concatenate([np.full(40, -1.0), np.full(10, -2.0), np.full(60, -1.0)])
    on = []
    for step, value in enumerate(level + 0.02 * rng.normal(size=110)):
        detector.update(step, 0.5, interference_negative=float(value))
        on.append(detector.signs["sign_interference"])
    assert not any(on[:41]) and any(on[42:48]) and not any(on[80:])
