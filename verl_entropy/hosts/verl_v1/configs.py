# SPDX-License-Identifier: Apache-2.0
"""verl's configuration dataclasses with our settings in them; ``driver.prepare`` puts them in place."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, PolicyLossConfig

from verl_entropy.config import plan, registry
from verl_entropy.config import settings as config
from verl_entropy.hosts.install import activate, hooks


def _plain(value: Any) -> Any:
    if isinstance(value, DictConfig):
        return OmegaConf.to_container(value, resolve=True)
    return value


_loss_side = [a.name for a in registry.ALGORITHMS if a.kind in ("loss", "clip", "regularizer")]
_loss_side = list(dict.fromkeys(_loss_side))
EntropyPolicyLossConfig = dataclasses.make_dataclass(
    "EntropyPolicyLossConfig",
    [("regularizer", Any, None), ("clip_controller", Any, None), *((name, Any, None) for name in _loss_side)],
    bases=(PolicyLossConfig,),
    namespace={"__doc__": "PolicyLossConfig plus ``regularizer`` and one section per loss and regulariser of ours."},
)
EntropyPolicyLossConfig.__module__ = __name__


@dataclass
class EntropyFSDPEngineConfig(FSDPEngineConfig):
    """FSDPEngineConfig plus the head and the choice of the log-prob pass."""

    seal: Any = None
    log_probs: str = "auto"
    vocab_centre: bool = False
    """The log-prob pass also gives sum_v p_v^2 (H + log p_v) (clip_v)."""
    nucleus: Any = None
    """The log-prob pass and the update also give the entropy of the nucleus: {top_p, crossing} (SIREN)."""

    sample: bool = False
    """The log-prob pass may be asked for hidden states and gradients of sampled tokens (diagnostics)."""

    def seal_settings(self) -> config.Seal | None:
        """The head's settings, or None without a head."""
        return None if self.seal is None else config.parse(config.Seal, _plain(self.seal), config.SEAL_PATH)


@dataclass
class EntropyFSDPActorConfig(FSDPActorConfig):
    """FSDPActorConfig plus the ``seal`` section; built in a training worker, it refuses to go on without our seams."""

    seal: Any = None
    trainer_active: bool = False
    """Written by our part of verl's trainer, in whose process advantages are computed."""

    def __post_init__(self):
        super().__post_init__()
        workers = sys.modules.get("verl.workers.engine_workers")
        if workers is not None:
            _check_worker(workers, self.strategy)

    def loss_plan(self) -> plan.Plan:
        """The loss side of the plan (regulariser, loss, head), checked."""
        section = {f.name: _plain(getattr(self.policy_loss, f.name)) for f in dataclasses.fields(self.policy_loss)}
        section = {k: v for k, v in section.items() if k in ("loss_mode", "regularizer", "clip_controller", *_loss_side)}
        return plan.read({"actor_rollout_ref": {"actor": {"policy_loss": _drop_none(section), "seal": _plain(self.seal)}}})


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
    if actor.get("_target_") != f"{__name__}.{EntropyFSDPActorConfig.__name__}":
        if activate.METHODS in told and activate.CHECKED not in told:
            raise RuntimeError(
                "verl-entropy: this run's configuration chooses something of verl-entropy, but its program never called "
                "verl.utils.config.validate_config, where that is checked and prepared, so it would train without it. Fix: start the "
                "run with `python -m verl.trainer.main_ppo`, or call validate_config in your program before Ray starts."
            )
        return
    if not actor.get("trainer_active", False):
        raise RuntimeError(
            "verl-entropy: the process of verl's trainer (the TaskRunner) did not say that the plugin is active there, so advantages "
            "would be computed without the chosen methods. Fix: set VERL_USE_EXTERNAL_PLUGINS=auto for every Ray worker, install "
            "verl-entropy on every node, and let verl start Ray, which hands the driver's variables on."
        )


def _check_worker(workers, strategy: str) -> None:
    from verl.workers.engine.base import EngineRegistry

    from verl_entropy.hosts.verl_v1.engine import EntropyEngineMixin
    from verl_entropy.hosts.verl_v1.loss import is_ours

    if not is_ours(workers.ppo_loss):
        raise RuntimeError(
            "verl-entropy: the loss of this training worker is not the one of the plugin, so regulariser, loss and head would "
            f"do nothing. {_environment()} Fix: set VERL_USE_EXTERNAL_PLUGINS=auto for every Ray worker, install verl-entropy on "
            "every node, and let verl start Ray, which hands the driver's variables on."
        )
    engine = EngineRegistry.get_engine_cls("language_model", strategy)
    if not issubclass(engine, EntropyEngineMixin):
        raise RuntimeError(
            f"verl-entropy: the training engine of this worker is {engine.__module__}.{engine.__qualname__}, not ours. "
            "Fix: unset VERL_ENGINE_VENDOR and VERL_ENGINE_DEVICE, or run on an NVIDIA, AMD or CPU platform of verl."
        )
