# SPDX-License-Identifier: Apache-2.0
"""verl-agent's TaskRunner with our trainer and worker classes in place of its own, in its own process."""

from __future__ import annotations

from verl.trainer import main_ppo

PlainTaskRunner = main_ppo.TaskRunner.__ray_actor_class__
"""The class under Ray's decorator."""


class EntropyTaskRunner(PlainTaskRunner):
    """``run`` looks the trainer up in main_ppo and the workers in fsdp_workers; both names are set first."""

    def run(self, config):
        from verl.workers import fsdp_workers

        from verl_entropy.hosts.verl_agent import trainer, worker

        main_ppo.RayPPOTrainer = trainer.EntropyRayPPOTrainer
        fsdp_workers.ActorRolloutRefWorker = worker.EntropyActorRolloutRefWorker
        fsdp_workers.AsyncActorRolloutRefWorker = worker.EntropyAsyncActorRolloutRefWorker
        return super().run(config)
