# SPDX-License-Identifier: Apache-2.0
"""verl-agent's RayPPOTrainer: rows are tagged in the rollout, advantages go through our chain, state is kept and saved.

``fit`` looks ``compute_advantage`` and ``compute_data_metrics`` up in its module: both are exchanged while it runs.
"""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.install.rebound import rebound
from verl_entropy.hosts.verl_agent import advantages, rows, settings

with contextlib.redirect_stderr(io.StringIO()):  # the plugin of verl's own route says there that it is not active here
    from verl_entropy.hosts.common import state


def tag_rows(collector: Any) -> None:
    """Make a TrajectoryCollector tag its rows while they are in order."""
    original = collector.gather_rollout_data

    @functools.wraps(original)
    def gather_rollout_data(*args, **kwargs):
        batch = original(*args, **kwargs)
        success = None
        if "success_rate" in kwargs["success"]:
            success = dict(zip(kwargs["traj_uid"].tolist(), kwargs["success"]["success_rate"].tolist(), strict=True))
        batch.non_tensor_batch.update(rows.tag(batch.non_tensor_batch["traj_uid"], success))
        return batch

    collector.gather_rollout_data = gather_rollout_data


class EntropyRayPPOTrainer(RayPPOTrainer):
    """The trainer of a run for which something of ours was chosen."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        actor = config.actor_rollout_ref.actor
        self._entropy_run = state.Run(settings.plan_of(actor))
        self._entropy_penalty = float(actor[settings.KEY].penalty)
        self._entropy_metrics: dict[str, float] = {}
        tag_rows(self.traj_collector)

    def init_workers(self):
        super().init_workers()
        self._watch_updates(self.actor_rollout_wg)

    def _watch_updates(self, group: Any) -> None:
        """The updates must show that our code ran in the workers."""
        original = group.update_actor

        @functools.wraps(original)
        def update_actor(batch):
            output = original(batch)
            if "verl_entropy/active" not in output.meta_info["metrics"]:
                raise RuntimeError(
                    "verl-entropy: the actor workers did not report verl_entropy/active, so the chosen settings did nothing there. "
                    "Install verl-entropy on every node, and start with python -m verl_entropy.verl_agent."
                )
            return output

        group.update_actor = update_actor

    def fit(self):
        with self._seams():
            return super().fit()

    def _seams(self):
        compute_advantage, compute_data_metrics = ray_trainer.compute_advantage, ray_trainer.compute_data_metrics

        @functools.wraps(compute_advantage)
        def with_transforms(data, **kwargs):
            where = (self._entropy_run, int(self.global_steps), int(self.total_training_steps), self._entropy_penalty)
            data, self._entropy_metrics = advantages.compute(compute_advantage, *where, data, kwargs)
            return data

        @functools.wraps(compute_data_metrics)
        def with_metrics(*args, **kwargs):
            return {**compute_data_metrics(*args, **kwargs), **self._entropy_metrics}

        return rebound(ray_trainer, compute_advantage=with_transforms, compute_data_metrics=with_metrics)

    def _save_checkpoint(self):
        folder = state.step_folder(self.config.trainer.default_local_dir, self.global_steps)
        state.save(self._entropy_run, folder, int(self.global_steps))
        super()._save_checkpoint()

    def _load_checkpoint(self):
        try:
            folder = state.resume_folder(OmegaConf.to_container(self.config.trainer, resolve=True))
            if folder is not None:
                state.load(self._entropy_run, folder)
        except ConfigError as error:
            raise SystemExit(f"[verl-entropy] configuration error: {error}") from None
        return super()._load_checkpoint()
