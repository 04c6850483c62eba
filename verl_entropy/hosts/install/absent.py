# SPDX-License-Identifier: Apache-2.0
"""What a run asks of us, seen when Hydra composes its configuration; without the plugin such a run stops there.

Hydra finds our presets by itself, whether or not verl has loaded the plugin (verl before 0.9 loads none; one can be switched
off), and takes ``+key=value`` of any name. So the search-path plugin, which always runs, calls ``guard``. Where verl is loaded,
every configuration composed in this process is read: one that asks for nothing of ours is handed on, and verl is not touched; what
another asks for is installed, or the run is stopped. Other Hydra applications, which do not load verl, are left alone. A program
that makes verl's configuration without Hydra calls ``verl_entropy.hosts.install.activate.install`` first. Needs neither torch nor
verl.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from typing import Any

from verl_entropy import __version__
from verl_entropy.config import reading
from verl_entropy.config.settings import ACTOR_PATH, ALGORITHM_PATH, POLICY_LOSS_PATH
from verl_entropy.hosts.install import activate, compat, hooks, patched, running
from verl_entropy.methods import registry

NAME = "verl_entropy"
"""Name of our entry point in the group verl.plugins."""

PLUGIN = f"{NAME}.plugin"
"""The module that verl imports; one that fails does not stay in ``sys.modules``."""

MODULES = "VERL_USE_EXTERNAL_MODULES"
"""Environment variable of verl: modules that it imports at the end of its own import."""

AGENT_LOOPS = ("stepwise_env", "span_env", "tool_agent_branching")
ENVIRONMENT_PATH = "data.env"
POLL_PATH = "trainer.v1.sampler.sampler_kwargs.poll_interval"
_reader: Any = None
"""Our stand-in for ``ConfigLoaderImpl.load_configuration``, once it is in place."""


def guard() -> None:
    """Read what is composed from now on, if verl is loaded."""
    global _reader
    if "verl" not in sys.modules:
        return
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    original = ConfigLoaderImpl.load_configuration  # of compose, of a run and of each job of a multirun
    if original is _reader:
        return

    @functools.wraps(original)
    def load_configuration(self, *args, **kwargs):
        config = original(self, *args, **kwargs)
        if not reading.ACTIVE and not activate.LAUNCHED:
            listen(config)
        return config

    _reader = ConfigLoaderImpl.load_configuration = load_configuration


def listen(config: Any) -> None:
    """Install what a composed configuration asks for; SystemExit with cause and fix where that cannot be."""
    asked = chosen(config)
    if not asked:
        if PLUGIN in sys.modules and _trains(config):
            _warn(config)
        return
    if PLUGIN in sys.modules or activate.INSTALLED:
        _install(asked)
        if activate.INSTALLED and compat.before(0, 9) and _trains(config) and "ray_kwargs" in config:
            _tell_ray(config)
        if compat.is_verl_agent():  # what its registries hold by now is heard
            asked = chosen(config)
    keys = [key for group in asked.values() for key in group]
    if keys and not _active(asked):
        raise SystemExit(message(keys))  # an Exception would be tried again and printed with Hydra's traceback


def _install(asked: dict[str, list[str]]) -> None:
    try:
        done = activate.install(asked)
    except Exception:  # kept in activate.FAILURE, and ``message`` says it
        return
    if done:
        os.environ[hooks.CHOSEN] = activate.told()  # inherited by what this process starts


def _tell_ray(config: Any) -> None:
    """Before 0.9 verl checks a configuration in a process of Ray: what it needs to load us travels with ``ray.init``."""
    from omegaconf import OmegaConf

    for name in (hooks.CHOSEN, MODULES):
        if os.environ.get(name):
            OmegaConf.update(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{name}", os.environ[name], force_add=True)
    running.check(activate.told())


def _active(asked: dict[str, list[str]]) -> bool:
    """Whether what is asked for will be heard here; verl-agent needs its launcher, patched or not."""
    return activate.INSTALLED.issuperset(asked) and not hooks.FAILED and not compat.is_verl_agent()


def _warn(config: Any) -> None:
    """A slip in a key of ours stops the run; values of verl's keys with which it cannot work are warned of. Changes nothing."""
    from omegaconf.errors import OmegaConfBaseException

    from verl_entropy.config import plan, startup
    from verl_entropy.config.settings import ConfigError
    from verl_entropy.config.spelling import check_spelling
    from verl_entropy.hosts.verl_engine import driver
    from verl_entropy.log import say

    try:
        check_spelling(config)
    except ConfigError as error:
        raise SystemExit(f"[verl-entropy] configuration error: {error}") from None
    try:
        raw = driver.plain(config)
        startup.refuse(plan.read(raw), raw)
    except ConfigError as error:
        say(f"WARNING: {error}")
    except OmegaConfBaseException:  # an interpolation that does not resolve yet: verl itself will say so
        return


def _trains(config: Any) -> bool:
    """Whether this is a configuration of one of verl's trainers of policies."""
    from omegaconf import DictConfig

    return isinstance(config, DictConfig) and "algorithm" in config and "actor_rollout_ref" in config


def chosen(config: Any) -> dict[str, list[str]]:
    """What a composed configuration of verl asks of us: group of ``activate`` -> the keys that ask, each as ``key=value``."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def value(path: str) -> Any:
        try:
            found = OmegaConf.select(config, path)
        except OmegaConfBaseException:  # an interpolation that does not resolve: verl itself will say so
            return None
        return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found

    asked = {activate.VARLEN: [f"{path}=varlen" for path in _varlen(config)]}
    if _trains(config):
        names = {kind: registry.names(kind) for kind in registry.FOLDERS}
        others = _registered(ours=False)
        estimators = {*names["estimator"], *names["transform"]} - others
        losses = {*names["loss"], *names["clip"]} - others
        sections = [f"{ACTOR_PATH}.{name}" for name in ("head", *names["head"])]
        sections += [f"{POLICY_LOSS_PATH}.{key}" for key in ("regularizer", "clip_controller")]
        sections += [f"{POLICY_LOSS_PATH}.{name}" for kind in ("loss", "clip", "regularizer") for name in names[kind]]
        heard = {*names["estimator"]} & _registered(ours=True)
        if compat.is_verl_agent() and activate.INSTALLED and value("algorithm.adv_estimator") in heard:
            estimators -= heard  # a patched verl-agent hands algorithm.entropy to our registered estimators
        else:
            sections.insert(0, ALGORITHM_PATH)
        wanted = {
            activate.METHODS: [("algorithm.adv_estimator", estimators), (f"{POLICY_LOSS_PATH}.loss_mode", losses)],
            activate.AGENT_LOOPS: [("actor_rollout_ref.rollout.agent.default_agent_loop", AGENT_LOOPS)],
        }
        for group, pairs in wanted.items():
            asked[group] = [
                f"{key}={value(key)}" for key, ours in pairs if value(key) in ours or registry.is_reference(str(value(key)))
            ]
        given = {activate.METHODS: sections, activate.AGENT_LOOPS: [ENVIRONMENT_PATH], activate.POLL_INTERVAL: [POLL_PATH]}
        for group, paths in given.items():
            set_here = [f"{path}={value(path)}" for path in dict.fromkeys(paths) if value(path) not in (None, {}, [])]
            asked[group] = asked.get(group, []) + set_here
    return {group: keys for group, keys in asked.items() if keys}


def _varlen(node: Any, path: str = "") -> Iterator[str]:
    """Paths of the keys attn_implementation with the value varlen."""
    from omegaconf import DictConfig, OmegaConf

    if not isinstance(node, DictConfig) or node._is_none() or node._is_missing():
        return
    for key in node:
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        here = f"{path}.{key}" if path else str(key)
        if key == "attn_implementation" and node[key] == "varlen":
            yield here
        yield from _varlen(node[key], here)


def _registered(ours: bool) -> set[str]:
    """Names that verl's registries hold for our functions, or for those of others (verl-agent has a gigpo of its own)."""
    core = sys.modules.get("verl.trainer.ppo.core_algos")
    if core is None:
        return set()
    tables = [vars(core).get(table, {}) for table in ("ADV_ESTIMATOR_REGISTRY", "POLICY_LOSS_REGISTRY")]
    found = {str(name) for table in tables for name, f in table.items() if (f.__module__.split(".")[0] == NAME) is ours}
    if not ours and compat.is_verl_agent():
        found |= {member.value for member in vars(core).get("AdvantageEstimator", ())}
    return found


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
        return reason.split(" Fix: ")[0].rstrip("."), f"install a supported verl (pip install 'verl=={compat.SUPPORTED[-1]}')"
    if compat.before(0, 9):
        return (
            f"verl {compat.verl_version()} loads no plugin by itself",
            f"set {compat.loading()} for the driver and every Ray worker",
        )
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
