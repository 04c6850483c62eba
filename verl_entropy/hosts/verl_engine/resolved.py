# SPDX-License-Identifier: Apache-2.0
"""What a composed configuration will do, as plain values: for ``validate``, ``doctor --config`` and their --json.

``check`` runs the functions that the driver runs at start, so it imports verl and torch; it starts neither Ray nor a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import warnings
from typing import Any

from verl_entropy.config import memory, startup
from verl_entropy.config import warnings as risks
from verl_entropy.config.plan import Choice, Plan
from verl_entropy.config.settings import ConfigError, lookup
from verl_entropy.data.recipe import not_here, offline


@dataclasses.dataclass
class Resolved:
    """The outcome of all checks."""

    plan: Plan
    raw: dict[str, Any]
    """verl's configuration as it goes to the workers."""
    verl: str | None
    """Why verl itself would stop the run; None: it would not."""
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"plan": summary(self.plan, self.raw), "verl": self.verl, "warnings": self.warnings}


def has_flash() -> bool:
    """Whether flash-attn, whose cross-entropy verl's log-probs use, is installed on this machine."""
    return importlib.util.find_spec("flash_attn") is not None


def check(config: Any) -> Resolved:
    """Our checks (ConfigError), then verl's own (reported), on a composed configuration, which is prepared as at start."""
    from omegaconf import OmegaConf

    from verl_entropy.hosts.install import activate
    from verl_entropy.hosts.verl_engine import driver

    activate.install()
    driver.check_spelling(config)
    driver.check_environment(config)
    startup.refuse(driver.read_plan(config), driver.plain(config))
    chosen = driver.prepare(config)
    if chosen is None:  # nothing of ours: the names of base and loss must exist all the same
        chosen = driver.read_plan(config)
        driver.check_names(chosen)
    verl, notes = _verl_checks(config)
    unused = "that method is not chosen"  # said by risks, with the fix
    if chosen.active:
        lines = driver.banner(chosen, config)
        notes += [line.removeprefix("note: ") for line in lines if line.startswith("note: ") and not line.endswith(unused)]
    try:  # as a data file that is not here: the machine of the run may have it
        driver.check_prompts(config)
    except ConfigError as error:
        notes.append(f"not on this machine: {error}")
    raw = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    return Resolved(chosen, raw, verl, [*risks.risks(chosen, raw, has_flash()), *notes])


def _verl_checks(config: Any) -> tuple[str | None, list[str]]:
    """What verl's own validate_config says: why it stops, and its notices."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils import config as verl_config

    printed = io.StringIO()
    reason = note = None
    with offline(), warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")  # "Disabled critic": said of every estimator but gae
        try:
            verl_config.validate_config.__wrapped__(config, need_reference_policy(config), need_critic(config))
            _build(config)
        except Exception as error:  # assertions, ValueError, Hydra's wrapper around either: all of them stop the run
            note = not_here(config, error)
            reason = _cause(error) if note is None else None
    notices = [line for line in printed.getvalue().splitlines() if line.startswith(("NOTICE", "WARNING"))]
    return reason, [*notices, note] if note else notices


def _build(config: Any) -> None:
    """What verl's workers look up minutes after the start: the sampler's dataclass, which checks itself, and the optimizer's class."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    rollout = config.actor_rollout_ref.rollout
    if "_target_" in rollout and not OmegaConf.is_missing(rollout, "name"):  # left to be given, as words on their own often do
        omega_conf_to_dataclass(rollout)
    optim = config.actor_rollout_ref.actor.optim
    name, module = optim.get("optimizer"), optim.get("optimizer_impl")
    if name and module and "." in module and getattr(importlib.import_module(module), name, None) is None:
        raise ValueError(f"actor_rollout_ref.actor.optim.optimizer={name}: {module} has no such class")


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


# ----------------------------------------------------------------------------- the plan


def changed(choice: Choice) -> dict[str, Any]:
    """Settings that are not the class defaults, which are the paper's."""
    default = choice.method.settings()
    fields = dataclasses.fields(choice.settings)
    pairs = ((f.name, getattr(choice.settings, f.name), getattr(default, f.name)) for f in fields)
    return {name: value for name, value, usual in pairs if value != usual}


def effective_entropy_coeff(plan: Plan, raw: dict[str, Any]) -> dict[str, Any]:
    """The weight of entropy in the loss, in loss per nat, and who sets it."""
    path = "actor_rollout_ref.actor.entropy_coeff"
    if plan.regularizer is None:
        return {"value": float(lookup(raw, path, 0.0)), "owner": path, "note": "loss = policy loss - value x H"}
    name, note = plan.regularizer.method.coefficient
    value = 0.0 if name is None else float(getattr(plan.regularizer.settings, name))
    return {"value": value, "owner": plan.regularizer.method.path, "note": note or "loss = policy loss - value x H"}


def _choice(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    settings = dataclasses.asdict(choice.settings)
    return {"name": choice.name, "path": choice.method.path, "settings": settings, "changed": changed(choice)}


def summary(plan: Plan, raw: dict[str, Any]) -> dict[str, Any]:
    """Base, transforms, loss, clip, regularizer, head, rollout, effective entropy coefficient, and what entropy is measured in."""
    actor = lookup(raw, "actor_rollout_ref.actor", {})
    return {
        "presets": sorted(plan.presets),
        "base": {"name": plan.base, "from": "verl" if plan.estimator is None else plan.estimator.method.origin},
        "estimator": _choice(plan.estimator),
        "transforms": [_choice(t) for t in plan.transforms],
        "policy_loss": {
            "name": plan.loss_mode,
            "from": "verl-entropy" if plan.loss else "verl",
            "aggregation": actor.get("loss_agg_mode"),
            "clip_ratio_low": actor.get("clip_ratio_low"),
            "clip_ratio_high": actor.get("clip_ratio_high"),
            "clip_ratio_c": actor.get("clip_ratio_c"),
            "settings": _choice(plan.loss),
        },
        "clip_controller": _choice(plan.clip),
        "regularizer": _choice(plan.regularizer),
        "head": _choice(plan.head),
        "rollout": _choice(plan.rollout),
        "entropy_coeff": effective_entropy_coeff(plan, raw),
        "entropy": {
            "unit": "nats",
            "of": "softmax(logits / temperature), whole vocabulary",
            "temperature": lookup(raw, "actor_rollout_ref.rollout.temperature", 1.0),
            "path": memory.path_of(raw, plan.entropy.log_probs, has_flash()),
            "log_probs": plan.entropy.log_probs,
            "dtype": memory.param_dtype(raw),
        },
        "state": plan.stateful,
        "diagnostics": dataclasses.asdict(plan.diagnostics) if plan.active else None,
    }
