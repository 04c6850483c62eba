# SPDX-License-Identifier: Apache-2.0
"""Whether the plugin is active in a process: imports verl's modules there and looks at what they hold.

``python -m verl_entropy.hosts.install.seams``       prints it for this process, as JSON
``python -m verl_entropy.hosts.install.seams --ray`` prints it for a worker of a local Ray, which it starts and stops

Registry entries are looked up by name; a function is ours if its module is.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from verl_entropy.hosts.install import compat

PACKAGE = "verl_entropy"
V1 = "verl.trainer.ppo.v1.trainer_base"
RAY_LIMIT_S = 55.0
"""Time for Ray to start and a worker to import verl: 15 to 30 s on two cores."""


def _owner(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def registries() -> dict[str, Any]:
    """Our names in verl's registries of estimators and policy losses: how many are ours, and who holds the others."""
    from verl_entropy.hosts.install import activate
    from verl_entropy.methods import registry

    activate.install()
    from verl.trainer.ppo import core_algos

    ours, clashes = 0, {}
    for kind, table in (("estimator", core_algos.ADV_ESTIMATOR_REGISTRY), ("loss", core_algos.POLICY_LOSS_REGISTRY)):
        for name in registry.names(kind):
            holder = table.get(name)
            if holder is not None and holder.__module__.split(".")[0] == PACKAGE:
                ours += 1
            else:
                clashes[f"{kind} {name}"] = "nobody" if holder is None else _owner(holder)
    return {"ours": ours, "clashes": clashes}


def _loss(module: Any) -> bool:
    from verl_entropy.hosts.verl_engine.loss import is_ours

    return is_ours(module.ppo_loss)


def _defined_here(function: Any) -> bool:
    """functools.wraps lends a wrapper the module of what it wraps; its globals tell where it was written."""
    return function.__globals__["__name__"].split(".")[0] == PACKAGE


def _trainer(module: Any) -> bool:
    methods = (module.PPOTrainer._compute_advantage, module.PPOTrainer._update_actor, module.PPOTrainer._save_checkpoint)
    return all(map(_defined_here, methods))


def _ray_trainer(module: Any) -> bool:
    trainer = module.RayPPOTrainer
    methods = (module.compute_advantage, trainer._compute_old_log_prob, trainer._update_actor, trainer._save_checkpoint)
    return all(map(_defined_here, methods))


def _validate(module: Any) -> bool:
    return _defined_here(module.validate_config)


def _engine(_: Any) -> bool:
    from verl.workers.engine.base import EngineRegistry

    engines = EngineRegistry._engines["language_model"]["fsdp2"].values()
    return any(engine.__module__.split(".")[0] == PACKAGE for engine in engines)


def _agent_loops(module: Any) -> bool:
    return {"stepwise_env", "span_env", "tool_agent_branching"} <= set(module._agent_loop_registry)


def _registered(_: Any) -> bool:
    return not registries()["clashes"]


_ALL = {
    "verl.utils.config": ("checks before Ray starts", _validate),
    "verl.trainer.ppo.core_algos": ("estimators and losses registered", _registered),
    V1: ("trainer's advantages, metrics and state", _trainer),
    "verl.trainer.ppo.ray_trainer": ("the same of RayPPOTrainer", _ray_trainer),
    "verl.workers.engine_workers": ("loss of the training workers", _loss),
    "verl.workers.engine.fsdp.transformer_impl": ("engine with head and log-prob pass", _engine),
    "verl.experimental.agent_loop.agent_loop": ("agent loops for environments", _agent_loops),
}


SEAMS = {module: seam for module, seam in _ALL.items() if module != V1 or not compat.before(0, 9)}
"""Those of the installed verl."""


def probe() -> dict[str, Any]:
    """Import each module that a piece of ours goes into, as verl does, and say whether it is there.

    In a process of a run (``VERL_ENTROPY_CHOSEN``) the import of verl installs; elsewhere this installs what a driver would.
    """
    start = time.monotonic()
    import verl  # noqa: F401  (loads the plugins, as in every process of a run)

    from verl_entropy.hosts.install import absent, activate, hooks

    loaded_by_verl = absent.PLUGIN in sys.modules and (activate.METHODS in activate.INSTALLED or not os.environ.get(hooks.CHOSEN))
    activate.install()
    seams = {title: test(importlib.import_module(module)) for module, (title, test) in SEAMS.items()}
    return {
        "pid": os.getpid(),
        "loaded_by_verl": loaded_by_verl,
        "seams": seams,
        "active": loaded_by_verl and all(seams.values()),
        "seconds": round(time.monotonic() - start, 1),
    }


def _in_ray() -> dict[str, Any]:
    """``probe`` in a worker of a Ray of its own, whatever cluster the environment names; it is told of a choice as in a run."""
    import ray

    from verl_entropy.hosts.install import activate, hooks

    told = {"env_vars": {hooks.CHOSEN: activate.METHODS}}
    with tempfile.TemporaryDirectory(prefix="ve-", ignore_cleanup_errors=True) as folder:
        ray.init(
            "local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            logging_level="ERROR",
            runtime_env=told,
        )
        try:
            # Imported by name in the worker: nothing of this process travels there.
            task = ray.remote(num_cpus=1)(_probe_by_name)
            return {**ray.get(task.remote(), timeout=RAY_LIMIT_S), "driver_pid": os.getpid()}
        finally:
            ray.shutdown()


def _probe_by_name() -> dict[str, Any]:
    from verl_entropy.hosts.install import seams

    return seams.probe()


def ray_worker(limit_s: float = RAY_LIMIT_S) -> dict[str, Any]:
    """The probe of a Ray worker, run in a process group of its own that is ended with everything in it."""
    command = [sys.executable, "-m", "verl_entropy.hosts.install.seams", "--ray"]
    # Ray collects usage statistics over the network unless told not to.
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"active": False, "error": f"no answer within {limit_s:.0f} s"}
    finally:
        _end(process)
    lines = out.strip().splitlines()
    if process.returncode != 0 or not lines:
        last = err.strip().splitlines()[-1:] or ["no output"]
        return {"active": False, "error": last[0]}
    return json.loads(lines[-1])


def _end(process: subprocess.Popen) -> None:
    """Ask the group to end, then end it, also where the probe itself is gone already; Ray's daemons follow their driver."""
    for sign, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, sign)
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


if __name__ == "__main__":
    print(json.dumps(_in_ray() if "--ray" in sys.argv[1:] else probe()))
