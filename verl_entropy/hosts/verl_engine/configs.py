# SPDX-License-Identifier: Apache-2.0
"""verl's configuration dataclasses with our settings in them; ``driver.prepare`` puts them in place."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.workers import config as of_verl
from verl.workers.config import ActorConfig, FSDPEngineConfig, PolicyLossConfig

from verl_entropy.config import engines, plan
from verl_entropy.config import settings as config
from verl_entropy.hosts.install import activate, compat, hooks
from verl_entropy.methods import registry

_SECTIONS = list(dict.fromkeys(m.name for kind in ("loss", "clip", "regularizer") for m in registry.methods(kind)))
EntropyPolicyLossConfig = dataclasses.make_dataclass(
    "EntropyPolicyLossConfig",
    [
        ("regularizer", Any, None),
        ("clip_controller", Any, None),
        ("sections", Any, None),
        *((name, Any, None) for name in _SECTIONS),
    ],
    bases=(PolicyLossConfig,),
    namespace={
        "__doc__": "PolicyLossConfig plus ``regularizer``, ``clip_controller`` and one section per method; ``sections`` holds those of "
        "methods that are named as pkg.mod:NAME."
    },
)
EntropyPolicyLossConfig.__module__ = __name__


@dataclass
class EntropyFSDPEngineConfig(FSDPEngineConfig):
    """FSDPEngineConfig plus the head, the methods that read the logits, and the choice of the log-prob pass."""

    head: Any = None
    """{"word": how the configuration names it, "settings": {...}}, or None."""
    log_probs: str = "auto"
    logits: Any = None
    """The methods that compute something from the logits: a list of {"kind", "word", "settings"}, or None."""
    sample: bool = False
    """The log-prob pass may be asked for hidden states and gradients of sampled tokens (diagnostics)."""

    def chosen_head(self) -> plan.Choice | None:
        """The head and its settings, or None without one."""
        return None if self.head is None else _choice("head", _plain(self.head))

    def logits_methods(self) -> list[plan.Choice]:
        """The methods that compute something from the logits."""
        return [_choice(entry["kind"], entry) for entry in _plain(self.logits) or ()]


def _plain(value: Any) -> Any:
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True)
    return value


def _choice(kind: str, entry: Any) -> plan.Choice:
    method = registry.get(kind, entry["word"])
    return plan.Choice(method, config.parse(method.settings, entry["settings"], method.path))


@dataclass
class OurActor:
    """Mixed into the actor configuration of an engine of verl: the head; built in a training worker, it refuses to go on without our
    seams."""

    seal: Any = None
    head: Any = None
    """Name or pkg.mod:NAME of a head."""
    head_section: Any = None
    """Settings of a head other than seal, by its name."""
    trainer_active: bool = False
    """Written by our part of verl's trainer, in whose process advantages are computed."""

    def __post_init__(self):
        super().__post_init__()
        workers = sys.modules.get("verl.workers.engine_workers")
        if workers is not None:
            _check_worker(workers, self.strategy)

    def loss_plan(self) -> plan.Plan:
        """The loss side of the plan (regularizer, loss, head), checked."""
        section = {f.name: _plain(getattr(self.policy_loss, f.name)) for f in dataclasses.fields(self.policy_loss)}
        kept = ("loss_mode", "regularizer", "clip_controller", "sections", *_SECTIONS)
        section = {k: v for k, v in section.items() if k in kept}
        head = {"seal": _plain(self.seal), "head": self.head, "head_section": _plain(self.head_section)}
        return plan.read({"actor_rollout_ref": {"actor": {"policy_loss": _drop_none(section), **_drop_none(head)}}})


_ACTORS = {f"Entropy{name}": cls for name, cls in vars(of_verl).items() if isinstance(cls, type) and issubclass(cls, ActorConfig)}
# FSDPActorConfig, McoreActorConfig and what else this verl has: the names that ``driver`` writes
for _name, _cls in _ACTORS.items():
    globals()[_name] = dataclass(
        type(_name, (OurActor, _cls), {"__module__": __name__, "__doc__": f"{_cls.__name__} with ours."})
    )


def _drop_none(section: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if v is not None}


def _environment() -> str:
    """What decides it in this process."""
    names = (hooks.CHOSEN, "VERL_USE_EXTERNAL_PLUGINS", "VERL_USE_EXTERNAL_MODULES")
    return "Here " + ", ".join(f"{name}={os.environ.get(name, 'unset')}" for name in names) + "."


def check_trainer(actor: DictConfig) -> None:
    """RuntimeError in a training worker whose driver or trainer did not do its part of a run that has chosen methods.

    The driver puts our actor configuration in the place of verl's, and the trainer writes ``trainer_active`` into it.
    """
    told = os.environ.get(hooks.CHOSEN, "").split(",")
    if not str(actor.get("_target_")).startswith(f"{__name__}.Entropy"):
        if activate.METHODS in told and activate.CHECKED not in told and not compat.before(0, 9):
            raise RuntimeError(
                "verl-entropy: this run's configuration chooses something of verl-entropy, but its program never called "
                "verl.utils.config.validate_config, where that is checked and prepared, so it would train without it. Fix: start the "
                "run with `python -m verl.trainer.main_ppo`, or call validate_config in your program before Ray starts."
            )
        return
    if not actor.get("trainer_active", False):
        raise RuntimeError(
            "verl-entropy: the process of verl's trainer (the TaskRunner) did not say that the plugin is active there, so advantages "
            f"would be computed without the chosen methods. Fix: set {compat.loading()} for every Ray worker, install "
            "verl-entropy on every node, and let verl start Ray, which hands the driver's variables on."
        )


def _check_worker(workers, strategy: str) -> None:
    from verl.workers.engine.base import EngineRegistry

    from verl_entropy.hosts.verl_engine.engine import EntropyEngineMixin
    from verl_entropy.hosts.verl_engine.loss import is_ours

    if not is_ours(workers.ppo_loss):
        raise RuntimeError(
            "verl-entropy: the loss of this training worker is not the one of the plugin, so regulariser, loss and head would "
            f"do nothing. {_environment()} Fix: set {compat.loading()} for every Ray worker, install verl-entropy on "
            "every node, and let verl start Ray, which hands the driver's variables on."
        )
    if not engines.adapted(strategy, os.environ.get("VERL_ENGINE_VENDOR")):
        return
    engine = EngineRegistry.get_engine_cls("language_model", strategy)
    if not issubclass(engine, EntropyEngineMixin):
        raise RuntimeError(
            f"verl-entropy: the training engine of this worker is {engine.__module__}.{engine.__qualname__}, not ours. "
            "Fix: unset VERL_ENGINE_VENDOR and VERL_ENGINE_DEVICE, or run on an NVIDIA, AMD or CPU platform of verl."
        )
