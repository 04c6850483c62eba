# SPDX-License-Identifier: Apache-2.0
"""Advantage side, in the process of verl's V1 trainer (sync, colocate_async and separate_async share this code).

``PPOTrainer._compute_advantage`` reads a fixed list of fields and calls the module global
``compute_advantage_for_multi_trajectories``; both are wrapped: the first brings the trainer, batch and metrics, the second
the padded data. The base estimator runs unchanged in between, then the transforms. State is kept beside verl's checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from omegaconf import open_dict

from verl_entropy.agent.branching import ROLLOUT
from verl_entropy.batch.turns import Turns, build_turns
from verl_entropy.config.plan import Plan
from verl_entropy.hosts.common import advantage_side, agent_rows, context, state
from verl_entropy.hosts.common.diagnostics_side import SAMPLE_FIELDS
from verl_entropy.hosts.common.trainer_keys import ACTOR_MASKS, NUM_SAMPLED, PAD_UID, PREFIX, WORKER_INFO
from verl_entropy.hosts.install import patched
from verl_entropy.hosts.verl_engine import checkpoints, driver
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.upstream import queue
from verl_entropy.upstream.rows import MARK, pad_rows, settle


@dataclass
class Call:
    """One call of ``_compute_advantage``."""

    trainer: Any
    batch: Any
    metrics: dict
    run: state.Run
    ride: queue.Ride
    """What we read and write in the queue, with verl's own read and write."""
    info: dict[str, Any]


TRAINERS_OWN = ("log_probs", "rm_scores", "rollout_log_probs", "token_level_rewards")
"""Columns of tensors that verl's trainer reads and no worker: the log-prob pass's raw output, scores, the sampler's log-probs."""

_call: ContextVar[Call | None] = ContextVar("verl_entropy_call", default=None)


def run_of(trainer: Any) -> state.Run:
    """Plan and state of this trainer, read on first use."""
    if "_verl_entropy_run" not in trainer.__dict__:
        trainer._verl_entropy_run = driver.run_of(trainer.config)
    return trainer._verl_entropy_run


@contextlib.contextmanager
def _timed(metrics: dict, name: str) -> Iterator[None]:
    """Add the seconds of the block to a metric of the step; ``queue`` is what does not travel with verl's own calls."""
    key, start = f"verl_entropy/timing_s/{name}", time.perf_counter()
    try:
        yield
    finally:
        metrics[key] = metrics.get(key, 0.0) + time.perf_counter() - start


def _nested(padded_RT: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A padded column of the response layout as a nested one."""
    inside_RT = torch.arange(padded_RT.shape[1]) < offsets.diff().unsqueeze(1)
    return torch.nested.nested_tensor_from_jagged(padded_RT[inside_RT], offsets)


def rows_to_turns(data: Any, rows: Any, keys: list[str], threshold: float) -> tuple[Turns, list[dict]]:
    """The turns of a batch of verl, and the rows' extra fields."""
    width = data.batch["response_mask"].shape[1]
    sessions, positions = zip(*((k.rsplit("_", 1)[0], int(k.rsplit("_", 1)[1])) for k in keys), strict=True)
    uid_R = data.non_tensor_batch["uid"]
    padding_R = np.array([str(u).startswith(PAD_UID) for u in uid_R])
    extra = [dict(row) for row in rows["extra_fields"]]
    score_R = data.batch["token_level_rewards"].float().sum(-1)
    # before a KL penalty, whose estimate can be of either sign
    earned_R = data.batch["token_level_scores"].float().sum(-1)

    turns = build_turns(
        data.batch["response_mask"].bool(),
        group_R=list(uid_R),
        trajectory_R=list(sessions),
        position_R=list(positions),
        padding_R=torch.as_tensor(padding_R),
        score_R=score_R,
        turn_fields=agent_rows.turn_fields(extra, padding_R),
        success_R=agent_rows.success(extra, earned_R, threshold),
        spans_mask_RT=pad_rows(rows["response_mask"], width).bool(),
    )
    return turns, extra


def _fields(run: state.Run, step: int) -> list[str]:
    """What the advantage phase reads beyond verl."""
    fields = [
        "extra_fields",
        "response_mask",
        "entropy",
        *(PREFIX + name for name in advantage_side.logits_outputs(run.plan.choices)),
    ]
    return fields + (run.diagnostics.fields(step) if run.diagnostics is not None else [])


def _fetch(call: Call, has_entropy: bool) -> Any:
    """What was to be read with verl's read; a trainer that reads otherwise makes it a read of its own."""
    rows, plan = call.ride.rows, call.run.plan
    if rows is None:
        import transfer_queue as tq

        rows = tq.kv_batch_get(keys=call.ride.keys, partition_id=call.batch.partition_id, select_fields=call.ride.read)
    if not has_entropy and "entropy" not in rows.keys() and "entropy" in plan.needs:
        users = [c.name for c in plan.choices if "entropy" in c.method.needs]
        raise RuntimeError(
            f"verl-entropy: {', '.join(users)} needs the entropy of the old-log-prob pass, and this batch has none. "
            "Set algorithm.rollout_correction.bypass_mode=False."
        )
    return rows


def _after_base(original, call: Call, data, batch_keys, args, kwargs):
    """Turns, then base estimator and transforms, then their metrics; each with its own time."""
    # patches/verl-0.9.1: verl has fetched it.
    has_entropy = "entropy_and_row_ids" in patched.features() and "entropy" in data.batch.keys()
    with _timed(call.metrics, "queue"):
        rows = _fetch(call, has_entropy)
    with _timed(call.metrics, "turns"):
        ctx = _turns_context(call, data, rows, batch_keys, has_entropy)
    with _timed(call.metrics, "advantages"):
        data = _advantages(original, call, ctx, data, rows, batch_keys, args, kwargs)
    if call.run.diagnostics is not None:
        call.metrics.update(call.run.diagnostics.step(ctx, rows, call.trainer.tokenizer))
    return data


def _turns_context(call: Call, data, rows: Any, batch_keys, has_entropy: bool) -> AdvantageContext:
    """What every method starts from: the batch's rows as turns, with the outputs of the log-prob pass."""
    plan = call.run.plan
    threshold = plan.success_threshold
    turns, extra = rows_to_turns(data, rows, list(batch_keys), threshold)
    mask_RT = data.batch["response_mask"].bool()
    entropy_RT = data.batch["entropy"].float() if has_entropy else None
    if "entropy" in rows.keys():
        entropy_RT = pad_rows(rows["entropy"], mask_RT.shape[1]).float()
    old_log_probs = data.batch["old_log_probs"].float() if "old_log_probs" in data.batch.keys() else None
    ctx = AdvantageContext(
        plan=plan,
        step=int(call.trainer.global_steps),
        total_steps=int(call.trainer.total_training_steps),
        turns=turns,
        mask_RT=mask_RT,
        entropy_RT=entropy_RT,
        old_log_probs_RT=old_log_probs,
        fields={"extra_fields": extra, "keys": list(batch_keys)},
    )
    ctx.fields.update(_extra_outputs(rows, plan, mask_RT.shape[1]))
    if "rollout_log_probs" in data.batch.keys():
        ctx.fields["rollout_log_probs"] = data.batch["rollout_log_probs"]
    call.metrics.update(agent_rows.ending_metrics(extra, list(batch_keys)))
    call.metrics.update(_rollout_metrics(plan, turns, extra))
    return ctx


def _rollout_metrics(plan: Plan, turns: Turns, extra_fields: list[dict]) -> dict[str, float]:
    """Response tokens that were generated for this batch's episodes, those that a leaf took over, and the share of cached prompts.

    RuntimeError where a rollout method is chosen and no turn was sampled under it.
    """
    records = [turn for row in dict.fromkeys(turns.row_K.tolist()) for turn in extra_fields[row].get("turns") or ()]
    if plan.rollout is not None and not any("origin" in turn for turn in records):
        raise RuntimeError(
            f"verl-entropy: no turn of this batch was sampled under {plan.rollout.name}, so it would do nothing. Its rows must come from "
            "stepwise_env or span_env (rollout.agent.default_agent_loop, or the data set's column agent_name)."
        )
    if len(records) != turns.num_turns:  # another agent loop
        return {}
    copied_K = torch.tensor([bool(turn.get("copied")) for turn in records], dtype=torch.bool)
    found = {"reused_tokens": turns.lengths_K[copied_K].sum(), "generated_tokens": turns.lengths_K[~copied_K].sum()}
    cached = [t for t in records if t.get("cached_tokens") is not None and not t["copied"]]
    for name, asked in (("cached_share", cached), ("branch_cached_share", [t for t in cached if t.get("branched")])):
        if asked:
            found[name] = sum(t["cached_tokens"] for t in asked) / sum(t["prompt_tokens"] for t in asked)
    return {f"verl_entropy/rollout/{name}": float(value) for name, value in found.items()}


def _advantages(original, call: Call, ctx: AdvantageContext, data, rows: Any, batch_keys, args, kwargs):
    """Controllers, base estimator and transforms; fills the call's columns and worker info."""
    columns: dict[str, torch.Tensor] = {}
    call.run.advance(ctx)
    kwargs["adv_estimator"] = ctx.plan.base
    with context.use_advantage(ctx):
        data = original(data, batch_keys, *args, **kwargs)
    advantages = advantage_side.settle_equal_returns(ctx, data.batch["advantages"])
    ctx.fields["base_advantages"] = advantages  # of the diagnostics: what the transforms started from
    advantages, mask = advantage_side.apply_transforms(ctx, advantages)
    if mask is not None:
        # The actor's own: verl's masks stay, for the critic learns the value of every token, and the head reads all of them.
        thinned = data.batch["response_mask"] * mask
        columns[ACTOR_MASKS["response_mask"]] = thinned
        # verl's rejection leaves this one as it is: what it rejects stays in the denominator
        columns[ACTOR_MASKS["loss_mask"]] = pad_rows(rows["response_mask"], mask.shape[1]) * mask
        ctx.mask_RT = thinned.bool()
    data.batch["advantages"] = ctx.advantages_RT = advantages
    columns.update(advantage_side.worker_columns(ctx))
    if call.run.diagnostics is not None:
        columns.update(call.run.diagnostics.worker_columns(ctx))
    offsets = rows["response_mask"].offsets()
    call.ride.write = {name: _nested(c, offsets) if c.dim() == 2 else c for name, c in columns.items()}
    ctx.info.update(advantage_side.batch_info(ctx))
    call.info.update(ctx.info)
    call.metrics.update(ctx.metrics)
    return data


def _extra_outputs(rows: Any, plan: Plan, width: int) -> dict[str, torch.Tensor]:
    """What our log-prob pass computed beyond verl's, for the response tokens, padded."""
    from verl.workers.utils.padding import response_from_nested

    found = {}
    for name in advantage_side.logits_outputs(plan.choices):
        key = PREFIX + name
        if key not in rows.keys():
            raise RuntimeError(
                f"verl-entropy: the log-prob pass gave no {key}; the training engine is not ours. Check `verl-entropy doctor`."
            )
        found[name] = pad_rows(response_from_nested(rows[key], rows["response_mask"]), width)
    return found


def _for_workers(trainer: Any, batch: Any, *, sample: bool = False) -> Any:
    """The batch with the columns that a training worker can read: tensors, and the inputs of images.

    A column of Python objects (the data set's fields, ``extra_fields``, timings) costs a worker far more than one of tokens: an
    object per row is unpacked, wrapped, copied to the device and sliced into micro-batches, in every phase that gets the batch.
    The queue knows which columns these are, whatever the data set calls them. What only the trainer reads stays behind too.
    """
    import transfer_queue as tq

    settle()
    meta = tq.get_client().kv_retrieve_meta(keys=batch.keys[:1], partition_id=batch.partition_id)
    left = {*TRAINERS_OWN, *(() if sample else SAMPLE_FIELDS), *(() if trainer.use_critic else ("returns",))}
    inputs = {"multi_modal_inputs"} if trainer.processor is not None else set()
    tensors = {name for name, schema in meta.field_schema.items() if not schema["is_non_tensor"]}
    batch.fields = sorted((tensors | inputs.intersection(meta.field_schema)) - left)
    batch.extra_info[MARK] = True
    return batch


def _put_columns(call: Call, batch: Any) -> Any:
    """Write our columns for the training workers into the queue, if they did not go with verl's."""
    columns = call.ride.write
    if call.ride.written or not columns:
        return batch
    import transfer_queue as tq
    from tensordict import TensorDict

    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(columns, batch_size=len(batch)))


@contextlib.contextmanager
def _clipped(group: Any, side: Any) -> Iterator[None]:
    """The diagnostics take what the update reports of single tokens, before verl makes means of the metrics."""
    from verl.utils import tensordict_utils as tu

    original = group.update_actor

    def update_actor(batch):
        output = original(batch)
        if side is not None:
            side.take_clipped(tu.get(output, "metrics"))
        return output

    group.update_actor = update_actor
    try:
        yield
    finally:
        group.update_actor = original


def _check_active(run: state.Run, metrics: dict) -> None:
    """The first update must show that our code ran in the training workers."""
    if run.plan.active and "verl_entropy/active" not in metrics:
        raise RuntimeError(
            "verl-entropy: the training workers did not report verl_entropy/active, so the chosen settings did nothing there. "
            "Install verl-entropy on every node and set VERL_USE_EXTERNAL_PLUGINS=auto."
        )


def _tell(run: state.Run, trainer: Any, batch: Any) -> None:
    """Send the rollout method's state along with the prompts to be sampled; agent loops sample plainly where it is missing."""
    from verl.utils import tensordict_utils as tu

    chosen = run.plan.rollout
    if chosen is not None:
        own = run.methods.get(chosen.name)
        word = {"n": int(trainer.config.actor_rollout_ref.rollout.n), "state": {} if own is None else own.state_dict()}
        tu.assign_non_tensor_stack(batch, ROLLOUT, [json.dumps(word)] * len(batch))  # a column of its own outlives a restart


def wrap(module: ModuleType) -> None:
    """Wrap the seams of ``verl.trainer.ppo.v1.trainer_base``."""
    trainer_cls = module.PPOTrainer
    original_global = module.compute_advantage_for_multi_trajectories
    original_advantage = trainer_cls._compute_advantage
    original_update = trainer_cls._update_actor
    original_init, original_submit = trainer_cls.__init__, trainer_cls._submit_batch_to_rollout

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        actor = self.config.actor_rollout_ref.actor
        if run_of(self).plan.active and driver.in_workers(self.config):
            with open_dict(actor):
                actor.trainer_active = True  # the training workers refuse to start without it

    @functools.wraps(original_global)
    def compute_advantage_for_multi_trajectories(data, batch_keys, *args, **kwargs):
        call = _call.get()
        if call is None:
            return original_global(data, batch_keys, *args, **kwargs)
        return _after_base(original_global, call, data, batch_keys, args, kwargs)

    @functools.wraps(original_advantage)
    def _compute_advantage(self, batch, metrics):
        run = run_of(self)
        if not run.plan.active:
            return original_advantage(self, batch, metrics)
        ride = queue.Ride(list(batch.keys), _fields(run, int(self.global_steps)))
        call = Call(self, batch, metrics, run, ride, {})
        token = _call.set(call)
        try:
            with queue.riding(ride):
                batch = original_advantage(self, batch, metrics)
        finally:
            _call.reset(token)
        with _timed(metrics, "queue"):
            batch = _for_workers(self, _put_columns(call, batch))
        batch.extra_info[WORKER_INFO] = call.info
        return batch

    @functools.wraps(original_update)
    def _update_actor(self, batch, metrics):
        run = run_of(self)
        with _clipped(self.actor_rollout_wg, run.diagnostics):
            batch = original_update(self, batch, metrics)
        if run.plan.active:
            prefix = "actor/verl_entropy/"
            for key in [k for k in metrics if k.startswith(prefix)]:
                metrics[key.removeprefix("actor/")] = metrics.pop(key)
            if driver.in_workers(self.config):
                _check_active(run, metrics)
        return batch

    @functools.wraps(original_submit)
    def _submit_batch_to_rollout(self, batch):
        _tell(run_of(self), self, batch)
        return original_submit(self, batch)

    trainer_cls.__init__ = __init__
    trainer_cls._submit_batch_to_rollout = _submit_batch_to_rollout
    module.compute_advantage_for_multi_trajectories = compute_advantage_for_multi_trajectories
    trainer_cls._compute_advantage = _compute_advantage
    trainer_cls._update_actor = _update_actor
    checkpoints.wrap(trainer_cls, run_of)
    _wrap_diagnostics(trainer_cls)


def _wrap_diagnostics(trainer_cls: type) -> None:
    """The diagnostics' own seams: before the log-prob pass, after the updates, and where metrics are complete."""
    original_log_prob, original_step = trainer_cls._compute_old_log_prob, trainer_cls.step
    original_metrics, original_validate = trainer_cls._compute_metrics, trainer_cls._validate

    @functools.wraps(original_log_prob)
    def _compute_old_log_prob(self, batch, metrics):
        run = run_of(self)
        if not run.plan.active:
            return original_log_prob(self, batch, metrics)
        with _timed(metrics, "queue"):
            if run.diagnostics is not None:
                batch = run.diagnostics.put_sample(batch, int(self.global_steps))
            batch = _for_workers(self, batch, sample=True)
        batch = original_log_prob(self, batch, metrics)
        batch.extra_info.pop(NUM_SAMPLED, None)
        with _timed(metrics, "queue"):
            return _for_workers(self, batch)

    @functools.wraps(original_step)
    def step(self, metrics, timing_raw):
        batch = original_step(self, metrics, timing_raw)
        side = run_of(self).diagnostics
        if side is not None:
            side.act(self, metrics)
        return batch

    @functools.wraps(original_metrics)
    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        original_metrics(self, batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        side = run_of(self).diagnostics
        if side is not None:
            side.finish(int(global_steps), metrics)

    @functools.wraps(original_validate)
    def _validate(self):
        found = original_validate(self)
        side = run_of(self).diagnostics
        if side is not None and int(self.global_steps) == 0:  # later validations are part of their step's metrics
            side.write(0, found)
        return found

    trainer_cls._compute_old_log_prob, trainer_cls.step = _compute_old_log_prob, step
    trainer_cls._compute_metrics, trainer_cls._validate = _compute_metrics, _validate
