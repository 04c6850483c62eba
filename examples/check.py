# SPDX-License-Identifier: Apache-2.0
"""Before a launch: does the recipe compose and pass verl's and our checks, and is everything there that it needs?

    python examples/check.py --recipes recipes [--dry-run] -- OVERRIDES...

With --dry-run only the configuration is looked at. Exit status 2 and one line for each thing that is missing.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_entropy.config.settings import ConfigError
from verl_entropy.data import recipe

VALIDATION = 128
"""Episodes of a held-out split that the printed commands ask for: verl-agent's validation."""


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


def data(config, recipes: str, overrides: list[str]) -> Iterator[str]:
    """The files of `verl-entropy data`; the command that makes one has the run's own settings."""
    env = config.data.env.name
    recipe_name = next((o.lstrip("+") for o in overrides if o.startswith("+")), "")
    settings = [o for o in overrides if o.lstrip("+~").startswith(("parts/", "data.folder=", "data.env."))]
    more = f" --set {shlex.join(settings)}" if settings else ""
    for key in ("train_files", "val_files"):
        files = config.data[key]
        for file in [files] if isinstance(files, str) else files:
            path = Path(file)
            if not path.is_file():
                count = (
                    f" --count {VALIDATION}" if key == "val_files" and more_than(VALIDATION, config.data.env, path.stem) else ""
                )
                how = f"verl-entropy data {env} --split {path.stem}{count} --out {shlex.quote(str(path.parent))}"
                how += f" --recipes {shlex.quote(recipes)} --recipe {recipe_name}{more}"
                whole = " (--count: episodes of a validation; without it the whole split)" if count else ""
                yield f"data.{key}: {file} is not there. `{how}` makes it{whole}."


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
    """Build the environment and start one episode."""
    from omegaconf import OmegaConf

    from verl_entropy import envs

    env = OmegaConf.to_container(config.data.env, resolve=True)
    try:
        built = envs.make(env["name"], **(env.get("kwargs") or {}))
        try:
            built.reset(seed=0)
        finally:
            built.close()
    except Exception as error:  # whatever an optional package raises: it is the user's to read
        yield f"environment {env['name']}: {type(error).__name__}: {error}"


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
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args(argv)
    try:
        config = recipe.compose(args.overrides, args.recipes)
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
