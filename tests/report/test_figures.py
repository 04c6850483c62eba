# SPDX-License-Identifier: Apache-2.0
"""Both success rates of the papers, and the series that figures are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_runs import P, turns_of, write_run

from verl_entropy.runs.report import build_report, figures, plot
from verl_entropy.runs.report.projection import projected
from verl_entropy.runs.report.runs import differing, group, load
from verl_entropy.runs.report.success import success_rates
from verl_entropy.runs.runfile import RunSettings, RunWriter


def written(folder, series, config=None, turns=None):
    """A run whose metrics are ``series``: a list by name, one value a step (None: not logged)."""
    with RunWriter(folder, RunSettings(flush=False, join_every=8), config=config or {"a": 1}) as writer:
        for i in range(max(map(len, series.values()))):
            metrics = {k: v[i] for k, v in series.items() if i < len(v) and v[i] is not None}
            writer.step(i + 1, metrics, turns(i) if turns else None)
    return folder


def test_best_and_converged_are_means_over_seeds(tmp_path):
    key = "val-core/house/acc/mean@1"
    seeds = ([0.1, 0.9, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.7, 0.5], [0.2, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    paths = [written(tmp_path / f"r{i}", {key: s, P + "entropy": s}, {"trainer": {"seed": i}}) for i, s in enumerate(seeds)]
    (rate,) = success_rates(group(load(paths)))
    assert (rate.series, rate.seeds, rate.values) == ("validation house", 2, 10)
    assert rate.best == pytest.approx(0.7) and rate.best_spread == pytest.approx(0.2)
    assert rate.converged == pytest.approx((0.6 + 0.5) / 2) and rate.converged_spread == pytest.approx(0.05)
    assert rate.change == pytest.approx((-0.2 + 0.0) / 2)


@pytest.mark.parametrize(
    ("keys", "labels"),
    [
        ([P + "success", "critic/score/mean"], ["training"]),
        (["critic/score/mean"], ["training (score)"]),
        (["val-core/a/b/acc/mean@4", "val-aux/a/b/reward/mean@4"], ["validation a/b"]),
        (["val-core/a/reward/mean@1", "val-aux/a/success/mean@1", P + "success"], ["training", "validation a"]),
        (["val-core/a/reward/mean@1"], ["validation a (reward)"]),
        (["critic/advantages/mean"], []),
    ],
)
def test_the_series_of_success_is_found_by_verls_names(tmp_path, keys, labels):
    run = written(tmp_path / "r", {key: [0.5, 0.25] for key in keys})
    rates = success_rates(group(load([run])))
    assert [rate.series for rate in rates] == labels
    assert all(rate.best == 0.5 and rate.converged is rate.best_spread is None for rate in rates)


def test_after_convergence_needs_more_than_two_values(tmp_path):
    key = "val-core/a/acc/mean@1"
    short, long = (written(tmp_path / str(n), {key: [0.5, 0.25, 0.75][:n], P + "entropy": [1.0] * 3}) for n in (2, 3))
    assert [rate.converged for rate in success_rates(group(load([short])))] == [None]
    assert [rate.converged for rate in success_rates(group(load([long])))] == [0.75]
    page = build_report([short], tmp_path / "out.html")
    assert "too few values (fewer than 3)" in page.html.read_text() and "too few values" in page.render()


@pytest.mark.parametrize(("detector", "phases"), [(None, 1), ({"rise_share": 0.1}, 2), ({"rise_share": "x"}, 1), (7, 1)])
def test_phases_are_found_by_the_runs_own_settings(tmp_path, detector, phases):
    """Entropy rises by a third: less than the default of one half, and more than what this run's trainer looked for."""
    config = {"algorithm": {"entropy": {"diagnostics": {"detector": detector}}}}
    (run,) = load([written(tmp_path / "r", {P + "entropy": [0.6 + 0.02 * max(min(i - 30, 10), 0) for i in range(60)]}, config)])
    assert len(run.spans) == phases
    assert bool(run.reader.problems) == (detector not in (None, {"rise_share": 0.1}))


def test_what_workers_report_is_found_behind_verls_prefix(tmp_path):
    run = written(tmp_path / "r", {"actor/verl_entropy/clipfrac_high": [0.1], "actor/verl_entropy/clipfrac_low": [0.2]})
    groups = group(load([run]))
    assert groups[0].runs[0].series((P + "clipfrac_low",))[1].tolist() == [0.2]
    assert figures.clip(groups).png is not None


def test_the_map_comes_from_stored_turns_where_no_metric_has_it(tmp_path):
    rng = np.random.default_rng(0)
    run = written(tmp_path / "r", {P + "entropy": [1.0] * 20}, turns=lambda i: turns_of(1.0 + i, False, rng))
    (loaded,) = load([run])
    steps, table = figures._heat(loaded)
    columns = loaded.reader.turns(7, 7)
    assert table.shape == (10, 20) and steps.tolist() == list(range(1, 21))
    assert table[3, 6] == pytest.approx(columns["entropy"][columns["turn"] == 3].mean(), rel=1e-6)


def test_each_step_is_projected_on_its_own_components(tmp_path):
    rng = np.random.default_rng(0)
    with RunWriter(tmp_path / "r", RunSettings(flush=False, samples_every=1)) as writer:
        for step in (1, 2, 3):
            scale = [1.0, 9.0, 3.0] if step < 3 else [9.0, 1.0, 3.0]
            vectors = (rng.normal(size=(200, 3)) * scale).tolist()
            writer.step(step, {P + "entropy": 1.0}, None, [{"success": v[0] > 0, "representation": v} for v in vectors])
    (loaded,) = load([tmp_path / "r"])
    first, last = projected(loaded)
    assert (first.step, last.step) == (1, 3) and len(first.xy) == 200
    for cloud in (first, last):
        assert cloud.xy.std(0) == pytest.approx([9.0, 3.0], rel=0.15)
    assert abs(last.xy[last.correct, 0].mean() - last.xy[~last.correct, 0].mean()) > 10  # success is its first component
    assert figures.separation(group([loaded])).png is not None


def test_interference_is_drawn_once_a_trajectory(tmp_path):
    (run,) = load([write_run(tmp_path / "r", seed=1)])
    first, last = plot.first_eruption(run)
    step, advantage, coefficient = figures._pairs(run)
    assert len(step) == 4 * (first - 1 + 120 - last)  # four trajectories of ten turns a step
    for side, slope in ((step < first, -0.4), (step > max(last, 73), -0.1)):
        assert np.polyfit(advantage[side], coefficient[side], 1)[0] == pytest.approx(slope, abs=0.06)


def test_settings_that_differ_are_listed_without_seeds(tmp_path):
    configs = [
        {
            "lr": 1,
            "same": 2,
            "trainer": {"seed": s, "log_dir": str(s), "experiment_name": f"run-{s}"},
            "actor": {"data_loader_seed": s},
            "algorithm": {"entropy": {"diagnostics": {"run_file": {"folder": f"/x/{s}"}}}},  # two runs cannot share one
        }
        for s in (1, 2)
    ]
    configs += [configs[0] | {"lr": 2}]
    runs = load([written(tmp_path / f"r{i}", {P + "entropy": [1.0]}, c) for i, c in enumerate(configs)])
    groups = group(runs)
    assert [len(g.runs) for g in groups] == [2, 1] and differing(groups) == {"lr": [1, 2]}
