# SPDX-License-Identifier: Apache-2.0
"""The launchers of examples/: what their name says is what they start; they show, check and refuse without a GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
import yaml

from verl_entropy import cli

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = EXAMPLES.parent / "recipes"
PLAIN = sorted(p for p in EXAMPLES.glob("*.sh") if re.search(r"-\d+n\d+g\.sh$", p.name))
SHARED = ("HF_HOME", "ALFWORLD_DATA", "APPWORLD_ROOT", "VERL_ENTROPY_CACHE")
"""What every node of a cluster must have in a folder that all of them see."""
NAME = re.compile(r"(?P<method>[a-z_]+)-(?P<env>[a-z_]+)-(?P<model>.+)-(?P<nodes>\d+)n(?P<gpus>\d+)g")
CALL = re.compile(r'launch\.sh" (\S+) (\S+) (\d+) (\d+)(.*) --name (\S+) "\$@"')


def bash(*args, **env):
    outside = {
        k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "VERL_ENTROPY_"))
    }  # the tests may be a job, too
    environment = {**outside, "PYTHON": sys.executable, **env}
    return subprocess.run(["bash", *map(str, args)], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.parametrize("path", PLAIN, ids=lambda p: p.stem)
def test_the_name_says_what_is_started(path):
    said = NAME.fullmatch(path.stem)
    recipe, model, nodes, gpus, more, name = CALL.search(path.read_text()).groups()
    assert (said["model"], said["nodes"], said["gpus"]) == (model, nodes, gpus) and name == path.stem
    paper, env = recipe.split("=")[0].split("/")
    assert said["env"] == (more.partition("parts/env=")[2] or env)
    method = said["method"]
    assert method in (f"{paper}_{recipe.split('=')[1]}", recipe.split("=")[1])
    assert (RECIPES / f"{recipe.replace('=', '/')}.yaml").is_file() and (RECIPES / f"parts/model/{model}.yaml").is_file()


def test_a_mini_batch_that_the_gpus_do_not_divide_is_found_before_the_start(monkeypatch, capsys):
    pytest.importorskip("verl")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import check

    arguments = [
        "--recipes",
        str(RECIPES),
        "--dry-run",
        "--",
        "+repo/appworld=loop",
        "actor_rollout_ref.actor.ppo_mini_batch_size=21",
    ]
    assert check.main(arguments) == 2
    assert "21 x rollout.n=6 rows do not divide among 24 ranks. Set a multiple of 4, such as 20." in capsys.readouterr().err
    assert check.main([*arguments, "trainer.nnodes=1", "trainer.n_gpus_per_node=2"]) == 0


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """A PYTHON that prints its arguments, a line each."""
    program = tmp_path_factory.mktemp("bin") / "python"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("path", PLAIN, ids=lambda p: p.stem)
def test_every_dry_run_checks_a_configuration_that_composes(path, echo, tmp_path):
    """The real shell scripts; what they hand to check.py is composed here, and fits the cluster of the name."""
    pytest.importorskip("verl")
    from verl_entropy.data import recipe

    done = bash(path, "--dry-run", "--data", tmp_path, PYTHON=echo)
    assert done.returncode == 0, done.stderr
    command, *arguments = done.stdout.splitlines()
    settings = arguments[arguments.index("--") + 1 :]
    assert "--dry-run" in arguments and set(settings) <= set(shlex.split(command))
    config = recipe.compose(settings, RECIPES)
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    gpus = trainer.nnodes * trainer.n_gpus_per_node
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size * rollout.n % gpus == 0
    assert trainer.n_gpus_per_node % rollout.tensor_model_parallel_size == 0
    assert trainer.experiment_name == path.stem and config.data.train_files.startswith(str(tmp_path))


@pytest.mark.parametrize("path", PLAIN, ids=lambda p: p.stem)
def test_slurm_asks_for_what_the_name_says(path):
    text = (EXAMPLES / "slurm" / path.name).read_text()
    said = NAME.fullmatch(path.stem)
    assert f"#SBATCH --nodes={said['nodes']}\n" in text and f"#SBATCH --gpus-per-node={said['gpus']}\n" in text
    assert f'on_nodes.sh" {path.name} ' in text
    for line in (
        "--time=",
        "--requeue\n",
        "--open-mode=append\n",
        "--output=%x-%j.out\n",
    ):  # a limit, and a log that a requeue keeps
        assert f"#SBATCH {line}" in text


def test_there_is_no_other_file():
    """Slurm, KubeRay and SkyPilot files belong to a launcher each."""
    names = {p.stem for p in PLAIN}
    assert {p.stem for p in (EXAMPLES / "slurm").glob("*.sh")} == names | {"on_nodes"}
    for folder in ("kuberay", "skypilot"):
        assert {p.stem for p in (EXAMPLES / folder).iterdir()} <= names | {"Dockerfile"}


@pytest.mark.parametrize("path", sorted((EXAMPLES / "kuberay").glob("*.yaml")), ids=lambda p: p.stem)
def test_kuberay(path):
    job, said = yaml.safe_load(path.read_text()), NAME.fullmatch(path.stem)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*)?", job["metadata"]["generateName"])
    cluster = job["spec"]["rayClusterSpec"]
    groups = [(1, cluster["headGroupSpec"])] + [(g["replicas"], g) for g in cluster.get("workerGroupSpecs", [])]
    assert sum(n for n, _ in groups) == int(said["nodes"])
    for _, group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == int(said["gpus"])
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        (key,) = (entry for entry in container["env"] if entry["name"] == "WANDB_API_KEY")
        assert key["valueFrom"]["secretKeyRef"]["optional"] is True and "value" not in key
    entrypoint = job["spec"]["entrypoint"]
    assert entrypoint.index(f"{path.stem}.sh --prepare --data ") < entrypoint.index(f"{path.stem}.sh --data ")
    assert bash("-n", "-c", entrypoint).returncode == 0
    assert set(yaml.safe_load(job["spec"]["runtimeEnvYAML"])["env_vars"]) >= {*SHARED}
    assert (
        f"--build-arg ENV={said['env']} " in path.read_text()
        and "prepare_node.sh ${ENV}" in (path.parent / "Dockerfile").read_text()
    )


@pytest.mark.parametrize("path", sorted((EXAMPLES / "skypilot").glob("*.yaml")), ids=lambda p: p.stem)
def test_skypilot(path):
    task, said = yaml.safe_load(path.read_text()), NAME.fullmatch(path.stem)
    assert task["num_nodes"] == int(said["nodes"]) and task["resources"]["accelerators"].endswith(f":{said['gpus']}")
    run = task["run"]
    assert f"bash examples/{path.stem}.sh --data /shared/data --out /shared/runs" in run
    assert run.index("--prepare --data /shared/data") < run.index("ray start --head") < run.index("trap 'ray stop' EXIT")
    assert all(f"{name}=/shared/" in run for name in SHARED) and f"prepare_node.sh {said['env']}\n" in task["setup"]
    assert task["file_mounts"]["/shared"]["mode"] == "MOUNT_CACHED"  # with MOUNT a log cannot be appended to
    assert "WANDB_API_KEY" in task["secrets"] and "WANDB_API_KEY" not in task["envs"]
    if task["num_nodes"] > 1:  # a worker ends, with 0, once the first node has
        worker = run[run.index("NODE_RANK") : run.index("--prepare")]
        assert "--block" not in worker and worker.index("while ray health-check") < worker.index("exit 0")
    assert bash("-n", "-c", task["run"]).returncode == 0 and bash("-n", "-c", task["setup"]).returncode == 0


@pytest.mark.skipif(
    shutil.which("shellcheck") is None and not (Path(sys.executable).parent / "shellcheck").exists(), reason="no shellcheck"
)
def test_shellcheck_is_clean():
    program = shutil.which("shellcheck") or Path(sys.executable).parent / "shellcheck"
    scripts = [*EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.slurm")]
    done = subprocess.run([program, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_dry_run_through_slurm_shows_and_checks_the_command(tmp_path):
    """The longest way: Slurm file, on_nodes.sh, launcher, launch.sh, check.py; no GPU, no Ray, nothing written."""
    pytest.importorskip("verl")
    name = "seal_grpo-webshop_like-qwen2.5-1.5b-1n2g"
    options = ["--dry-run", "--data", tmp_path / "d a", "--out", tmp_path / "runs", "trainer.save_freq=7"]
    done = bash(EXAMPLES / "slurm" / f"{name}.sh", *options)
    assert done.returncode == 0, done.stderr
    command = done.stdout.splitlines()[0]
    for part in ("-m verl.trainer.main_ppo", "+seal/webshop=grpo", "parts/env=webshop_like", "trainer.nnodes=1", "trainer.save_freq=7",
                 f"trainer.default_local_dir={tmp_path}/runs/{name}/checkpoints"):  # fmt: skip
        assert part in command
    assert "head: seal, alpha 0.02" in done.stdout and "composes, and passes the checks" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "bash examples/launch.sh RECIPE MODEL"),
        (["seal/alfworld=ppo", "qwen2.5-1.5b", "1", "2"], "no file recipes/seal/alfworld/ppo.yaml"),
        (["seal/alfworld=grpo", "qwen9", "1", "2"], "no file recipes/parts/model/qwen9.yaml"),
        (["seal/alfworld=grpo", "qwen2.5-1.5b", "1", "0"], "at least 1"),
        (["seal/alfworld=grpo", "qwen2.5-1.5b", "1", "2", "--out"], "--out needs a value"),
        (["seal/alfworld=grpo", "qwen2.5-1.5b", "1", "2", "--dryrun"], "no such option"),
        (["seal/alfworld=grpo", "qwen2.5-1.5b", "1", "2", "--name", "a b"], "letters, digits"),
    ],
)
def test_wrong_arguments_stop_at_once(args, says):
    done = bash(EXAMPLES / "launch.sh", *args)
    assert done.returncode == 2 and says in done.stderr


ONLY_SOME = """
import os
class OnlySome:
    def reset(self, *, seed=None, options=None):
        if os.environ.get("NODE_WITHOUT_GAMES"):
            raise ValueError("no games here: alfworld-download")
        return "seen", {}
    def close(self):
        pass
"""


@pytest.mark.slow
def test_the_environment_is_started_on_every_node(tmp_path, monkeypatch):
    """Two Ray nodes on this machine; one of them lacks what the environment needs."""
    ray = pytest.importorskip("ray")
    from omegaconf import OmegaConf
    from ray.cluster_utils import Cluster

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import check

    (tmp_path / "only_some.py").write_text(ONLY_SOME)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1, env_vars={"NODE_WITHOUT_GAMES": "1"})
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        config = OmegaConf.create(
            {
                "data": {
                    "env": {"name": "only_some:OnlySome"},
                    "train_files": str(tmp_path / "train.parquet"),
                    "val_files": ["relative.parquet"],
                },
                "actor_rollout_ref": {"model": {"path": "hub/name"}},
                "trainer": {"nnodes": 2},
            }
        )
        lines = list(check.environment(config))
        assert sum("train.parquet is not there: a folder that all nodes share" in line for line in lines) == 2, lines
        (broken,) = (line for line in lines if "ValueError: no games here" in line)
        assert re.match(r"node [\d.]+: environment ", broken) and len(lines) == 3
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_prepare_makes_what_is_missing(tmp_path, monkeypatch, capsys):
    """The step before the first start on an empty cluster: model there, data made, games asked for by name."""
    pytest.importorskip("verl")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import check

    made = []
    monkeypatch.setattr(cli, "main", lambda argv: made.append(argv) or 0)
    config = check.recipe.compose(
        ["+seal/alfworld=grpo", f"data.folder={tmp_path}", f"actor_rollout_ref.model.path={tmp_path}"], RECIPES
    )
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(check.ConfigError, match="ALFWORLD_DATA: not set"):
        check.prepare(config, str(RECIPES), ["+seal/alfworld=grpo"])
    games = tmp_path / "games"
    ran = []
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    monkeypatch.setattr(check.subprocess, "run", lambda argv, **how: ran.append((argv, how["check"])))
    check.prepare(config, str(RECIPES), ["+seal/alfworld=grpo"])
    assert ran == [(["alfworld-download", "--data-dir", str(games)], True)]
    monkeypatch.setenv("VERL_AGENT_HOME", str(tmp_path / "verl-agent"))
    games.mkdir(exist_ok=True)
    (games / "a").touch()
    check.prepare(config, str(RECIPES), ["+seal/alfworld=grpo"])
    clone, checkout = (argv for argv, _ in ran[1:])
    assert (
        clone[:2] == ["git", "clone"] and clone[-1] == checkout[2] == str(tmp_path / "verl-agent") and checkout[-1] == "796ed31"
    )
    made = made[:3]
    assert [argv[argv.index("--split") + 1] for argv in made] == ["train", "seen", "unseen"]


@pytest.mark.parametrize(("env", "code"), [("household", 0), ("webshop", 2), ("nothing", 2)])
def test_prepare_node(env, code):
    done = bash(EXAMPLES / "prepare_node.sh", env)
    assert done.returncode == code and (code == 0 or "prepare_node.sh" in done.stderr)


def test_a_key_of_wandb_turns_it_on(echo, tmp_path):
    launcher = EXAMPLES / "seal_grpo-alfworld-qwen2.5-1.5b-1n2g.sh"
    for key, more, logger in (
        ("k", [], "trainer.logger=\\[console\\,file\\,wandb\\]"),
        ("", [], None),
        ("k", ["trainer.logger=x"], None),
    ):
        command = bash(launcher, "--dry-run", *more, PYTHON=echo, WANDB_API_KEY=key).stdout
        assert ("wandb" in command) == (logger is not None), command


def test_the_number_of_validation_episodes_is_bounded_and_said(tmp_path, monkeypatch, capsys):
    """The printed command for 200 held-out tasks made all of them, for every validation, without a word."""
    pytest.importorskip("verl")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import check

    config = check.recipe.compose(["+seal/webshop=grpo", "parts/env=webshop_like", f"data.folder={tmp_path}"], RECIPES)
    lines = list(check.data(config, str(RECIPES), ["+seal/webshop=grpo", "parts/env=webshop_like"]))
    (train,) = (line for line in lines if "--split train" in line)
    (held_out,) = (line for line in lines if "--split test" in line)
    assert "--count" not in train and "--split test --count 128 " in held_out and "without it the whole split" in held_out
    assert list(check.validation(config)) == [] and not capsys.readouterr().out
    (file,) = map(Path, config.data.val_files)
    file.parent.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"row": range(128)}), file)
    list(check.validation(config))
    assert (
        "validation: 128 episodes (data.val_files) x 1 (actor_rollout_ref.rollout.val_kwargs.n), every 5"
        in capsys.readouterr().out
    )


def test_a_real_start_names_everything_that_is_missing(tmp_path, monkeypatch, capsys):
    """check.py with the checks before a start: no GPU, no model, no data here; nothing is fetched."""
    pytest.importorskip("verl")
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import check

    overrides = [
        "+seal/webshop=grpo",
        "parts/env=webshop_like",
        f"data.folder={tmp_path}/data",
        f"trainer.default_local_dir={tmp_path}/run",
    ]
    overrides += ["data.env.kwargs.reward=nothing", "actor_rollout_ref.model.path=nobody/no-such-model"]
    assert check.main(["--recipes", str(RECIPES), "--", *overrides]) == 2
    error = capsys.readouterr().err
    for part in ("GPUs: 0 here", "hf download nobody/no-such-model", "environment webshop_like: ValueError"):
        assert part in error, error
    # The command that it gives for missing data works as it stands.
    how = re.search(r"`(verl-entropy data webshop_like --split test .*?)`", error)[1]
    argv = [word for word in shlex.split(how)[1:] if not word.startswith("data.env.kwargs.reward")]
    assert cli.main([*argv[:2], "--count", "3", *argv[2:]]) == 0
    assert check.main(["--recipes", str(RECIPES), "--", *overrides]) == 2
    assert "--split test" not in capsys.readouterr().err
