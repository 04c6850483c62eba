# SPDX-License-Identifier: Apache-2.0
"""A list of outputs from one agent loop, where verl's worker takes one: a row per turn, as on V1.

verl's RayPPOTrainer asks for as many rows as it sent prompts, twice: it slices what the manager returns, and unites it with the
prompts' own columns. So what the manager returns is a ``DataProto`` that knows which prompt each row is of (``Episodes``), and the
union repeats the prompts' columns to fit. Rows that only fill up the last mini-batch are added, as V1 does; nothing reads them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto

from verl_entropy.hosts.common.trainer_keys import PAD_UID
from verl_entropy.hosts.verl_ray.rows import POSITION, SESSION

FILLER = -1
"""Number of the prompt of a row that fills up the batch."""
_session: ContextVar[int | None] = ContextVar("verl_entropy_session", default=None)
"""Number of the prompt whose episode this task plays; None in a validation."""


class Episodes(DataProto):
    """Rows of episodes, in the order of the prompts, with the number of its prompt in the column SESSION."""

    def slice(self, start=None, end=None, step=None):
        """The rows of the prompts from ``start`` to before ``end``; filling rows belong to the first ones."""
        session_R = self.non_tensor_batch[SESSION].astype(int)
        last = math.inf if end is None else end
        first = start or 0
        return _episodes(self, np.flatnonzero((session_R >= (first or FILLER)) & (session_R < last)))

    def origin(self) -> np.ndarray:
        """Of each row the number of its prompt, counted from the first one that is here; a filling row takes the first prompt's."""
        session_R = self.non_tensor_batch[SESSION].astype(int)
        real_R = session_R[session_R != FILLER]
        return np.where(session_R == FILLER, 0, session_R - real_R.min())


def _episodes(data: DataProto, rows: np.ndarray) -> Episodes:
    found = data.select_idxs(rows)
    return Episodes(batch=found.batch, non_tensor_batch=found.non_tensor_batch, meta_info=found.meta_info)


def _none() -> RuntimeError:
    return RuntimeError(
        "verl-entropy: the environment of an episode kept failing, and verl's RayPPOTrainer has no place for an episode without "
        "a row. The cause is in the log above. Mend the environment, raise data.env.episode_retries, or use trainer.use_v1=True "
        "(verl 0.9)."
    )


def multiple(config: Any, ranks: int) -> int:
    """Rows must be a multiple of this: whole mini-batches on every rank."""
    from verl.trainer.ppo.utils import need_critic

    size = ranks
    for part in (config.actor_rollout_ref.actor, *([config.critic] if need_critic(config) else [])):
        size = math.lcm(size, int(part.ppo_mini_batch_size) * int(config.actor_rollout_ref.rollout.n))
    return size


def filled(data: DataProto, size: int) -> DataProto:
    """With rows at the end that make it a multiple of ``size``: two tokens long, none of them trained."""
    missing = -len(data) % size
    if not missing:
        return data
    filler = data.select_idxs(np.zeros(missing, dtype=int))
    batch = {name: column.clone() for name, column in filler.batch.items()}
    width = batch["prompts"].shape[1]
    batch["response_mask"].zero_()
    batch["attention_mask"].zero_()
    batch["attention_mask"][:, width - 1 : width + 1] = 1
    if "rm_scores" in batch:
        batch["rm_scores"].zero_()
    objects = {name: column.copy() for name, column in filler.non_tensor_batch.items()}
    objects[SESSION] = np.full(missing, FILLER, dtype=object)
    objects[POSITION] = np.arange(missing).astype(object)
    if "multi_modal_inputs" in objects:
        objects["multi_modal_inputs"] = np.array([{} for _ in range(missing)], dtype=object)
    rows = DataProto.from_dict(tensors=batch, non_tensors=objects, meta_info=dict(data.meta_info))
    return DataProto.concat([data, rows])


def wrap(module: ModuleType) -> None:
    """Wrap the worker and the manager of ``verl.experimental.agent_loop.agent_loop``; V1 has a worker of its own, which takes lists."""
    worker_cls, manager_cls = module.AgentLoopWorker, module.AgentLoopManager
    original_run, original_output = worker_cls._run_agent_loop, worker_cls._agent_loop_postprocess
    original_batch, original_manager = worker_cls._postprocess, manager_cls.generate_sequences

    @functools.wraps(original_run)
    async def _run_agent_loop(self, *args, **kwargs):
        _session.set(kwargs.pop(SESSION, None))  # of this task; a loop may take no column that it does not know
        return await original_run(self, *args, **kwargs)

    @functools.wraps(original_output)
    async def _agent_loop_postprocess(self, output, *args, **kwargs):
        if not isinstance(output, list):
            return await original_output(self, output, *args, **kwargs)
        if not output:
            raise _none()
        if _session.get() is None:
            output = output[-1:]  # a validation counts episodes
        for position, one in enumerate(output if _session.get() is not None else ()):
            one.extra_fields.update({SESSION: _session.get(), POSITION: position})
        return list(await asyncio.gather(*(original_output(self, one, *args, **kwargs) for one in output)))

    @functools.wraps(original_batch)
    def _postprocess(self, inputs, input_non_tensor_batch=None, **kwargs):
        lists = [one if isinstance(one, list) else [one] for one in inputs]
        if input_non_tensor_batch:
            counts = [len(one) for one in lists]
            input_non_tensor_batch = {
                name: np.repeat(column, counts, axis=0) for name, column in input_non_tensor_batch.items() if name != SESSION
            }
        return original_batch(self, [one for some in lists for one in some], input_non_tensor_batch, **kwargs)

    def finished(self, prompts, data):
        number = len(prompts)
        prompts.non_tensor_batch.pop(SESSION, None)
        if len(data) == number:
            return data
        ranks = int(self.config.trainer.n_gpus_per_node) * int(self.config.trainer.nnodes)
        data = filled(data, multiple(self.config, ranks))
        return Episodes(batch=data.batch, non_tensor_batch=data.non_tensor_batch, meta_info=data.meta_info)

    @functools.wraps(original_manager)
    def generate_sequences(self, prompts, *args, **kwargs):
        if not prompts.meta_info.get("validate", False):
            prompts.non_tensor_batch[SESSION] = np.arange(len(prompts)).astype(object)
        data = original_manager(self, prompts, *args, **kwargs)
        if not inspect.isawaitable(data):
            return finished(self, prompts, data)

        async def later():
            return finished(self, prompts, await data)

        return later()

    worker_cls._run_agent_loop, worker_cls._agent_loop_postprocess = _run_agent_loop, _agent_loop_postprocess
    worker_cls._postprocess, manager_cls.generate_sequences = _postprocess, generate_sequences


def wrap_union(module: ModuleType) -> None:
    """Wrap ``DataProto.union`` of ``verl.protocol``: with the rows of episodes, the prompts' columns are repeated first."""
    original = module.DataProto.union

    @functools.wraps(original)
    def union(self, other):
        if not isinstance(other, Episodes) or len(self) == len(other) or isinstance(self, Episodes):
            return original(self, other)
        united = original(self.select_idxs(other.origin()), other)
        filler_R = other.non_tensor_batch[SESSION].astype(int) == FILLER
        uid_R = united.non_tensor_batch["uid"].copy()
        uid_R[filler_R] = [f"{PAD_UID}_{row}" for row in np.flatnonzero(filler_R)]
        united.non_tensor_batch["uid"] = uid_R
        return united

    module.DataProto.union = union


def kept(batch: DataProto) -> DataProto:
    """Without the rows that fill up the batch."""
    if SESSION not in batch.non_tensor_batch:
        return batch
    filler_R = batch.non_tensor_batch[SESSION].astype(int) == FILLER
    return batch.select_idxs(torch.as_tensor(~filler_R)) if filler_R.any() else batch
