# SPDX-License-Identifier: Apache-2.0
"""Report, diff and advise on runs whose course is known."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import platform
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_runs import HOSTILE, P, write_run

from verl_entropy import __version__
from verl_entropy.cli import main
from verl_entropy.methods import registry
from verl_entropy.runs.report import advise, build_report, diff, figures, plot, trajectories
from verl_entropy.runs.report.page import document, page_model
from verl_entropy.runs.report.runs import ENTROPY, group, load
from verl_entropy.runs.runfile import RunFileError, RunSettings, RunWriter

DRAWN = len(figures.PANELS) - 1
"""All but the judge's, which is tested with the judge."""


class Tags(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    aem = {"trainer": {"seed": 0}, "algorithm": {"entropy": {"transforms": ["aem"]}}}
    return {
        "a": write_run(root / "erupt-1", seed=1, texts=HOSTILE),
        "b": write_run(root / "erupt-2", seed=2, texts=HOSTILE),
        "calm": write_run(root / "calm", seed=3, erupts=False, config=aem),
        "bare": write_run(root / "bare", full=False),
    }


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    return build_report([runs["a"], runs["b"], runs["calm"]], tmp_path_factory.mktemp("report") / "all.html")


def test_every_panel_is_drawn(report):
    assert set(report.missing) == {"degeneracy"} and report.problems == []
    assert len(report.pngs) == DRAWN
    assert all(png.read_bytes().startswith(b"\x89PNG") for png in report.pngs)
    json.dumps(report.as_dict())


def data_of(page):
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found.group(1))


def _sha(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_needs_nothing_from_outside(report):
    source = report.html.read_text()
    page = Tags(source)
    assert [value for name, value in page.attributes if name in ("src", "srcset", "action", "data")] == []
    links = [value for name, value in page.attributes if name == "href"]
    assert links and all(link.startswith("#") for link in links)
    assert set(page.tags) & {"link", "iframe", "object", "form", "base", "img", "svg"} == set()


def test_the_policy_lets_only_the_pages_own_scripts_run(report):
    """By hash: nothing inline, no eval, no connection; the data is no script."""
    source = report.html.read_text()
    policy = dict(p.split(" ", 1) for p in re.search(r'Content-Security-Policy" content="([^"]*)"', source).group(1).split("; "))
    scripts = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", source, re.DOTALL)
    packed = re.search(r'<script type="application/gzip" id="plotly">(.*?)</script>', source, re.DOTALL).group(1)
    plotly = gzip.decompress(base64.b64decode(packed)).decode()
    assert len(scripts) == 1 and policy["script-src"].split() == [_sha(text) for text in (plotly, *scripts)]
    assert policy["style-src"].split() == [_sha(text) for text in styles]
    assert policy["default-src"] == policy["connect-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["img-src"] == "data: blob:" and "unsafe" not in str(policy) and "http" not in str(policy)


def test_hostile_text_is_shown_and_does_nothing(report):
    source = re.sub(r"<script>.*?</script>", "", report.html.read_text(), flags=re.DOTALL)  # without the page's own
    page = Tags(source)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags.count("script") == 2 and "img" not in page.tags
    told = json.dumps(data_of(report.html), ensure_ascii=False)
    assert "<script>document.title='pwned'</script>" in told and "<U+202E>gnp.exe<U+0000><U+001B>" in told
    assert "<script>document" not in source and not re.search("[\x00-\x08\x0b\x1b\u202e\ud800]", source)


def test_tokens_carry_their_values_and_spaces(report):
    turn = data_of(report.html)["trajectories"]["items"][0]["turns"][1]
    assert "".join(turn["tokens"]).startswith("I should look in the drawer first . <action> open drawer 1 </action> ")
    assert len(turn["entropy"]) == len(turn["advantages"]) == len(turn["tokens"])
    assert turn["observation"].startswith("You see drawer 1.") and turn["action"] == "open drawer 1"
    assert (turn["advantage"], turn["advantage_before"], turn["reward"]) == (1.0, 0.5, 0.0)
    assert turn["thought"].startswith("I look")


def test_tokens_that_were_stored_without_spaces_get_those_of_their_text():
    turn = {"text": "<action>go to fridge 1</action>", "tokens": ["<action>", "go", "to", "fridge", "1", "</action>"]}
    told = trajectories._turn(0, turn, {"tokens": 99, "chars": 999})
    assert "".join(told["tokens"]) == turn["text"] and len(told["tokens"]) == 6
    odd = trajectories._turn(0, turn | {"text": "something else"}, {"tokens": 99, "chars": 999})
    assert odd["tokens"] == turn["tokens"]


def test_the_same_task_is_paired_before_and_in_an_eruption(report):
    told = data_of(report.html)["trajectories"]
    items = told["items"]
    assert told["pairs"]
    for a, b in told["pairs"]:
        assert items[a]["task"] == items[b]["task"] and items[a]["run"] == items[b]["run"]
        assert items[a]["phase"] != "eruption" == items[b]["phase"] and items[a]["step"] < items[b]["step"]


def test_the_page_says_first_what_happened(runs, report, tmp_path):
    source = report.html.read_text()
    lead = re.search(r'<p class="lead">(.*?)</p>', source, re.DOTALL).group(1)
    assert source.index('class="lead"') < source.index("<h2")
    assert "eruption in 2 of 3 runs (first erupt-1, step" in lead and "methods: grpo; aem" in lead
    steps, values = load([runs["a"]])[0].series(ENTROPY)
    config = {"actor_rollout_ref": {"model": {"path": "models/Tiny-1B"}}, "algorithm": {"entropy": {"transforms": ["aem"]}}}
    page = build_report([write_run(tmp_path / "one", seed=1, config=config)], tmp_path / "one.html").html.read_text()
    lead = re.search(r'<p class="lead">(.*?)</p>', page, re.DOTALL).group(1)
    assert (
        f"{values.max():.3g} at step {steps[values.argmax()]}" in lead and "an eruption at step" in lead and "aem was on." in lead
    )
    assert "Success in training went from" in lead and len(re.findall(r"\.(?: |$)", lead)) == 3
    title = re.search("<title>(.*?)</title>", page).group(1)
    assert title.startswith("Entropy report: one - Tiny-1B - aem - 20") and f"verl-entropy {__version__}" in page
    assert f"python {platform.python_version()}" in page


def test_every_figure_has_words_and_numbers_for_who_does_not_see_it(report):
    figures_ = data_of(report.html)["figures"]
    assert len(figures_) == DRAWN and all(re.search(r"\d", f["alt"]) and len(f["alt"]) > 60 for f in figures_)
    entropy = figures_[0]["alt"]
    assert "highest" in entropy and "at step 120" in entropy and "phases of erupt-1: descent 1 to" in entropy


def test_the_cause_of_an_eruption_is_one_figure(report, runs):
    cause = next(f for f in data_of(report.html)["figures"] if f["name"] == "cause")
    assert [f["title"] for f in cause["facets"]] == ["entropy", "interference", "clipped tokens", "prompt groups"]
    assert [t["label"] for t in cause["facets"][0]["traces"]] == ["correct", "wrong"]
    (run,) = load([runs["a"]])
    first = next(s.first for s in run.spans if s.phase == "eruption")
    assert cause["marks"] == [[first, "onset", 0]] and "1 more runs erupted" in cause["caption"]
    before, during = map(float, re.search(r"entropy, wrong ([\d.]+) to ([\d.]+)", cause["caption"]).groups())
    assert during > 2 * before
    assert "cause" not in build_report([runs["a"]], report.html.with_name("x.html")).missing
    assert figures.cause(group(load([runs["calm"]]))).missing == "no eruption was found"


def test_windows_that_coincide_are_said(tmp_path):
    values = {"entropy_early__turns": 1.0, "entropy_late__turns": 1.0}
    for share, said in ((0.0, False), (0.75, True)):
        run = _written(
            tmp_path / f"{share}",
            **{f"verl_entropy__{k}": v for k, v in values.items()},
            verl_entropy__windows_overlap__turns=share,
        )
        caption = figures.early_late(group(load([run]))).caption
        assert ("share turns in 75% of the episodes" in caption) == said


def test_all_runs_are_drawn_or_counted(tmp_path):
    """Forty-two runs of one setting: forty strips and lines, and a word about the rest; none vanishes silently."""
    lines = "".join(f'{{"step":{s},"data":{{"actor/entropy":{0.5 + s % 3 / 10}}}}}\n' for s in range(1, 30))
    paths = [tmp_path / f"grpo-{i}.jsonl" for i in range(42)]
    for path in paths:
        path.write_text(lines)
    few, many = (figures.entropy(group(load(p))) for p in (paths[:20], paths))
    assert len(few.chart.strips) == 20 and "not drawn" not in few.caption and few.png
    assert len(many.chart.strips) == 40 and "Strips of 2 more runs are not drawn" in many.caption
    assert "2 more runs are in the means" in many.caption


def test_equal_names_are_told_apart_by_their_seeds(tmp_path):
    runs = [write_run(tmp_path / str(i) / "grpo", steps=5, seed=i, full=False) for i in (7, 11)]
    assert [run.name for run in load(runs)] == ["grpo (seed 7)", "grpo (seed 11)"]
    assert [g.label for g in group(load(runs))] == ["grpo (mean of 2; seeds 7, 11)"]


def test_a_long_label_keeps_its_seed():
    for limit in (16, 32):
        label = plot.plain("a_setting_with_a_very_long_name_as_sweeps_have_them-seed13", limit)
        assert len(label) == limit and label.startswith("a_s") and label.endswith("-seed13")


@pytest.mark.slow
def test_twenty_runs_stay_below_five_megabytes(tmp_path):
    """With all figures and trajectories, in the settings of a study: five settings of four seeds, 300 steps each."""
    runs = [
        write_run(tmp_path / f"r{i}", steps=300, seed=i, config={"trainer": {"seed": i % 4}, "lr": i // 4}, texts=("word ",) * 40)
        for i in range(20)
    ]
    groups = group(load(runs))
    model = page_model(groups, [draw(groups) for draw in figures.PANELS], [], [])
    assert len(model["runs"]) == 20 and len(model["figures"]) == DRAWN
    assert 2e6 < len(document(model)) < 5e6
    assert "of 6 stored" not in model["trajectories"]["note"] and "are on this page" in model["trajectories"]["note"]


def test_an_unwritable_page_is_said_before_the_drawing(runs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr(figures, "PANELS", (lambda groups: pytest.fail("drawn"),))
    for out in (tmp_path / "file" / "x.html", tmp_path / "folder.html"):
        with pytest.raises(RunFileError, match=re.escape(f"--out {out}: cannot be written")):
            build_report([runs["a"]], out)
    assert main(["report", str(tmp_path / "gone"), "--out", str(tmp_path / "file" / "x.html")]) == 2
    assert not list(tmp_path.glob("**/.*"))


def test_seeds_of_one_setting_are_averaged(runs):
    groups = group(load([runs["a"], runs["calm"], runs["b"]]))
    assert [[run.name for run in g.runs] for g in groups] == [["erupt-1", "erupt-2"], ["calm"]]
    steps, mean, spread = groups[0].mean(ENTROPY)
    one, other = (run.series(ENTROPY)[1] for run in groups[0].runs)
    assert len(steps) == 120 and mean == pytest.approx((one + other) / 2) and spread == pytest.approx(abs(one - other) / 2)
    assert groups[1].mean(ENTROPY)[2] is None


def _bare(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"step": 1, "data": {"actor/entropy": 0.5}}\n')
    return path


NAMES = [
    (["grpo-0", "grpo-1", "grpo-12"], "grpo (mean of 3; seeds 0, 1, 12)"),
    (["grpo_seed3", "grpo_seed14"], "grpo (mean of 2; seeds 3, 14)"),
    (["grpo.run2", "grpo.run3"], "grpo (mean of 2; seeds 2, 3)"),
    (["grpo_s1", "grpo-s_2"], "grpo (mean of 2; seeds 1, 2)"),
    (["grpo_lr1e-5-0", "grpo_lr1e-5-1"], "grpo_lr1e-5 (mean of 2; seeds 0, 1)"),
    (["alpha0.02_seed0", "alpha0.02_seed1"], "alpha0.02 (mean of 2; seeds 0, 1)"),
    (["grpo_lr1e-5", "grpo_lr1e-6"], None),
    (["lr_5E-05", "lr_5E-06"], None),
    (["alpha0.02", "alpha0.05"], None),
    (["alpha_.2", "alpha_.5"], None),
    (["qwen2.5", "qwen3", "qwen7b"], None),
    (["grpo-20261128-120000", "grpo-20261128-130000"], None),
    (["grpo_2026-11-28", "grpo_2026-11-29"], None),
    (["grpo_2026-11-28_12-00-00", "grpo_2026-11-28_12-00-01"], None),
    (["grpo-20261128", "grpo-20261129"], None),
    (["seed0", "seed1"], None),
]


@pytest.mark.parametrize(("names", "label"), NAMES)
def test_only_the_number_of_a_seed_is_left_out_of_a_name(tmp_path, names, label):
    found = group(load([_bare(tmp_path / f"{name}.jsonl") for name in names]))
    assert [g.label for g in found] == ([label] if label else names)


def test_a_launchers_metrics_are_named_by_their_folder(tmp_path, monkeypatch):
    files = [_bare(tmp_path / name / f"metrics-20261128-12000{i}.jsonl") for i, name in enumerate(("seal_grpo", "baseline"))]
    assert [g.label for g in group(load(f.parent for f in files))] == ["seal_grpo", "baseline"]
    assert [g.label for g in group(load(files))] == ["seal_grpo", "baseline"]
    monkeypatch.chdir(files[1].parent)
    assert [run.name for run in load([".", _bare(tmp_path / "metrics-seal.jsonl")])] == ["baseline", "metrics-seal"]


def test_sessions_of_one_run_are_not_averaged(tmp_path):
    files = [_bare(tmp_path / "run" / f"metrics-20261128-12000{i}.jsonl") for i in range(2)]
    assert [g.label for g in group(load(files))] == ["run (1)", "run (2)"]


def test_missing_series_are_named(runs, tmp_path):
    report = build_report([runs["bare"]], tmp_path)
    assert report.html == tmp_path / "report.html" and [p.name for p in report.pngs] == ["report_entropy.png"]
    assert P + "likelihood/valid_log_prob_mean" in report.missing["likelihood"]
    assert "no verl_entropy/turn_entropy/" in report.html.read_text()


def _empty(folder):
    RunWriter(folder, RunSettings(flush=False)).close()
    return folder


def _nan(folder):
    with RunWriter(folder, RunSettings(flush=False)) as writer:
        for step in range(30):
            writer.step(step, {P + "entropy": float("nan"), P + "turn_entropy/0": None}, None, [{"turns": "no", "score": []}])
    return folder


def _one_step(folder):
    return write_run(folder, steps=1)


def _odd_samples(folder):
    with RunWriter(folder, RunSettings(flush=False, samples_every=1)) as writer:
        turns = [{"tokens": ["a", "b"], "entropy": [None]}, {"tokens": "x", "entropy": 1}, {"text": None}, 7, {}]
        for step in range(3):
            writer.step(step, {P + "entropy": 1.0}, None, [{"turns": turns, "representation": [1]}, {"turns": None}])
    return folder


@pytest.mark.parametrize("make", [_nan, _one_step, _odd_samples])
def test_odd_runs_give_a_report(make, tmp_path):
    run = make(tmp_path / "$\\frac{_hidden")
    assert "Entropy report" in build_report([run], tmp_path / "out.html").html.read_text()
    advise(run).render()
    diff(run, run).render()


def test_a_long_run_stays_small(tmp_path):
    lines = (f'{{"step":{s},"data":{{"actor/entropy":{0.5 + s % 7 / 100},"critic/score/mean":0.5}}}}' for s in range(100_000))
    (tmp_path / "long.jsonl").write_text("\n".join(lines) + "\n")
    page = build_report([tmp_path / "long.jsonl"], tmp_path / "long.html").html
    assert page.stat().st_size < 2.5e6 and "mean of up to 112 neighbouring steps" in page.read_text()


def test_what_is_printed_fits_a_terminal_and_commands_it_nothing(tmp_path):
    lines = ({"step": s, "data": {"actor/entropy": 0.5, "val-core/\x1b[2J\u202eset/acc/mean@1": 0.5}} for s in range(1, 9))
    run = tmp_path / "a run with quite a long name, as experiments have them in practice, and then some more of it.jsonl"
    run.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = build_report([run, tmp_path / "gone"], tmp_path / "out.html").render()
    assert "?[2J?set" in told and all(c.isprintable() or c == "\n" for c in told) and "not drawn" in told
    assert [line for line in told.splitlines() if len(line) > 80 and len(line.split()) > 1] == []


@pytest.mark.parametrize("word", ["x", None])
def test_arrays_of_another_kind_cost_only_their_figures(tmp_path, word):
    with RunWriter(tmp_path / "r", RunSettings(flush=False)) as writer:
        for step in range(1, 80):
            turns = {"turn": [word], "entropy": [word], "trajectory": [word], "advantage": [word], "interference": [word]}
            writer.step(step, {P + "entropy": 0.2 + 0.05 * max(0, min(step - 40, 80 - step))}, turns)
    report = build_report([tmp_path / "r"], tmp_path / "out.html")
    assert {"turn_heat", "interference"} <= set(report.missing) and "entropy" not in report.missing


@pytest.mark.parametrize("kind", ["empty", "garbage", "no step number"])
def test_runs_without_a_step_are_wrong_input(tmp_path, capsys, kind):
    run, good = _empty(tmp_path / "run"), write_run(tmp_path / "good", steps=1, full=False)
    (run / "steps.jsonl").write_text({"empty": "", "garbage": "\x00 x\n" * 40, "no step number": '{"step": "x"}\n'}[kind])
    page = ["--out", str(tmp_path / "out.html")]
    for command in (["diff", run, run], ["diff", good, run], ["advise", run], ["report", run, tmp_path / "gone", *page]):
        assert main([str(word) for word in command]) == 2
        out, err = capsys.readouterr()
        assert not out and len(err.splitlines()) == 1 and f"{run}: no step could be read (" in err
    assert "gone: no such file" in err and not (tmp_path / "out.html").exists()
    assert main(["report", str(run), str(good), *page]) == 0 and "problem: run:" in capsys.readouterr().out


def test_no_runs_is_an_error(tmp_path):
    with pytest.raises(RunFileError, match="no runs given"):
        build_report([], tmp_path)


# ----------------------------------------------------------------------------- diff


def test_equal_runs_do_not_part(runs):
    found = diff(runs["a"], runs["a"])
    assert found.parted is None and found.metrics == [] and found.config == {} and found.equal > 20


def test_the_first_step_apart_is_found(tmp_path):
    for name, at in (("a", None), ("b", 17)):
        with RunWriter(tmp_path / name, RunSettings(flush=False), config={"lr": 1e-6 if at else 2e-6, "same": [1]}) as writer:
            for step in range(1, 31):
                bump = 1e-9 if at and step >= at else 0.0
                metrics = {"x": step * 0.1 + bump, "y": 1.0, "timing_s/step": step + bump * 1e12}
                if name == "b" and step >= 20:
                    del metrics["y"]
                writer.step(step, metrics | ({"extra": 1} if at else {}))
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.parted == 17 and [(m.key, m.parted) for m in found.metrics] == [("x", 17), ("y", 20)]
    assert found.config == {"lr": (2e-6, 1e-6)} and found.only_b == ["extra"] and found.only_a == []
    assert diff(tmp_path / "a", tmp_path / "b", rtol=1e-6).metrics[0].key == "y"
    json.dumps(found.as_dict(), allow_nan=False)


def test_diff_fits_a_terminal(runs):
    text = diff(runs["a"], runs["calm"]).render()
    assert max(map(len, text.splitlines())) <= 80 and "algorithm.entropy.transforms" in text and "part at step 1" in text


# ----------------------------------------------------------------------------- advise


def nested(config):
    """Dotted keys as mappings."""
    tree = {}
    for path, value in config.items():
        *parents, last = path.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def _written(folder, steps=60, config=None, **values):
    with RunWriter(folder, RunSettings(flush=False), config=config) as writer:
        for step in range(steps):
            writer.step(step, {k.replace("__", "/"): (v(step) if callable(v) else v) for k, v in values.items()})
    return folder


SYMPTOMS = {
    "collapsed": ({"verl_entropy__entropy": lambda s: 0.6 * 0.9**s}, "repo_r"),
    "erupts": ({"verl_entropy__entropy": lambda s: 0.2 + (0.05 * max(s - 25, 0))}, "seal"),
    "jumped": ({"verl_entropy__entropy": lambda s: 0.2 + (s > 30)}, "diff"),
    "no gradient": ({"verl_entropy__group__zero_variance": 0.8}, "gigpo"),
    "certain": ({"verl_entropy__entropy_early__turns": 2.0, "verl_entropy__entropy_late__turns": 1.0}, "epo"),
    "invalid": ({"verl_entropy__valid_action_ratio": 0.5}, "invalid_action_penalty"),
    "repeats": ({"verl_entropy__repeated_action_ratio": 0.5}, "gigpo"),
    "disagree": ({"training__rollout_probs_diff_mean": 0.1}, "rollout_is"),
    "less likely": ({"verl_entropy__likelihood__valid_log_prob_mean": lambda s: -0.5 - 0.01 * s}, "seal"),
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_symptom_leads_to_its_method(tmp_path, name):
    values, method = SYMPTOMS[name]
    found = advise(_written(tmp_path, **values))
    (item,) = [i for i in found.items if name in i.symptom]
    assert any(method in m for m in item.methods) and re.search(r"\d", item.figure)
    assert max(map(len, found.render().splitlines())) <= 80
    json.dumps(found.as_dict())


@pytest.mark.parametrize(
    "values", [[0.044, 0.0406] * 15, [0.04 - 0.0005 * s for s in range(38)], [0.6 - 0.54 * s / 29 for s in range(30)], [0.01]]
)
def test_entropy_that_started_low_or_stays_up_has_not_collapsed(tmp_path, values):
    """Flat and low; a fall to 0.49 of the start; a fall by half to more than is low; and a single step."""
    found = advise(_written(tmp_path, len(values), verl_entropy__entropy=lambda s: values[s]))
    # Low from the start is a symptom of its own, in words of its own.
    assert [i.symptom for i in found.items if i.symptom != "entropy is low from the start"] == []


def test_a_short_run_collapses_too(tmp_path):
    """The windows at both ends share no step: 10 steps of 0.3, then 10 of 0.01."""
    found = advise(_written(tmp_path, 20, verl_entropy__entropy=lambda s: 0.3 if s < 10 else 0.01))
    assert "entropy: 0.3 nats at the start, 0.01 at the end" in [i.figure for i in found.items]


ACTOR = "actor_rollout_ref.actor."
HAS = [
    ("collapsed", "repo_r", {"algorithm.entropy.transforms": ["repo_r"]}),
    ("collapsed", "repo_r", {"algorithm.entropy.presets": {"repo_r": True}}),
    ("collapsed", "repo_r", {"algorithm.adv_estimator": "repo_r"}),
    ("collapsed", "adapo", {ACTOR + "policy_loss.clip_controller": "adapo"}),
    ("collapsed", "adapo", {ACTOR + "policy_loss.loss_mode": "adapo"}),
    ("collapsed", "entropy_bonus", {ACTOR + "policy_loss.regularizer": "entropy_bonus"}),
    ("erupts", "seal", {ACTOR + "seal.alpha": 0.1}),
    ("no gradient", "gigpo", {"algorithm.adv_estimator": "gigpo"}),
    ("invalid", "invalid_action_penalty", {"data.env.invalid_action_penalty": 0.1}),
    ("disagree", "rollout_is", {"algorithm.rollout_correction.rollout_is": "token"}),
]


def _methods(folder, symptom, config):
    found = advise(_written(folder, config=config, **SYMPTOMS[symptom][0]))
    return next(i.methods for i in found.items if symptom in i.symptom)


@pytest.mark.parametrize(("symptom", "method", "config"), HAS)
def test_what_a_run_has_is_not_advised(tmp_path, symptom, method, config):
    before, after = (_methods(tmp_path / n, symptom, c) for n, c in (("without", {}), ("with", nested(config))))
    assert [m for m in before if m not in after] == [m for m in before if method in m] != []


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm.entropy.transforms": ["aem"], "algorithm.entropy.presets": {"repo_r": True}},
        {"algorithm.entropy.transforms": "repo_r", "algorithm.entropy.presets": ["repo_r"]},
        {"algorithm.entropy": 7, "actor_rollout_ref": ["x"]},
    ],
)
def test_what_is_off_or_unknown_is_advised(tmp_path, config):
    assert "repo_r" in str(_methods(tmp_path, "collapsed", nested(config)))


def test_the_page_advises_each_run_by_what_it_has(tmp_path):
    fall, has = SYMPTOMS["invalid"][0], nested({"data.env.invalid_action_penalty": 0.1})
    runs = [_written(tmp_path / "has", config=has, **fall), _written(tmp_path / "lacks", **fall)]
    source = build_report(runs, tmp_path / "out.html").html.read_text()
    head = data_of(tmp_path / "out.html")["head"]
    assert head in source and head.count("many turns are invalid") == 2 and head.count("<br>Try ") == 1


def test_advice_tells_what_could_not_be_read(tmp_path, capsys):
    run = _written(tmp_path, verl_entropy__entropy=1.0)
    with open(run / "steps.jsonl", "a") as file:
        file.write("garbage\n")
    assert "steps.jsonl:61: not JSON" in advise(run).problems[0]
    assert main(["advise", str(run)]) == 0 and "problem: steps.jsonl:61: not JSON" in capsys.readouterr().out


def test_a_calm_run_gets_no_advice(runs):
    found = advise(runs["calm"])
    assert found.items == [] and "no symptom" in found.render() and "mismatch" in found.render()


def test_advice_names_what_exists(runs):
    keys = {a.key for a in registry.methods()}
    methods = [m for i in advise(runs["a"]).items for m in i.methods]
    assert set(methods) & keys and all(m in keys or "optim.lr=" in m for m in methods)


HARMLESS = {
    "verl_entropy__success": lambda s: 0.3 if s < 30 else 0.0,
    "verl_entropy__valid_action_ratio": lambda s: 0.75 if s < 30 else 0.99,
    "verl_entropy__entropy": 0.2,
}
PLANTED = {
    "not finite": ({"verl_entropy__entropy": lambda s: 0.4 if s <= 30 else float("nan")}, {}, "clip_grad", ""),
    "never did anything": ({"verl_entropy__active": 0.0, "verl_entropy__entropy": 0.4}, {}, "doctor", ""),
    "success fell": ({"critic__score__mean": lambda s: 0.7 if s < 30 else 0.2, "verl_entropy__entropy": 0.4}, {}, "lr=", ""),
    "success fell  ": ({"verl_entropy__success": lambda s: 0.8 if s < 54 else 0.0, "verl_entropy__entropy": 0.2}, {}, "lr=", ""),
    "low from the start": ({"verl_entropy__entropy": 0.03}, {}, "repo_r_bidirectional", ""),
    "valid actions instead": (HARMLESS, {}, "filter_groups.metric=acc", ""),
    "valid actions instead ": (HARMLESS, {"algorithm.filter_groups.enable": True}, "lr=", "filter_groups"),
    "no entropy": ({"timing_s__step": 1.0}, {}, "diagnostics", ""),
    "they are solved": ({"verl_entropy__group__zero_variance": 0.8, "critic__score__mean": 1.0}, {}, "harder", "gigpo"),
    "they fail": ({"verl_entropy__group__zero_variance": 0.8, "critic__score__mean": 0.0}, {}, "easier", "gigpo"),
    "erupts": (
        SYMPTOMS["erupts"][0],
        {ACTOR + "policy_loss.regularizer": "entropy_bonus", ACTOR + "policy_loss.entropy_bonus.coef": 0.1},
        "entropy_bonus.coef=0.01",
        "regularizer=epo",
    ),
    "erupts ": (SYMPTOMS["erupts"][0], {ACTOR + "clip_ratio_high": 0.5}, "clip_ratio_high=0.2", ""),
    "erupts  ": (SYMPTOMS["erupts"][0], {ACTOR + "entropy_coeff": 0.01}, "entropy_coeff=0", ""),
    "success fell ": (
        {"verl_entropy__success": lambda s: 0.45 if s < 30 else 0.1, "verl_entropy__entropy": 0.2},
        {ACTOR + "optim.lr": 6e-4},
        "lr=0.0003",
        "",
    ),
    "erupts   ": (SYMPTOMS["erupts"][0], {"actor_rollout_ref.rollout.temperature": 1.6}, "rollout.temperature=1.0", ""),
    "erupts    ": (SYMPTOMS["erupts"][0], {"algorithm.entropy.transforms": ["repo_r"]}, "repo_r_bidirectional", ""),
    "erupts     ": (SYMPTOMS["erupts"][0], {ACTOR + "policy_loss.regularizer": "epo"}, "epo_corridor", "regularizer=epo"),
    "the run is dead": ({"actor__grad_norm": lambda s: float(s < 30), "verl_entropy__entropy": 0.4}, {}, "validate", ""),
    "repeat one another": ({"verl_entropy__duplication": lambda s: s / 60, "verl_entropy__entropy": 0.4}, {}, "gigpo", ""),
    "clipping cuts": (
        {
            "verl_entropy__entropy": lambda s: 0.6 - 0.005 * s,
            "verl_entropy__clipfrac_high": 0.03,
            "verl_entropy__clipfrac_low": 0.001,
        },
        {ACTOR + "policy_loss.clip_controller": "adapo"},
        "",
        "clip_ratio_high",
    ),
    "not finite from the first step": (
        {"verl_entropy__entropy": float("nan"), "actor__grad_norm": float("nan")},
        {"actor_rollout_ref.rollout.temperature": 0},
        "rollout.temperature=1.0",
        "enabled",
    ),
    "not finite ": (
        {"actor__grad_norm": lambda s: 1.0 if s < 10 else float("inf"), "verl_entropy__entropy": 0.4},
        {},
        "clip_grad",
        "",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_run_gets_fitting_advice(tmp_path, name):
    values, config, has, lacks = PLANTED[name]
    found = advise(_written(tmp_path, config=nested(config), **values))
    (item,) = [i for i in found.items if name.strip() in i.symptom]
    assert has in " ".join(item.methods) and re.search(r"\d", item.figure), item
    assert not lacks or lacks not in " ".join(item.methods)
    if "erupts" in name:
        assert has in item.methods[0] and "lower that first" in item.why


def test_a_fall_says_where_it_was(tmp_path):
    values = {"verl_entropy__success": lambda s: 0.8 if s < 54 else 0.0, "verl_entropy__entropy": 0.2}
    (item,) = [i for i in advise(_written(tmp_path, **values)).items if i.symptom == "success fell"]
    assert item.figure.endswith("half of that last in step 53, 0 at the end")


def test_an_eruption_tells_who_erupted_and_offers_a_smaller_step_first(tmp_path):
    values = SYMPTOMS["erupts"][0] | {
        "verl_entropy__entropy_of__wrong": lambda s: 0.2 + 0.08 * max(s - 25, 0),
        "verl_entropy__entropy_of__correct": 0.1,
    }
    found = advise(_written(tmp_path, config=nested({ACTOR + "optim.lr": 6e-4}), **values))
    (item,) = [i for i in found.items if "erupts" in i.symptom]
    assert item.methods[0] == ACTOR + "optim.lr=0.0003" and re.search(
        r"wrong trajectories 0\.\d+ nats, correct ones 0\.1$", item.figure
    )


def test_an_eruption_without_a_loss_of_success_says_so(tmp_path):
    rising, falling = (
        advise(_written(tmp_path / n, verl_entropy__success=f, **SYMPTOMS["erupts"][0])).items[-1]
        for n, f in (("up", lambda s: s / 60), ("down", lambda s: 0.6 - s / 120))
    )
    assert (
        "did not fall" in rising.why
        and "did not fall" not in falling.why
        and "success 0.408 before it, 0.125 at the end" in falling.figure
    )


def test_what_is_advised_passes_our_checks_beside_what_the_run_has(tmp_path):
    """SEAL's head trains with no LoRA; a transform is added to those of the run, each with its paper's place."""
    whole = {
        "trainer.use_v1": True,
        ACTOR + "strategy": "fsdp2",
        "actor_rollout_ref.rollout.n": 8,
        "algorithm.adv_estimator": "grpo",
    }
    lora = whole | {"actor_rollout_ref.model.lora_rank": 16, "algorithm.entropy.transforms": ["aem"]}
    plain, fine = (
        next(i for i in advise(_written(tmp_path / n, config=nested(c), **SYMPTOMS["erupts"][0])).items if "erupts" in i.symptom)
        for n, c in (("plain", whole), ("lora", lora))
    )
    assert any("seal" in m for m in plain.methods) and not any("seal" in m for m in fine.methods)
    assert "+algorithm.entropy.transforms=[aem,entrocraft]" in fine.methods
    assert plain.sources["+actor_rollout_ref.actor.seal.alpha=0.02"] == "arXiv 2605.27954, Eq. 3"
    assert "(arXiv 2605.27954, Eq. 3)" in " ".join(advise(tmp_path / "plain").render().split())


def test_a_slow_rise_without_an_eruption_runs_away(tmp_path):
    found = advise(_written(tmp_path, 150, nested({ACTOR + "optim.lr": 2e-6}), verl_entropy__entropy=lambda s: 0.3 * 1.013**s))
    (item,) = [i for i in found.items if i.symptom == "entropy runs away"]
    assert item.methods[0] == ACTOR + "optim.lr=1e-06" and "a steady rise from step" in item.figure


def test_an_eruption_that_fell_is_not_said_to_stay(tmp_path):
    curve = {"verl_entropy__entropy": lambda s: 0.25 + 1.3 * max(0.0, 1 - abs(s - 65) / 25 + 0.8) * (30 < s < 110)}
    (item,) = [i for i in advise(_written(tmp_path, 150, **curve)).items if "erupts" in i.symptom]
    assert "does not come back" not in item.symptom


def test_what_the_advice_says_of_the_bench_is_what_its_files_say(tmp_path):
    found = advise(_written(tmp_path, **SYMPTOMS["erupts"][0]))
    (item,) = [i for i in found.items if "erupts" in i.symptom]
    results = Path(__file__).parents[2] / "recipes/bench/results/household"
    for rate, erupted in (("6e-4", True), ("4e-4", False)):
        runs = [json.loads((results / f"rate_{rate}/none-seed{seed}.json").read_text()) for seed in (100, 101)]
        assert rate in item.why and all(run["outcome"]["erupted"] is erupted for run in runs)


def test_a_remedy_that_failed_is_named(tmp_path):
    has = nested({ACTOR + "seal.alpha": 0.02, ACTOR + "policy_loss.regularizer": "epo"})
    found = advise(_written(tmp_path, config=has, **SYMPTOMS["erupts"][0]))
    (item,) = [i for i in found.items if "erupts" in i.symptom]
    assert "seal, epo already" in item.why and "repo_r_bidirectional" in " ".join(item.methods)
