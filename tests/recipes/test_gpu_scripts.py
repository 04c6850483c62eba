# SPDX-License-Identifier: Apache-2.0
"""tests/gpu without a card: run.sh's order, table and exit code with stages that are stand-ins, and learn_results.py on written runs."""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_runs import write_run

GPU = Path(__file__).parents[1] / "gpu"
METHODS = {"grpo": [], "grpo_lr3e-5": [], "seal": ["seal"], "repo_r": ["repo_r"]}

SEAMS = """#!/usr/bin/env bash
out=$2 name=${NAME:-seams}
[ "$1" = broken ] && [ "$name" = seams ] && exit 3
mkdir -p "$out/checkpoints"
sleep 1
echo '{}' > "$out/$name.jsonl"
steps=$([ "$name" = resume ] && echo '[4, 5]' || echo '[1, 2, 3]')
ours='"verl_entropy/timing_s/advantages": [1, 0.0038], "verl_entropy/timing_s/diagnostics": [1, 0.019]'
more='"rollout_probs_diff_mean": 0.0009, "timing_s": {"timing_s/step": [30, 9.5], '"$ours}"
rollout='"verl_entropy/rollout/generated_tokens": 60, "verl_entropy/rollout/reused_tokens": 20'
rollout="{$rollout"', "verl_entropy/rollout/cached_share": 0.4, "verl_entropy/rollout/branch_cached_share": 0.9}'
echo '{"seams": {"a": true}, "rollout": '"$rollout, $more"', "steps": '"$steps}" > "$out/$name.json"
"""
SCRIPT = """import pathlib, sys
target = pathlib.Path(sys.argv[-1])
target.write_text('{}')
"""
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ROW = {"path": "this package", "entropy": 2e-6, "ms": 5.0, "tokens": 16, "vocab": 99}


@pytest.fixture
def stages(monkeypatch):
    monkeypatch.syspath_prepend(GPU)
    import stages

    return stages


@pytest.fixture
def checkout(tmp_path):
    """run.sh as it is, in a tree whose stages are small."""
    gpu = tmp_path / "tests/gpu"
    for folder in (gpu, gpu.parent / "engine", gpu.parent / "numerics"):
        folder.mkdir(parents=True)
    for name in ("run.sh", "stages.py", "report_seams.py", "host.py"):
        shutil.copy(GPU / name, gpu)
    (gpu.parent / "pytest.ini").write_text("[pytest]\n")
    (gpu / "seams.sh").write_text(SEAMS)
    head = {"model": "m", "head_ms": 5.0, "update_ms": 1000.0, "head_share": 0.005}
    clip = {"paths": [{"path": path, "wrong": 1e-4} for path in ("fp32", "bf16, this package", "fp16, this package")]}
    (gpu / "make_model.py").write_text("import pathlib, sys\npathlib.Path(sys.argv[-1]).mkdir(parents=True)\n")
    for name, result in (("numerics", {"rows": [ROW]}), ("clip_sides", clip), ("overheads", {"entropy": [ROW], "head": [head]})):
        (gpu / f"{name}.py").write_text(SCRIPT.format(json.dumps(result)))
    on_cuda = "import os\ndef test(): assert os.environ['VERL_ENTROPY_TEST_DEVICE'] == 'cuda'\n"
    (gpu.parent / "engine/test_it.py").write_text(on_cuda)
    (gpu.parent / "engine/test_presets_engine.py").write_text(f"{on_cuda}def test_too(): pass\n")
    (gpu.parent / "numerics/test_kernels.py").write_text("def test(): pass\n")
    return tmp_path


def call(checkout, *stages, model="model"):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", checkout / "tests/gpu/run.sh", model, checkout / "out", *stages]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path} | QUICK, check=False)
    return done, json.loads((checkout / "out/run.json").read_text()) if (checkout / "out/run.json").exists() else None


def test_all_stages_run_and_the_table_has_them(checkout):
    done, run = call(checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [
        "seams",
        "resume",
        "fp16",
        "ray",
        "branching",
        "presets",
        "engine",
        "kernels",
        "numerics",
        "clip",
        "step",
        "head",
        "overheads",
    ]
    assert [row["stage"] for row in run["stages"]] == names and run["passed"] and list(run["timings"]) == [*names, "all"]
    assert run["versions"]["torch"] and "commit" in run and str(checkout) not in json.dumps(run)
    table = done.stdout.splitlines()[-15:]
    assert table[0].split() == ["stage", "what", "result", "seconds"] and "13 of 13 stages passed" in table[-1]
    assert run["command"] == f"tests/gpu/run.sh MODEL OUT {' '.join(names)}"
    said = {row["stage"]: row["result"] for row in run["stages"]}
    assert said["step"] == "1 of 1 seams, steps 1 to 3, last 9.5 s, advantages 0.04%, diagnostics 0.20%"
    branched = "25% of the response tokens taken over; in vLLM's cache 40% of all prompts, 90% of a branch's first"
    assert said["branching"] == f"1 of 1 seams, steps 1 to 3, last 9.5 s; {branched}"
    assert not (checkout / "out/step/model").exists()
    assert said["presets"] == "2 passed, 0 failed, 0 skipped" and said["engine"] == "1 passed, 0 failed, 0 skipped"


def test_a_stage_that_fails_stops_no_other(checkout):
    (checkout / "tests/numerics/test_kernels.py").write_text("import pytest\ndef test(): pytest.skip('no Triton')\n")
    done, run = call(checkout, model="broken")
    assert done.returncode == 1 and not run["passed"] and len(run["stages"]) == 13
    said = {row["stage"]: row["result"] for row in run["stages"] if not row["passed"]}
    assert set(said) == {"seams", "resume", "kernels"}  # nothing to resume from; a test that skips shows nothing
    assert "exit code" in said["seams"] or "no result" in said["seams"]
    assert (
        said["kernels"] == "0 passed, 0 failed, 1 skipped"
        and "run the stage seams first" in (checkout / "out/resume.out").read_text()
    )


STEPS = {"timing_s": {"timing_s/step": [9.5]}}
OURS = {"verl_entropy/timing_s/advantages": [1, 0.012], "verl_entropy/timing_s/diagnostics": [1, 0.01]}
SHARES = {
    f"verl_entropy/rollout/{key}": value
    for key, value in {"generated_tokens": 9, "reused_tokens": 1, "cached_share": 0.4, "branch_cached_share": 0.05}.items()
}
FAILED_ROW = {"path": "this package", "failed": "OutOfMemoryError"}


@pytest.mark.parametrize(
    ("stage", "result", "says"),
    [
        ("seams", {"seams": {"a": True, "b": False}, "steps": [1, 3], **STEPS}, "1 of 2 seams, steps 1 to 3; not active: b"),
        ("resume", {"seams": {"a": True}, "steps": [1, 5], **STEPS}, "started anew instead of resuming"),
        ("numerics", {"rows": [ROW, FAILED_ROW]}, "1 of our 2 rows failed"),
        ("numerics", {}, "no result (KeyError)"),
        ("overheads", {"entropy": [ROW | {"ms": None}]}, "no time of this package's path"),
        (
            "fp16",
            {"seams": {"a": True}, "steps": [1, 2], "rollout_probs_diff_mean": 0.04, **STEPS},
            "trainer and vLLM 4.0e-02 apart",
        ),
        (
            "step",
            {"seams": {"a": True}, "steps": [1, 3], "timing_s": {"timing_s/step": [30, 10.0], **OURS}},
            "advantages 0.12%",
        ),
        (
            "branching",
            {"seams": {"a": True}, "steps": [1, 3], "rollout": SHARES, **STEPS},
            "only 5% of a branch's first prompt were in vLLM's cache",
        ),
        (
            "branching",
            {"seams": {"a": True}, "steps": [1, 3], "rollout": {k: v for k, v in SHARES.items() if "branch" not in k}, **STEPS},
            "10% of the response tokens taken over; no prompt branched",
        ),
        ("clip", {"paths": [{"path": "fp32", "wrong": 0.02}]}, "fp32 clips 2.00% of the tokens otherwise than fp64"),
        ("head", {"head": [], "failed": ["head: OutOfMemoryError"]}, "no update was measured: ['head: OutOfMemoryError']"),
    ],
)
def test_a_good_exit_code_does_not_hide_a_bad_result(tmp_path, stages, stage, result, says):
    (tmp_path / "stages.tsv").write_text(f"{stage}\t0\t7\n")
    (tmp_path / f"{stage}.json").write_text(json.dumps(result))
    (row,) = stages.read(tmp_path)
    assert not row["passed"] and says in row["result"] and row["seconds"] == 7


def test_an_unknown_stage_is_refused(checkout):
    done, run = call(checkout, "seems")
    assert done.returncode == 2 and "unknown stage seems" in done.stderr and run is None


def test_shellcheck_is_clean():
    program = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("no shellcheck")
    done = subprocess.run([program, "--severity=warning", *GPU.glob("*.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


STUB = """#!/usr/bin/env bash
case "$1" in */make_model.py) exit ;; esac
[ "$1 $2" = "-m verl.trainer.main_ppo" ] || exec {python} "$@"
printf '%s\\n' "${{@:3}}" > "$(mktemp {folder}/XXXXXX.run)"
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Call a script of tests/gpu; the runs of verl's trainer that it starts are composed and checked instead."""
    pytest.importorskip("verl")
    from verl_entropy.data import recipe

    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(STUB.format(python=sys.executable, folder=folder))
    (folder / "verl-entropy").write_text("#!/bin/sh\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def start(script, *words, **env):
        done = subprocess.run(
            ["bash", GPU / script, "model", tmp_path / "out", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"STAGGER": "0"} | env,
            check=False,
        )
        found = {}
        for path in folder.glob("*.run"):
            overrides = path.read_text().splitlines()
            if overrides[0] == "--config-dir":
                overrides = overrides[2:]
            config = recipe.compose(overrides, GPU.parents[1] / "recipes")
            said = recipe.validate(config)
            folder_of = Path(config.trainer.default_local_dir).relative_to(tmp_path / "out").as_posix()
            found[folder_of.removeprefix("checkpoints/")] = (config, "\n".join(said))
        return done, found

    return start


def test_every_run_of_learn_composes(started, tmp_path):
    data, warm = tmp_path / "out/data/textworld_express", tmp_path / "out/warm_start/global_step_14/huggingface"
    data.mkdir(parents=True)
    warm.mkdir(parents=True)
    (data / "train_expert.parquet").write_text("")
    done, runs = started(
        "learn.sh", "grpo", "grpo_lr1e-5", "seal_n4", "adapo", "--", "trainer.test_freq=7", SEEDS="0,3", CARDS="0,1", PER_CARD="1"
    )
    assert done.returncode == 0, done.stderr
    assert set(runs) == {f"{name}-{seed}" for name in ("grpo", "grpo_lr1e-5", "seal_n4", "adapo") for seed in (0, 3)}
    for name, (config, said) in runs.items():
        role = config.actor_rollout_ref
        assert role.model.path == str(warm) and config.trainer.test_freq == 7 and role.actor.ppo_max_token_len_per_gpu == 16384
        assert role.rollout.agent.num_workers * config.data.env.num_envs == 64
        assert config.data.train_batch_size * role.rollout.n == 64 and role.rollout.n == (4 if "n4" in name else 8)
        assert role.actor.optim.lr == (1e-5 if "lr" in name else 3e-5)
        assert ("head: none" in said) == (not name.startswith("seal")), said
        assert ("clip controller: none" in said) == (not name.startswith("adapo")), said
        assert config.data.seed == int(name[-1])
        assert config.algorithm.entropy.diagnostics.run_file.folder.endswith(name)


def test_every_run_of_run_composes(started, tmp_path):
    (tmp_path / "out/checkpoints").mkdir(parents=True)
    done, runs = started("run.sh", "resume", "fp16", "ray", "branching", "step")
    # nothing was trained
    assert done.returncode == 1, done.stderr
    assert set(runs) == {"checkpoints", *(f"{name}/checkpoints" for name in ("fp16", "ray", "branching", "step"))}
    (resumed, said), (half, _), (sized, _) = runs["checkpoints"], runs["fp16/checkpoints"], runs["step/checkpoints"]
    assert sized.actor_rollout_ref.model.path == str(tmp_path / "out/step/model")
    assert sized.actor_rollout_ref.actor.checkpoint.save_contents == ["model"]
    assert all(method in said for method in ("gigpo", "aem", "seal", "epo"))
    assert resumed.trainer.v1.trainer_mode == "colocate_async" and resumed.trainer.total_training_steps == 6
    assert not runs["ray/checkpoints"][0].trainer.use_v1 and "gigpo" in runs["ray/checkpoints"][1]
    assert "rollout: branching" in runs["branching/checkpoints"][1] and "nothing branches" not in runs["branching/checkpoints"][1]
    role = half.actor_rollout_ref
    assert role.actor.fsdp_config.mixed_precision.param_dtype == "fp16" and role.rollout.dtype == "float16"
    assert role.rollout.engine_kwargs.vllm.kv_cache_memory_bytes == 4e9


def test_sides_of_the_clip_on_a_small_model(tmp_path):
    pytest.importorskip("verl")
    sys.path.insert(0, str(GPU.parent / "cpu"))
    import tiny_llama

    sys.path.remove(str(GPU.parent / "cpu"))
    tiny_llama.save(tmp_path / "model")
    settings = tmp_path / "model/tokenizer_config.json"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    command = [
        sys.executable,
        GPU / "clip_sides.py",
        tmp_path / "model",
        "--rows",
        "4",
        "--tokens",
        "6",
        "--json",
        tmp_path / "c.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    exact, fp32, *half = json.loads((tmp_path / "c.json").read_text())["paths"]
    assert exact["path"] == "fp64" and fp32["path"] == "fp32" and fp32["wrong"] == 0 and fp32["largest_error"] < 1e-4
    assert len(half) == 6 and all(row["error"] > fp32["error"] for row in half)


# ----------------------------------------------------------------------------- learn_results.py


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """OUT of a learn.sh whose runs were drawn, and the folder that learn_results.py wrote."""
    pytest.importorskip("matplotlib")
    out, to = tmp_path_factory.mktemp("learn"), tmp_path_factory.mktemp("to")
    for seed, (name, presets) in enumerate(METHODS.items()):
        config = {
            "algorithm": {
                "entropy": {"presets": dict.fromkeys(presets, True), "diagnostics": {"run_file": {"folder": f"/x/{name}"}}}
            },
            "actor_rollout_ref": {
                "actor": {"optim": {"lr": 3e-5 if "lr" in name else 1e-5}},
                "rollout": {"n": 8, "temperature": 1.0},
            },
            "trainer": {"total_training_steps": 100, "default_local_dir": f"/x/{name}"},
        }
        write_run(out / "runs" / f"{name}-0", steps=90, erupts=name == "grpo", seed=seed, config=config)
    (out / "host.json").write_text(
        json.dumps({"device": "card", "versions": {"torch": "2"}, "commit": "abc", "command": "learn.sh"})
    )
    sys.path.insert(0, str(GPU))
    import learn_results

    sys.path.remove(str(GPU))
    assert learn_results.main([str(out), "--to", str(to)]) == 0
    return to, learn_results.main


def test_results_hold_every_run_with_the_verdict_of_the_detector(learned):
    to, _ = learned
    text = (to / "results.json").read_text()
    runs = {run["name"]: run for run in json.loads(text)["runs"]}
    assert list(runs) == list(METHODS) and len(text) < 12_000 * len(runs) and "/x/" not in text
    assert [run["detector"]["class"] for run in runs.values()] == ["eruption", "quiet", "quiet", "quiet"]
    eruption = next(e for e in runs["grpo"]["detector"]["events"] if e["name"] == "eruption")
    assert 30 <= eruption["onset"] <= eruption["seen"] <= 50  # drawn to rise from step 36
    assert runs["grpo"]["differs"] == {} and runs["grpo_lr3e-5"]["differs"] == {"actor_rollout_ref.actor.optim.lr": 3e-5}
    assert runs["seal"]["settings"] == {"presets": ["seal"], "lr": 1e-5, "temperature": 1.0, "n": 8}
    for run in runs.values():
        lengths = {len(values) for values in run["series"].values()}
        assert len(lengths) == 1 and 30 < lengths.pop() <= 60 and (run["steps"], run["planned_steps"]) == (90, 100)
        assert run["train_success"]["last"] > run["train_success"]["first"] + 0.3 and run["seconds"]["step"] > 0
        assert run["held_out"]["house"]["values"][-1] == pytest.approx(89 / 90, abs=1e-4)


def test_the_picture_is_small_and_redrawn_from_the_results_alone(learned, tmp_path):
    to, main = learned
    shutil.copy(to / "results.json", tmp_path)
    assert main(["--redraw", "--to", str(tmp_path)]) == 0
    assert (tmp_path / "results.png").read_bytes() == (to / "results.png").read_bytes()
    assert 10_000 < (to / "results.png").stat().st_size < 150_000


def test_several_seeds_are_told_apart_in_the_picture_and_put_together_in_the_readme(learned, tmp_path, monkeypatch):
    import readme

    to, main = learned
    result = json.loads((to / "results.json").read_text())
    runs = [run for run in result["runs"] if run["name"] in ("grpo", "seal")]
    for run in runs:
        run["held_out"]["house"]["values"][-1] = 0.5
    again = [copy.deepcopy(run) | {"seed": 1} for run in runs]
    again[0]["held_out"]["house"]["values"][-1] = 0.7
    again[1]["detector"]["class"] = "collapse"
    (tmp_path / "results.json").write_text(json.dumps(result | {"runs": runs + again}))
    assert main(["--redraw", "--to", str(tmp_path)]) == 0
    assert (tmp_path / "results.png").read_bytes() != (to / "results.png").read_bytes()
    monkeypatch.setattr(readme, "learned", lambda name="results": result | {"runs": runs + again} if name == "results" else None)
    top, recipe = readme.learning(), readme.learning(more=True)
    for page in (top, recipe):
        assert "| grpo | plain | 2 | 0.00 (0.00 to 0.00) | 0.60 (0.50 to 0.70) |" in page and "2 eruption" in page
        assert "| seal | entropy=[seal] | 2 |" in page and "1 quiet, 1 collapse" in page and "Seeds 0, 1." in page
        assert "single seed" not in page
    assert "seal, seed 1" in recipe and "seal, seed 1" not in top


def test_readmes_say_what_the_results_say_and_nothing_without_them(learned, monkeypatch):
    import readme

    to, _ = learned
    overview, recipe = readme.ROOT / "recipes/README.md", readme.LEARNED / "README.md"
    text = "<!-- results -->\n<!-- end of results -->\n"
    empty = {overview: text + "<!-- costs -->\n<!-- end of costs -->\n", recipe: text}
    monkeypatch.setattr(
        readme, "learned", lambda name="results": json.loads((to / "results.json").read_text()) if name == "results" else None
    )
    pages = {path: readme.render(path, text) for path, text in empty.items()}
    for page in pages.values():
        assert "| grpo | plain | 90 of 100 | 0.00 -> 0.99 (step 90) |" in page
        assert "eruption, from step 3" in page and "single seed" in page
        assert "| grpo_lr3e-5 | lr 3e-05 |" in page and "| seal | entropy=[seal] |" in page
        assert "card, torch 2, commit abc" in page and "not been measured" not in page
    assert "(results.png)" in pages[recipe] and readme.render(recipe, pages[recipe]) == pages[recipe]
    monkeypatch.setattr(readme, "learned", lambda name="results": None)
    without = readme.render(overview, pages[overview])
    assert "first look" not in without and "not been measured" in without
    assert "single seed" not in readme.render(recipe, pages[recipe])
