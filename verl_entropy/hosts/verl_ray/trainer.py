# SPDX-License-Identifier: Apache-2.0
"""verl's RayPPOTrainer: entropy kept with the old log-probs, advantages through our chain, state saved, metrics and run file.

``fit`` is one long function, so it is met where it calls: the methods of the trainer, the module global ``compute_advantage``, the
worker groups, and ``Tracking.log``, which gets the complete metrics of a step. A trainer of yours over RayPPOTrainer with a ``fit``
of its own is served as long as it calls these.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

import torch
from omegaconf import open_dict
from verl.utils import tensordict_utils as tu

from verl_entropy.hosts.common import advantage_side, agent_rows, context, state
from verl_entropy.hosts.common.trainer_keys import (
    ACTOR_MASKS,
    NUM_SAMPLED,
    PREFIX,
    SAMPLE_CODE,
    SAMPLE_LEAD,
    SAMPLED,
    WORKER_INFO,
)
from verl_entropy.hosts.install import compat
from verl_entropy.hosts.verl_engine import checkpoints, driver
from verl_entropy.hosts.verl_ray import layout, loops, rows
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.upstream.rows import pad_rows

ENTROPY = "entropy"
"""Column with the entropy of the old-log-prob pass, which verl itself drops."""
_latest: weakref.ref[Any] | None = None
"""The trainer of this process: ``compute_advantage`` and ``Tracking.log`` are not told which calls them."""


class Stopped(Exception):
    """The diagnostics end the training after this step."""


def run_of(trainer: Any) -> state.Run:
    """Plan and state of this trainer, read on first use."""
    if "_verl_entropy_run" not in trainer.__dict__:
        trainer._verl_entropy_run = driver.run_of(trainer.config)
        trainer._verl_entropy_metrics, trainer._verl_entropy_outputs = {}, {}
        trainer._verl_entropy_stop = trainer._verl_entropy_fits = False
    return trainer._verl_entropy_run


def _active() -> Any:
    """The trainer of this process if anything of ours was chosen for it, else None."""
    trainer = None if _latest is None else _latest()
    return trainer if trainer is not None and run_of(trainer).plan.active else None


# ----------------------------------------------------------------------------- worker groups


def _wrap_groups(trainer: Any) -> None:
    """The actor's and the reference's calls carry nested columns; the log-prob pass gives back what the methods read of the logits."""
    actor = trainer.actor_rollout_wg
    groups = [(actor, "compute_log_prob"), (actor, "update_actor")]
    if trainer.use_reference_policy and not trainer.ref_in_actor:
        groups.append((trainer.ref_policy_wg, "compute_ref_log_prob"))
    for group, name in groups:
        setattr(group, name, _sends(trainer, name, getattr(group, name)))


def _sends(trainer: Any, name: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(data, *args, **kwargs):
        if name == "update_actor" and WORKER_INFO not in data.keys():
            raise RuntimeError(
                "verl-entropy: the actor is updated with a batch whose advantages did not go through "
                "verl.trainer.ppo.ray_trainer.compute_advantage, so the chosen methods did nothing. Call it in your trainer."
            )
        sent = layout.for_workers(data)
        if name == "update_actor" and "grad_entropy" in run_of(trainer).plan.needs:  # 0.7 reads entropy_coeff alone
            tu.assign_non_tensor(sent, calculate_entropy=True)
        output = original(sent, *args, **kwargs)
        if name == "update_actor" and run_of(trainer).diagnostics is not None:
            run_of(trainer).diagnostics.take_clipped(tu.get(output, "metrics"))
        if name == "compute_log_prob":
            trainer._verl_entropy_outputs = _outputs(output, sent, data["responses"].shape[1])
        return output

    return call


def _outputs(output: Any, sent: Any, width: int) -> dict[str, Any]:
    """What our log-prob pass computed beyond verl's: response columns, padded, and the sampled trajectories as they are."""
    from verl.workers.utils.padding import no_padding_2_padding

    found = {name: output[name] for name in output.keys() if name.startswith(PREFIX)}
    sampled = {SAMPLED: found.pop(SAMPLED)} if SAMPLED in found else {}
    columns = {name: no_padding_2_padding(values, sent) for name, values in found.items()}
    assert all(column.shape[1] == width for column in columns.values())
    return {**columns, **sampled}


# ----------------------------------------------------------------------------- the old-log-prob pass


def _old_log_prob(original: Any, trainer: Any, batch: Any) -> Any:
    """verl's pass, on a batch in which the diagnostics' sample is marked; its entropy stays as a column."""
    run, width = run_of(trainer), batch.batch["response_mask"].shape[1]
    names: list[str] = []
    trainer._verl_entropy_outputs = {}
    if run.diagnostics is not None:
        mask = layout.nested(batch.batch["response_mask"], layout.lengths(batch.batch)[1])
        sample = run.diagnostics.sample(int(trainer.global_steps), mask, rows.keys(batch), _padding(batch))
        if sample is not None:
            code, lead_R = sample
            batch.batch[SAMPLE_CODE], batch.batch[SAMPLE_LEAD] = pad_rows(code, width), lead_R
            names = [SAMPLE_CODE, SAMPLE_LEAD]
            batch.meta_info[NUM_SAMPLED] = int(lead_R.max())
    try:
        found = original(trainer, batch)
    finally:
        batch.meta_info.pop(NUM_SAMPLED, None)
        for name in names:
            del batch.batch[name]
    old = found[0] if isinstance(found, tuple) else found
    old.batch[ENTROPY] = old.batch["entropys"]
    old.batch[rows.SPANS] = batch.batch["response_mask"].clone()
    return found


def _padding(batch: Any) -> list[bool]:
    return rows.padding(batch).tolist()


# ----------------------------------------------------------------------------- advantages


def _context(trainer: Any, data: Any, keys_R: list[str], extra: list[dict[str, Any]]) -> AdvantageContext:
    run, outputs = run_of(trainer), trainer._verl_entropy_outputs
    plan, batch = run.plan, data.batch
    users = [c.name for c in plan.choices if "entropy" in c.method.needs]
    if users and ENTROPY not in batch.keys():
        raise RuntimeError(
            f"verl-entropy: {', '.join(users)} needs the entropy of the old-log-prob pass, and this batch has none. "
            "Set algorithm.rollout_correction.bypass_mode=False."
        )
    fields: dict[str, Any] = {"extra_fields": extra, "keys": keys_R}
    for name in advantage_side.logits_outputs(plan.choices):
        if PREFIX + name not in outputs:
            raise RuntimeError(
                f"verl-entropy: the log-prob pass gave no {PREFIX + name}; the training engine is not ours. Check `verl-entropy doctor`."
            )
        fields[name] = outputs[PREFIX + name]
    if "rollout_log_probs" in batch.keys():
        fields["rollout_log_probs"] = batch["rollout_log_probs"]
    return AdvantageContext(
        plan=plan,
        step=int(trainer.global_steps),
        total_steps=int(trainer.total_training_steps),
        turns=rows.turns(data, keys_R, extra, plan.success_threshold),
        mask_RT=batch["response_mask"].bool(),
        entropy_RT=batch[ENTROPY].float() if ENTROPY in batch.keys() else None,
        old_log_probs_RT=batch["old_log_probs"].float() if "old_log_probs" in batch.keys() else None,
        fields=fields,
    )


def _advantages(original: Any, trainer: Any, data: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """verl's ``compute_advantage`` with our base, transforms and columns."""
    run = run_of(trainer)
    keys_R, extra = rows.keys(data), rows.extra_fields(data)
    ctx = _context(trainer, data, keys_R, extra)
    ctx.metrics.update(agent_rows.ending_metrics(extra, keys_R))
    run.advance(ctx)
    with context.use_advantage(ctx):
        data = _base(original, ctx.plan.base, data, keys_R, args, kwargs)
    advantages = advantage_side.settle_equal_returns(ctx, data.batch["advantages"])
    ctx.fields["base_advantages"] = advantages  # of the diagnostics: what the transforms started from
    advantages, keep_RT = advantage_side.apply_transforms(ctx, advantages)
    if keep_RT is not None:
        # The actor's own: verl's masks stay, for the critic learns the value of every token, and the head reads all of them.
        thinned = data.batch["response_mask"] * keep_RT
        data.batch[ACTOR_MASKS["response_mask"]] = data.batch[ACTOR_MASKS["loss_mask"]] = thinned
        ctx.mask_RT = thinned.bool()
    data.batch["advantages"] = ctx.advantages_RT = advantages
    rows_R = run.diagnostics.worker_columns(ctx) if run.diagnostics is not None else {}
    for name, column in {**advantage_side.worker_columns(ctx), **rows_R}.items():
        data.batch[name] = column
    ctx.info.update(advantage_side.batch_info(ctx))
    data.meta_info[WORKER_INFO] = ctx.info
    trainer._verl_entropy_metrics.update(ctx.metrics)
    if run.diagnostics is not None:
        found = run.diagnostics.step(ctx, _read(trainer, data), trainer.tokenizer)
        trainer._verl_entropy_metrics.update(found)
    trainer._verl_entropy_outputs = {}
    if rows.SPANS in data.batch.keys():
        del data.batch[rows.SPANS]
    return data


def _base(original: Any, base: str, data: Any, keys_R: list[str], args: tuple, kwargs: dict[str, Any]) -> Any:
    """verl's estimator; with several rows of an episode GRPO compares last rows, as ``compute_advantage_for_multi_trajectories`` of V1."""
    sessions = [key.rsplit("_", 1)[0] for key in keys_R]
    if base != "grpo" or len(set(sessions)) == len(sessions):
        return original(data, *args, **kwargs)
    last = {}
    for row in sorted(range(len(keys_R)), key=lambda row: int(keys_R[row].rsplit("_", 1)[1])):
        last[sessions[row]] = row
    final = original(data.select_idxs(list(last.values())), *args, **kwargs)
    first_J = final.batch["response_mask"].argmax(dim=1)
    score_J = final.batch["advantages"][torch.arange(len(final)), first_J]
    place = {session: j for j, session in enumerate(last)}
    scores_RT = score_J[[place[session] for session in sessions]].unsqueeze(-1) * data.batch["response_mask"]
    data.batch["advantages"] = data.batch["returns"] = scores_RT
    return data


def _read(trainer: Any, data: Any) -> dict[str, torch.Tensor]:
    """What the diagnostics of this step read of the rows, as the queue of V1 gives it."""
    outputs = trainer._verl_entropy_outputs
    made = {
        "responses": lambda: layout.nested(data.batch["responses"], layout.lengths(data.batch)[1]),
        "prompts": lambda: layout.prompts(data.batch),
        SAMPLED: lambda: outputs[SAMPLED],
    }
    wanted = run_of(trainer).diagnostics.fields(int(trainer.global_steps))
    return {name: made[name]() for name in wanted if name != SAMPLED or SAMPLED in outputs}


# ----------------------------------------------------------------------------- update and metrics


def _updated(trainer: Any, output: Any) -> None:
    """Our metrics under their own names, the proof that our code ran in the workers, and what an event asks for."""
    from verl.utils.metric import reduce_metrics

    metrics, prefix = output.meta_info["metrics"], "actor/verl_entropy/"
    for key in [key for key in metrics if key.startswith(prefix)]:
        metrics[key.removeprefix("actor/")] = metrics.pop(key)
    if "verl_entropy/active" not in metrics and driver.in_workers(trainer.config):
        raise RuntimeError(
            "verl-entropy: the training workers did not report verl_entropy/active, so the chosen settings did nothing there. "
            f"Install verl-entropy on every node, and set {compat.loading()} for every Ray worker."
        )
    side = run_of(trainer).diagnostics
    if side is not None:
        last = trainer.total_training_steps
        side.act(trainer, {**trainer._verl_entropy_metrics, **reduce_metrics(dict(metrics))})
        trainer._verl_entropy_stop = trainer.total_training_steps != last


def wrap_tracking(module: ModuleType) -> None:
    """Wrap ``Tracking.log`` of ``verl.utils.tracking``, which the trainer gives the complete metrics of a step."""
    original = module.Tracking.log

    @functools.wraps(original)
    def log(self, data, step, *args, **kwargs):
        trainer = _active()
        side = None if trainer is None else run_of(trainer).diagnostics
        if trainer is not None and "training/global_step" in data:
            data.update(trainer._verl_entropy_metrics)
            trainer._verl_entropy_metrics = {}
            if side is not None:
                side.finish(int(step), data)
        elif side is not None and int(step) == 0:
            side.write(0, data)
        original(self, data, step, *args, **kwargs)
        if trainer is not None and trainer._verl_entropy_stop and trainer._verl_entropy_fits:
            raise Stopped

    module.Tracking.log = log


def wrap(module: ModuleType) -> None:
    """Wrap the seams of ``verl.trainer.ppo.ray_trainer``."""
    trainer_cls = module.RayPPOTrainer
    original_advantage, original_metrics = module.compute_advantage, module.compute_data_metrics
    original_init, original_workers, original_fit = trainer_cls.__init__, trainer_cls.init_workers, trainer_cls.fit
    original_log_prob, original_update = trainer_cls._compute_old_log_prob, trainer_cls._update_actor

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        global _latest
        original_init(self, *args, **kwargs)
        _latest = weakref.ref(self)
        actor = self.config.actor_rollout_ref.actor
        if run_of(self).plan.active and driver.in_workers(self.config):
            with open_dict(actor):
                actor.trainer_active = True  # the training workers refuse to start without it

    @functools.wraps(original_workers)
    def init_workers(self):
        original_workers(self)
        if run_of(self).plan.active and driver.in_workers(self.config):
            _wrap_groups(self)

    @functools.wraps(original_fit)
    def fit(self):
        run_of(self)
        self._verl_entropy_fits = True  # a fit of a subclass goes by total_training_steps
        try:
            return original_fit(self)
        except Stopped:
            return None

    @functools.wraps(original_advantage)
    def compute_advantage(data, *args, **kwargs):
        trainer = _active()
        if trainer is None or context.computing():  # V1 calls this one for its base
            return original_advantage(data, *args, **kwargs)
        return _advantages(original_advantage, trainer, data, args, kwargs)

    @functools.wraps(original_metrics)
    def compute_data_metrics(batch, *args, **kwargs):
        return original_metrics(loops.kept(batch), *args, **kwargs)

    @functools.wraps(original_log_prob)
    def _compute_old_log_prob(self, batch):
        if not run_of(self).plan.active:
            return original_log_prob(self, batch)
        return _old_log_prob(original_log_prob, self, batch)

    @functools.wraps(original_update)
    def _update_actor(self, batch):
        output = original_update(self, batch)
        if run_of(self).plan.active:
            _updated(self, output)
        return output

    module.compute_advantage, module.compute_data_metrics = compute_advantage, compute_data_metrics
    trainer_cls.__init__, trainer_cls.init_workers, trainer_cls.fit = __init__, init_workers, fit
    trainer_cls._compute_old_log_prob, trainer_cls._update_actor = _compute_old_log_prob, _update_actor
    checkpoints.wrap(trainer_cls, run_of)
