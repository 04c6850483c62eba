# SPDX-License-Identifier: Apache-2.0
"""verl-agent's FSDP actor workers: our actor, the entropy of the old-log-prob pass kept for the driver, the head's checkpoint.

Ray pickles these classes by reference, so a worker process imports this package by itself; environment workers never do.
"""

from __future__ import annotations

import torch
from verl import DataProto
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_torch_device
from verl.workers.fsdp_workers import ActorRolloutRefWorker, AsyncActorRolloutRefWorker

from verl_entropy.hosts.verl_agent import settings
from verl_entropy.hosts.verl_agent.actor import EntropyActor
from verl_entropy.hosts.verl_agent.head import OutsideHead
from verl_entropy.hosts.verl_agent.ranks import average


class EntropyWorkerMixin:
    """Mixed into verl-agent's actor workers; without a plan, or as the reference policy, everything defers to them."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        self._plan = settings.plan_of(self.config.actor) if self._is_actor else None
        if self._plan is None:
            return
        arguments = {"config": self.config.actor, "actor_module": self.actor_module_fsdp, "actor_optimizer": self.actor_optimizer}
        self.actor = EntropyActor(**arguments, plan=self._plan, head=self._head())

    def _head(self) -> OutsideHead | None:
        if self._plan.head is None:
            return None
        size = self.actor_model_config.get_text_config().hidden_size
        actor, device = self.config.actor, get_torch_device().current_device()
        return OutsideHead(size, self._plan.head, actor.optim, device, average, max_norm=float(actor.grad_clip))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, data: DataProto):
        output = super().compute_log_prob(data)
        if self._plan is not None:
            for name, values in self.actor.outputs.items():
                output.batch[name] = values.to("cpu")
            self.actor.outputs = {}
        return output

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, local_path, hdfs_path=None, global_step=0, max_ckpt_to_keep=None):
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        if self._plan is not None and self.actor.head is not None:
            if torch.distributed.get_rank() == 0:
                self.actor.head.save(local_path)
            torch.distributed.barrier()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, local_path, hdfs_path=None, del_local_after_load=False):
        if self._plan is not None and self.actor.head is not None:
            self.actor.head.load(local_path)
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)


class EntropyActorRolloutRefWorker(EntropyWorkerMixin, ActorRolloutRefWorker):
    """For ``rollout.mode=sync``."""


class EntropyAsyncActorRolloutRefWorker(EntropyWorkerMixin, AsyncActorRolloutRefWorker):
    """For ``rollout.mode=async``."""
