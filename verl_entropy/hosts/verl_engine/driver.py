# SPDX-License-Identifier: Apache-2.0
"""The driver's part: read the plan, check it and prepare verl's configuration before Ray starts."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import re
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_entropy.config import checks, engines, plan, presets, startup
from verl_entropy.config import warnings as risks
from verl_entropy.config.settings import ConfigError
from verl_entropy.config.spelling import check_spelling
from verl_entropy.hosts.install import absent, activate, compat, hooks, patched, running
from verl_entropy.log import say
from verl_entropy.methods import registry

CONFIGS = "verl_entropy.hosts.verl_engine.configs"
_OF_VERL = re.compile(r"verl\.workers\.config\.(?:\w+\.)?(\w+Config)")


def in_workers(config: DictConfig) -> bool:
    """Whether the training workers of this prepared configuration have our loss."""
    return str(config.actor_rollout_ref.actor.get("_target_")).startswith(f"{CONFIGS}.Entropy")


def _adapted(config: DictConfig) -> bool:
    """Whether their engine is ours."""
    return engines.adapted(config.actor_rollout_ref.actor.strategy, os.environ.get("VERL_ENGINE_VENDOR"))


def run_of(config: DictConfig) -> Any:
    """``state.Run`` of a trainer with this prepared configuration; no samples where the engine is not ours."""
    from verl_entropy.hosts.common import state

    chosen = read_plan(config)
    if not _adapted(config):
        chosen = dataclasses.replace(chosen, diagnostics=dataclasses.replace(chosen.diagnostics, costly_every=0))
    return state.Run(chosen)


def read_plan(config: DictConfig) -> plan.Plan:
    """The plan of verl's configuration."""
    return plan.read(plain(config))


def plain(config: DictConfig) -> dict[str, Any]:
    """The parts that the checks read, as plain containers. Missing values (???) and unset interpolations stay as they are."""
    parts = {
        k: config[k]
        for k in ("algorithm", "actor_rollout_ref", "trainer", "distillation", "data", "critic", "reward")
        if k in config
    }
    return {
        k: OmegaConf.to_container(v, resolve=True, throw_on_missing=False) if OmegaConf.is_config(v) else v
        for k, v in parts.items()
    }


def _retarget(node: DictConfig, path: str) -> None:
    """Our class in the place of verl's: of the same name, with ``Entropy`` before it."""
    current = str(node.get("_target_", ""))
    if current.startswith(f"{CONFIGS}."):
        return
    if (match := _OF_VERL.fullmatch(current)) is None:
        raise ConfigError(
            f"{path}._target_={current}: verl-entropy's settings need a class of verl there, such as verl.workers.config.FSDPActorConfig. "
            f"Set your own class only when no entropy setting is chosen, or remove {path}._target_."
        )
    node["_target_"] = f"{CONFIGS}.Entropy{match[1]}"


def check_names(chosen: plan.Plan, external_lib: Any = None) -> None:
    """The base and the loss must be registered by now, or by the modules of the user that verl imports later; ours must be ours."""
    from verl.trainer.ppo import core_algos
    from verl.utils.import_utils import import_external_libs

    from verl_entropy.hosts.verl_engine import registration

    import_external_libs(external_lib)
    registration.register_outside(core_algos, chosen)
    if chosen.base not in core_algos.ADV_ESTIMATOR_REGISTRY:
        known = ", ".join(sorted(core_algos.ADV_ESTIMATOR_REGISTRY))
        raise ConfigError(f"algorithm.adv_estimator={chosen.base}: not registered. Known: {known}.")
    if chosen.loss_mode not in core_algos.POLICY_LOSS_REGISTRY:
        known = ", ".join(sorted(core_algos.POLICY_LOSS_REGISTRY))
        raise ConfigError(f"actor_rollout_ref.actor.policy_loss.loss_mode={chosen.loss_mode}: not registered. Known: {known}.")
    for choice in (chosen.estimator, chosen.loss):
        if choice is not None and choice.method.word in registration.REFUSED:
            raise ConfigError(
                f"{choice.method.key}: {registration.REFUSED[choice.method.word]} registered that name before verl-entropy did. "
                "Remove or rename the other one (VERL_USE_EXTERNAL_MODULES, VERL_USE_EXTERNAL_PLUGINS)."
            )


def prepare(config: DictConfig) -> plan.Plan | None:
    """Check ``config`` and set what the chosen methods need; None, and nothing touched, if nothing of ours is chosen."""
    chosen = read_plan(config)
    if not chosen.active:
        return None
    hooks.require()
    checks.check(chosen, plain(config))
    check_snapshots(chosen, config)
    arr = config.actor_rollout_ref
    check_names(chosen, arr.model.get("external_lib"))
    with open_dict(config):
        _retarget(arr.actor, "actor_rollout_ref.actor")
        _retarget(arr.actor.policy_loss, "actor_rollout_ref.actor.policy_loss")
        # A transform or a controller given in the place of an estimator or a loss: verl sees the base.
        config.algorithm.adv_estimator = chosen.base
        arr.actor.policy_loss.loss_mode = chosen.loss_mode
        _keep_choice(config, chosen)
        _keep_sections(arr.actor, chosen)
        if _adapted(config):
            _configure_engine(arr, chosen)
    return chosen


def _configure_engine(arr: DictConfig, chosen: plan.Plan) -> None:
    """What our FSDP engine is told."""
    for role in ("actor", "ref"):
        if role not in arr or "fsdp_config" not in arr[role]:
            continue
        _retarget(arr[role].fsdp_config, f"actor_rollout_ref.{role}.fsdp_config")
        arr[role].fsdp_config.log_probs = "chunked" if "logits" in chosen.needs else chosen.entropy.log_probs
    readers = [c for c in chosen.choices if c.method.logits is not None]
    if readers:
        arr.actor.fsdp_config.logits = [{"kind": c.method.kind, **_told(c)} for c in readers]
    if chosen.diagnostics.enabled and chosen.diagnostics.costly_every:
        arr.actor.fsdp_config.sample = True
    if chosen.head is not None:
        arr.actor.fsdp_config.head = _told(chosen.head)
    if "grad_entropy" in chosen.needs:
        arr.actor.calculate_entropy = True


def check_values(config: DictConfig) -> list[str]:
    """Refuse values of verl's keys with which the run cannot work, and return warnings of odd ones.

    Where nothing of ours is chosen the run is verl's alone, and what would be refused is a warning.
    """
    raw = plain(config)
    chosen = plan.read(raw)
    found = risks.risks(chosen, raw, importlib.util.find_spec("flash_attn") is not None) if chosen.active else []
    try:
        startup.refuse(chosen, raw)
    except ConfigError as error:
        if chosen.active:
            raise
        return [str(error)]
    return found


def _told(choice: plan.Choice) -> dict[str, Any]:
    """A choice as the engine's configuration holds it."""
    return {"word": choice.method.word, "settings": dataclasses.asdict(choice.settings)}


def _keep_sections(actor: DictConfig, chosen: plan.Plan) -> None:
    """verl builds its dataclasses from these nodes: sections of methods from outside go where those have a field for them."""
    loss_side = [c for c in (chosen.loss, chosen.clip, chosen.regularizer) if c is not None and c.method.chosen_as]
    for choice in loss_side:
        section = actor.policy_loss.pop(choice.name, None)
        if section is not None:
            actor.policy_loss.sections = {**(actor.policy_loss.get("sections") or {}), choice.name: section}
    known = {m.name for m in registry.methods("head")} - {"seal"}
    for name in known | ({chosen.head.name} if chosen.head is not None and chosen.head.method.chosen_as else set()):
        section = actor.pop(name, None)
        if section is not None:
            actor.head_section = {name: section}
            actor.head = actor.get("head") or name


def _keep_choice(config: DictConfig, chosen: plan.Plan) -> None:
    """Write the chosen transforms and clip controller where the other processes read them."""
    if "entropy" not in config.algorithm:
        config.algorithm.entropy = {}
    config.algorithm.entropy.transforms = [t.method.word for t in chosen.transforms]
    if chosen.clip is not None:
        config.actor_rollout_ref.actor.policy_loss.clip_controller = chosen.clip.method.word


def banner(chosen: plan.Plan, config: DictConfig) -> list[str]:
    """Lines that say what the run does about entropy, printed once at start."""
    actor = config.actor_rollout_ref.actor
    head = f"verl {compat.verl_version()}, effective entropy_coeff {actor.entropy_coeff}, "
    owner = f"entropy term owned by {chosen.regularizer.name}" if chosen.regularizer else "no regularizer"
    lines = [head + owner, *chosen.describe(), *_other_than_presets(chosen, config), *_left_out(chosen, config)]
    return [*lines, patched.describe()] if patched.describe() else lines


def _other_than_presets(chosen: plan.Plan, config: DictConfig) -> list[str]:
    """Where this run is not the method of a chosen preset's paper, because something else set the key."""
    return [
        f"note: {key}={now}, where the paper's method of preset {name} has {value}"
        for name, key, value, now, _ in presets.replaced(chosen.presets, plain(config))
    ]


def _left_out(chosen: plan.Plan, config: DictConfig) -> list[str]:
    """Diagnostics that this configuration cannot have, and the key that would change it."""
    arr, notes = config.actor_rollout_ref, []
    if not chosen.diagnostics.enabled:
        return notes
    if not arr.rollout.get("calculate_log_probs", False):
        notes.append("note: set actor_rollout_ref.rollout.calculate_log_probs=True for metrics that compare sampler and trainer")
    if chosen.diagnostics.costly_every and not _adapted(config):
        notes.append(f"note: no metrics of representations and interference with actor.strategy={arr.actor.strategy}")
    elif chosen.diagnostics.costly_every and checks.sequence_parallel(plain(config)) > 1:
        notes.append("note: no metrics of representations and interference while ulysses_sequence_parallel_size is above 1")
    elif chosen.diagnostics.costly_every and arr.model.get("use_fused_kernels", False):
        notes.append("note: no metrics of interference with actor_rollout_ref.model.use_fused_kernels=True: it keeps no logits")
    return notes


def check_environment(config: DictConfig) -> None:
    """``data.env`` must hold known settings and name a class that imports; data given as JSON lines must be whole."""
    if "env" not in config.data or config.data.env is None:
        return
    from verl_entropy import envs
    from verl_entropy.agent.settings import PATH, AgentSettings

    settings = AgentSettings.from_mappings(OmegaConf.to_container(config.data.env, resolve=True))
    try:
        envs.resolve(settings.name)
    except ValueError as error:
        raise ConfigError(f"{PATH}.name: {error}") from None
    for key in ("train_files", "val_files"):
        files = config.data.get(key) or []
        for file in [files] if isinstance(files, str) else files:
            if str(file).endswith((".json", ".jsonl")) and os.path.isfile(file):
                _check_json_lines(str(file), f"data.{key}")


def check_prompts(config: DictConfig) -> None:
    """ConfigError where the prompt template's texts are not on this machine."""
    if config.data.get("env") is not None:
        from verl_entropy.agent.settings import AgentSettings, check_texts

        check_texts(AgentSettings.from_mappings(OmegaConf.to_container(config.data.env, resolve=True)))


def check_snapshots(chosen: plan.Plan, config: DictConfig) -> None:
    """An environment whose turns a session can go on from: by a clone, or by playing the actions again."""
    users = [c.name for c in chosen.choices if "snapshot" in c.needs]
    section = config.data.get("env") if "data" in config else None
    if not users or section is None:
        return
    from verl_entropy.agent.environment import snapshot_of
    from verl_entropy.agent.settings import PATH, AgentSettings

    settings = AgentSettings.from_mappings(OmegaConf.to_container(section, resolve=True))
    snapshot_of(settings.name, users[0], f"{PATH}.name")


def _check_json_lines(path: str, key: str) -> None:
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.strip() else {}
            except json.JSONDecodeError as error:
                raise ConfigError(f"{key}={path}: line {number} is not JSON ({error}). Mend or remove that line.") from None
            if line.strip() and not isinstance(row, dict):
                raise ConfigError(f"{key}={path}: line {number} is not an object with the columns of a row.")


def _tell_workers(config: DictConfig) -> None:
    """Every Ray process of the run installs what is installed here, and stops where a piece of ours fails (``hooks.CHOSEN``)."""
    value = activate.told()
    if not compat.before(0, 9):  # before, verl calls validate_config in a process of Ray, and not where Ray is started
        value = f"{value},{activate.CHECKED}"
    os.environ[hooks.CHOSEN] = value
    if OmegaConf.select(config, "ray_kwargs.ray_init") is not None:
        OmegaConf.update(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{hooks.CHOSEN}", value, force_add=True)
    running.check(value)


def _prepared(config: DictConfig) -> bool:
    """Whether another process has checked and prepared this configuration."""
    told = os.environ.get(hooks.CHOSEN, "").split(",")
    return activate.CHECKED in told and in_workers(config)


def wrap(module: ModuleType) -> None:
    """Make ``verl.utils.config.validate_config`` read our settings first."""
    original = module.validate_config

    @functools.wraps(original)
    def validate_config(config, *args, **kwargs):
        if _prepared(config):  # by the driver; the runner of RayPPOTrainer calls this once more
            return original(config, *args, **kwargs)
        asked = absent.chosen(config)  # now: what was set after the composition counts, and ``prepare`` writes verl's names
        if not activate.install(asked):
            raise SystemExit(absent.message([key for keys in asked.values() for key in keys]))
        try:
            check_spelling(config)
            check_environment(config)
            check_prompts(config)
            found = check_values(config)
            chosen = prepare(config)
        except ConfigError as error:
            raise SystemExit(f"[verl-entropy] configuration error: {error}") from None
        except hooks.HookError as error:
            raise SystemExit(f"[verl-entropy] {error}") from None
        if asked:
            _tell_workers(config)
        original(config, *args, **kwargs)
        if chosen is not None:
            for line in banner(chosen, config):
                say(line)
        for line in found:
            say(f"WARNING: {line}")

    module.validate_config = validate_config
