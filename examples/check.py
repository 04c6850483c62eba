# SPDX-License-Identifier: Apache-2.0
"""Before a launch: does the recipe compose and pass verl's and our checks, and is everything there that it needs?

    python examples/check.py --recipes recipes [--dry-run] -- OVERRIDES...

With --dry-run only the configuration is looked at; with --prepare what is missing is fetched and made. In a Ray cluster the
environment is started, and model and data are looked for, on every node. Exit status 2 and one line for each thing that is missing.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_entropy.agent import verl_agent_rules
from verl_entropy.config.settings import ConfigError
from verl_entropy.data import recipe

VALIDATION = 128
"""Episodes of a held-out split that the printed commands ask for: verl-agent's validation."""
NODE_SECONDS = 300
"""Until a node must have started an episode; simulators of Java start slowly."""


def gpus(config) -> Iterator[str]:
    """GPUs of this machine, or of the Ray cluster that the run will use."""
    nodes, each = config.trainer.nnodes, config.trainer.n_gpus_per_node
    if config.trainer.device != "cuda":
        return
    if nodes == 1 and not os.environ.get("RAY_ADDRESS"):
        import torch

        found = torch.cuda.device_count()
        if found < each:
            yield f"GPUs: {found} here, trainer.n_gpus_per_node={each}. Use a machine with {each}, or name fewer (at least 1)."
        return
    import ray

    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        yield f"Ray: no cluster is running, and trainer.nnodes={nodes} needs one. `ray start --head` here, `ray start --address` elsewhere."
        return
    try:
        ready = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= each]
    finally:
        ray.shutdown()
    if len(ready) < nodes:
        yield f"Ray: {len(ready)} nodes with {each} GPUs are up, trainer.nnodes={nodes}. Wait for the others, or set trainer.nnodes."


def mini_batch(config) -> Iterator[str]:
    """verl's workers refuse a mini-batch that does not divide among them, but only at the first update."""
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node // actor.fsdp_config.ulysses_sequence_parallel_size
    size = actor.ppo_mini_batch_size
    if size * n % ranks:
        step = ranks // math.gcd(ranks, n)
        near = max(1, round(size / step)) * step
        yield (
            f"actor_rollout_ref.actor.ppo_mini_batch_size={size}: {size} x rollout.n={n} rows do not divide among {ranks} ranks. "
            f"Set a multiple of {step}, such as {near}."
        )


def model(config) -> Iterator[str]:
    """The model's folder, or its files in the hub's cache: nothing is downloaded unasked."""
    path = config.actor_rollout_ref.model.path
    if Path(path).expanduser().is_dir():
        if not (Path(path).expanduser() / "config.json").is_file():
            yield f"model: {path} has no config.json. Give a Hugging Face checkpoint with --model-path."
        return
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError:
        cached = None
    if not isinstance(cached, str):
        yield f"model: {path} is neither a folder nor in the cache. `hf download {path}` fetches it, or give --model-path FOLDER."


def commands(config, recipes: str, overrides: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(key, file, arguments of `verl-entropy`) of the data files that are not there; the arguments have the run's own settings."""
    env = config.data.env.name
    recipe_name = next((o.lstrip("+") for o in overrides if o.startswith("+")), "")
    settings = [o for o in overrides if o.lstrip("+~").startswith(("parts/", "data.folder=", "data.env."))]
    for key in ("train_files", "val_files"):
        files = config.data[key]
        for file in [files] if isinstance(files, str) else files:
            path = Path(file)
            if not path.is_file():
                argv = ["data", env, "--split", path.stem]
                if key == "val_files" and more_than(VALIDATION, config.data.env, path.stem):
                    argv += ["--count", str(VALIDATION)]
                argv += ["--out", str(path.parent), "--recipes", recipes, "--recipe", recipe_name]
                yield key, file, [*argv, *(["--set", *settings] if settings else [])]


def data(config, recipes: str, overrides: list[str]) -> Iterator[str]:
    """The files of `verl-entropy data`, with the command that makes one."""
    for key, file, argv in commands(config, recipes, overrides):
        whole = " (--count: episodes of a validation; without it the whole split)" if "--count" in argv else ""
        yield f"data.{key}: {file} is not there. `{shlex.join(['verl-entropy', *argv])}` makes it{whole}."


def more_than(count: int, env, split: str) -> bool:
    """Whether the split has more episodes; False where that is not known."""
    from omegaconf import OmegaConf

    from verl_entropy.data import source

    env = OmegaConf.to_container(env, resolve=True)
    try:
        return len(source.tasks(env["name"], split, count=None, kwargs=env.get("kwargs"))) > count
    except Exception:  # what an environment that is not there raises; `environment` says it
        return False


def validation(config) -> Iterator[str]:
    """Print how many episodes a validation plays; nothing is missing."""
    import pyarrow.parquet

    files = config.data.val_files
    files = [Path(file) for file in ([files] if isinstance(files, str) else files)]
    if all(file.is_file() for file in files):
        rows = [pyarrow.parquet.read_metadata(file).num_rows for file in files]
        each = " + ".join(map(str, rows)) + (f" = {sum(rows)}" if len(rows) > 1 else "")
        limit = f", at most {config.data.val_max_samples} of them" if config.data.val_max_samples > 0 else ""
        n = config.actor_rollout_ref.rollout.val_kwargs.n
        print(
            f"validation: {each} episodes (data.val_files){limit} x {n} (actor_rollout_ref.rollout.val_kwargs.n), every "
            f"{config.trainer.test_freq} steps (trainer.test_freq); data.val_max_samples=N plays fewer"
        )
    yield from ()


def environment(config) -> Iterator[str]:
    """Build the environment and start one episode, here or on every node of the Ray cluster; there, look for the files as well."""
    from omegaconf import OmegaConf

    env = OmegaConf.to_container(config.data.env, resolve=True)
    lists = [config.data.train_files, config.data.val_files, config.actor_rollout_ref.model.path]
    files = [file for given in lists for file in ([given] if isinstance(given, str) else given) if os.path.isabs(file)]

    def errors(paths: list[str]) -> list[str]:
        """Sent to the nodes as it stands: no name of this file may occur in it."""
        import os

        from verl_entropy import envs
        from verl_entropy.agent.settings import AgentSettings, check_texts

        found = [f"{path} is not there: a folder that all nodes share is needed" for path in paths if not os.path.exists(path)]
        try:
            check_texts(AgentSettings.from_mappings(env))
            built = envs.make(env["name"], **(env.get("kwargs") or {}))
            try:
                built.reset(seed=0)
            finally:
                built.close()
        except Exception as error:  # whatever an optional package raises: it is the user's to read
            found.append(f"environment {env['name']}: {type(error).__name__}: {error}")
        return found

    if config.trainer.nnodes == 1 and not os.environ.get("RAY_ADDRESS"):
        yield from errors([])  # files and model: the checks before this one
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return  # `gpus` says it
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        remote = ray.remote(num_cpus=0, max_retries=0)(errors)
        asked = [
            remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(files)
            for node in nodes
        ]
        for node, answer in zip(nodes, asked, strict=True):
            try:
                yield from (f"node {node['NodeManagerAddress']}: {line}" for line in ray.get(answer, timeout=NODE_SECONDS))
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
                yield f"node {node['NodeManagerAddress']}: {type(error).__name__}: {str(error).splitlines()[-1]}"
        print(f"environment and files: looked at on {len(nodes)} node(s)")
    finally:
        ray.shutdown()


def prepare(config, recipes: str, overrides: list[str]) -> None:
    """Fetch the model and the games, and make the data files, where they are missing."""
    from verl_entropy import cli

    path, env = config.actor_rollout_ref.model.path, config.data.env.name
    if not Path(path).expanduser().is_dir():
        from huggingface_hub import snapshot_download

        print(f"model: {path} in {snapshot_download(path)}")
    games = {"alfworld": ("ALFWORLD_DATA", ["alfworld-download", "--data-dir"]), "appworld": ("APPWORLD_ROOT", None)}
    variable, command = games.get(env, ("", None))
    target = os.environ.get(variable)
    if variable and not target:
        raise ConfigError(f"{variable}: not set. Export it, a folder that all nodes share, and start again.")
    if target and not any(Path(target).glob("*")):
        Path(target).mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, target] if command else ["appworld", "download", "data"], cwd=target, check=True)
    if config.data.env.get("prompt_template") == "verl_agent":
        texts()
    for _, _, argv in commands(config, recipes, overrides):
        if cli.main(argv):
            raise ConfigError(f"{shlex.join(['verl-entropy', *argv])}: failed, for the reason above.")


def texts() -> None:
    """Clone verl-agent, whose prompts are read from it, to where they are looked for."""
    home = verl_agent_rules.home()
    if home is None:
        raise ConfigError(f"{verl_agent_rules.HOME}: not set. Export it, a folder that all nodes share, and start again.")
    if not home.is_dir():
        subprocess.run(["git", "clone", verl_agent_rules.REPOSITORY, str(home)], check=True)
        subprocess.run(["git", "-C", str(home), "checkout", "--quiet", verl_agent_rules.COMMIT], check=True)


def folder(config) -> Iterator[str]:
    """Where checkpoints go must be writable."""
    path = Path(config.trainer.default_local_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        yield f"trainer.default_local_dir: {path} cannot be written ({error.strerror}). Choose another --out."


def main(argv: list[str] | None = None) -> int:
    """0: everything is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipes", required=True)
    parser.add_argument("--dry-run", action="store_true", help="look at the configuration only")
    parser.add_argument("--prepare", action="store_true", help="fetch and make what is missing")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args(argv)
    try:
        config = recipe.compose(args.overrides, args.recipes)
        if args.prepare:
            prepare(config, args.recipes, args.overrides)
            return 0
        for line in recipe.validate(config):
            print(f"[verl-entropy] {line}")
    except ConfigError as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    print("configuration: composes, and passes the checks of verl and verl-entropy")
    if config.data.warm_start == "expert":
        print("warm start: this model needs one before RL; recipes/warm_start/README.md has the two commands")
    checks = (
        ()
        if args.dry_run
        else (
            gpus,
            model,
            functools.partial(data, recipes=args.recipes, overrides=args.overrides),
            validation,
            environment,
            folder,
        )
    )
    missing = [line for check in (mini_batch, *checks) for line in check(config)]
    for line in missing:
        print(f"check: {line}", file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
