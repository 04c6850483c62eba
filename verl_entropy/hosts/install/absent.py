# SPDX-License-Identifier: Apache-2.0
"""A run that chooses anything of ours without the plugin stops when Hydra composes its configuration.

Hydra finds our presets by itself, whether or not verl has loaded the plugin (verl before 0.9 loads none; one can be switched
off), and takes ``+key=value`` of any name. So the search-path plugin, which always runs, calls ``guard``. Where verl is loaded and
the plugin is not active, every configuration composed in this process is read, and nothing else is changed. Other Hydra
applications, which do not load verl, are left alone. Needs neither torch nor verl.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from typing import Any

from verl_entropy import __version__
from verl_entropy.config import reading
from verl_entropy.config.settings import ACTOR_PATH, ALGORITHM_PATH, POLICY_LOSS_PATH
from verl_entropy.hosts.install import activate, compat, hooks, patched
from verl_entropy.methods import registry

NAME = "verl_entropy"
"""Name of our entry point in the group verl.plugins."""

AGENT_LOOPS = ("stepwise_env", "span_env")
_reader: Any = None
"""Our stand-in for ``ConfigLoaderImpl.load_configuration``, once it is in place."""


def guard() -> None:
    """Read what is composed from now on, if verl is loaded and the plugin is not active as a whole."""
    global _reader
    if "verl" not in sys.modules or _active():
        return
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    original = ConfigLoaderImpl.load_configuration  # of compose, of a run and of each job of a multirun
    if original is _reader:
        return

    @functools.wraps(original)
    def load_configuration(self, *args, **kwargs):
        config = original(self, *args, **kwargs)
        if not reading.ACTIVE and not _active():
            keys = chosen(config)
            if keys:
                raise SystemExit(message(keys))  # an Exception would be tried again and printed with Hydra's traceback
        return config

    _reader = ConfigLoaderImpl.load_configuration = load_configuration


def _active() -> bool:
    """Whether a configuration that is composed here will be heard; verl-agent needs its launcher, patched or not."""
    if activate.LAUNCHED:
        return True
    return activate.INSTALLED and not hooks.FAILED and not compat.is_verl_agent()


def chosen(config: Any) -> list[str]:
    """Keys of ours that a composed configuration of verl sets, each as ``key=value``."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(config, DictConfig) or "algorithm" not in config or "actor_rollout_ref" not in config:
        return []

    def value(path: str) -> Any:
        try:
            found = OmegaConf.select(config, path)
        except OmegaConfBaseException:  # an interpolation that does not resolve: verl itself will say so
            return None
        return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found

    names = {kind: registry.names(kind) for kind in registry.FOLDERS}
    estimator, heard = value("algorithm.adv_estimator"), _registered()
    by_name = {
        "algorithm.adv_estimator": {*names["estimator"], *names["transform"]} - heard,
        f"{POLICY_LOSS_PATH}.loss_mode": {*names["loss"], *names["clip"]} - heard,
        "actor_rollout_ref.rollout.agent.default_agent_loop": AGENT_LOOPS,
    }
    found = [
        f"{key}={value(key)}" for key, ours in by_name.items() if value(key) in ours or registry.is_reference(str(value(key)))
    ]
    sections = [f"{ACTOR_PATH}.{name}" for name in ("head", *names["head"])]
    sections += [*(f"{POLICY_LOSS_PATH}.{key}" for key in ("regularizer", "clip_controller"))]
    sections += [f"{POLICY_LOSS_PATH}.{name}" for kind in ("loss", "clip", "regularizer") for name in names[kind]]
    plain = activate.INSTALLED and compat.is_verl_agent() and estimator in {*names["estimator"]} & heard
    if not plain:  # a patched verl-agent hands algorithm.entropy to our registered estimators
        sections.insert(0, ALGORITHM_PATH)
    return found + [f"{key}={value(key)}" for key in dict.fromkeys(sections) if value(key) not in (None, {}, [])]


def _registered() -> set[str]:
    """Names in verl's registries: who holds a name of ours there is heard (verl-agent has a gigpo of its own)."""
    core = sys.modules.get("verl.trainer.ppo.core_algos")
    if core is None:
        return set()
    tables = (vars(core).get(table, {}) for table in ("ADV_ESTIMATOR_REGISTRY", "POLICY_LOSS_REGISTRY"))
    members = [member.value for member in vars(core).get("AdvantageEstimator", ())] if compat.is_verl_agent() else []
    return {str(name) for table in tables for name in table} | set(members)


def message(keys: list[str]) -> str:
    """Versions, what was chosen, why it would not be heard, and the fix."""
    cause, fix = _cause()
    short = [key if len(key) < 100 else f"{key[:97]}..." for key in keys]
    verl = sys.modules.get("verl")
    where = f" ({os.path.dirname(verl.__file__)})" if verl is not None and verl.__file__ else ""
    return (
        f"[verl-entropy] stopped before training: the configuration sets {'; '.join(short)}, but verl-entropy is not active "
        f"in this process, so the run would train without it.\n"
        f"[verl-entropy] Versions: verl {compat.verl_version()}{where}, verl-entropy {__version__}.\n"
        f"[verl-entropy] Cause: {cause}.\n"
        f"[verl-entropy] Fix: {fix}; or take these keys out, and verl runs without verl-entropy."
    )


def _cause() -> tuple[str, str]:
    if compat.is_verl_agent() or patched.series() == patched.VERL_AGENT:
        launch = "python -m verl_entropy.verl_agent"
        return "verl-agent was started by its own main_ppo", f"start it with `{launch}` and the same arguments"
    if hooks.FAILED:
        return "; ".join(f"{m}: {why}" for m, why in hooks.FAILED.items()), "run `verl-entropy doctor`, install a supported verl"
    if activate.FAILURE is not None:
        return f"the plugin failed to load ({activate.FAILURE})", "reinstall verl-entropy and run `verl-entropy doctor`"
    reason = compat.unsupported_reason()
    if reason is not None:
        return reason, f"install a supported verl (pip install 'verl=={compat.SUPPORTED[-1]}')"
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and NAME not in {name.strip() for name in policy.split(",")}:
        wanted = "auto" if policy == "none" else f"auto or {policy},{NAME}"
        return (
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading it",
            f"set VERL_USE_EXTERNAL_PLUGINS={wanted} (or VERL_USE_EXTERNAL_MODULES={NAME}.plugin) for the driver and every Ray worker",
        )
    if NAME not in {point.name for point in importlib.metadata.entry_points(group="verl.plugins")}:
        return "its entry point verl.plugins is not installed (a copy on PYTHONPATH?)", "pip install verl-entropy"
    return "verl did not load its plugins", f"set VERL_USE_EXTERNAL_MODULES={NAME}.plugin for the driver and every Ray worker"
