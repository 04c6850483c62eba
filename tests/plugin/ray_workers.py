# SPDX-License-Identifier: Apache-2.0
"""Workers of a real Ray, each told something else of the run: ray_workers.py OUT writes what they say."""

import json
import os
import sys
import tempfile

import ray
import walk

CHOSEN = "VERL_ENTROPY_CHOSEN"


def seams() -> dict:
    from verl_entropy.hosts.install import seams

    return seams.probe()


def actor(**keys) -> str:
    """What a training worker says to the actor configuration of a run that has chosen something."""
    from types import SimpleNamespace

    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import ActorRolloutRefWorker

    config = {
        "_target_": "verl_entropy.hosts.verl_engine.configs.EntropyFSDPActorConfig",
        "strategy": "fsdp2",
        "rollout_n": 1,
        **keys,
    }
    config = OmegaConf.create({"actor": {**config, "ppo_micro_batch_size_per_gpu": 1}})
    try:
        omega_conf_to_dataclass(config.actor)
        ActorRolloutRefWorker.init_model(SimpleNamespace(config=config))
    except RuntimeError as error:
        return str(error)
    except Exception as error:  # a model is wanted: everything of ours has been asked
        return f"accepted, then {type(error).__name__} {error}"
    return "a model of nothing"


def asked(wanted: str) -> str:
    """What the driver says to the Ray that runs."""
    from verl_entropy.hosts.install import running

    try:
        running.check(wanted)
    except SystemExit as stopped:
        return str(stopped.code)
    return "told"


def start(folder: str, job: dict) -> None:
    """A Ray of its own; on a busy machine its half minute to start may not be enough at once."""
    for attempt in range(4):
        try:
            ray.init("local", num_cpus=1, include_dashboard=False, _temp_dir=f"{folder}/{attempt}", runtime_env=job)
            return
        except Exception:
            ray.shutdown()
            if attempt == 3:
                raise


def main(out: str) -> None:
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
    job = {"env_vars": {CHOSEN: "methods", "PYTHONPATH": path}}
    with tempfile.TemporaryDirectory(prefix="ve-", ignore_cleanup_errors=True) as folder:
        start(folder, job)
        try:

            def run(function, *args, _env=None, **kwargs):
                task = ray.remote(num_cpus=1)(function).options(runtime_env={"env_vars": _env or {}})
                return ray.get(task.remote(*args, **kwargs))

            quiet, none = {CHOSEN: ""}, {CHOSEN: "", "VERL_USE_EXTERNAL_PLUGINS": "none"}
            found = {
                "plain": run(walk.here, _env=quiet),
                "without": run(walk.here, _env=none),
                "seams": run(seams),
                "untold worker": run(actor, _env=quiet),
                "untold trainer": run(actor),
                "both told": run(actor, trainer_active=True),
                "unchecked": run(actor, _target_="verl.workers.config.FSDPActorConfig"),
                "checked": run(actor, _env={CHOSEN: "methods,checked"}, _target_="verl.workers.config.FSDPActorConfig"),
                "driver": asked("methods"),
                "driver of more": asked("methods,varlen"),
            }
        finally:
            ray.shutdown()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    # By name, so that workers import the functions instead of unpickling them.
    import ray_workers

    ray_workers.main(sys.argv[1])
