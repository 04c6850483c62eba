# SPDX-License-Identifier: Apache-2.0
"""verl-agent's DataParallelPPOActor with entropies in the right order, our losses and regularisers, and the head.

Its own methods run unchanged: ``_forward_micro_batch`` with hooks that keep logits and hidden states, ``compute_log_prob`` with the
micro-batches' outputs recorded, ``update_policy`` with the loss functions that it looks up exchanged for the time of the call.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from omegaconf import open_dict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.seqlen_balancing import get_reverse_idx
from verl.workers.actor import dp_actor
from verl.workers.actor.dp_actor import DataParallelPPOActor

from verl_entropy.batch.numerics import log_probs_and_entropy
from verl_entropy.config.plan import Plan
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.common import advantage_side, loss_side
from verl_entropy.hosts.common.trainer_keys import PREFIX, WHOLE_MASKS, WORKER_INFO
from verl_entropy.hosts.install.rebound import rebound
from verl_entropy.hosts.verl_agent import advantages, micro
from verl_entropy.hosts.verl_agent.head import OutsideHead
from verl_entropy.hosts.verl_agent.ranks import average, total, world_size
from verl_entropy.methods.context import ClipBounds
from verl_entropy.methods.method import LogitsOutput


@dataclass
class Outputs:
    """What one forward pass left for the loss, in the padded response layout."""

    micro_batch: Any
    entropy_RT: Tensor | None = None
    logits_RT: dict[str, Tensor] = field(default_factory=dict)
    """What the methods computed from the logits, by name."""
    hidden: Tensor | None = None


@dataclass
class Record:
    """The outputs of ``compute_log_prob``'s micro-batches, and the rows that each of them held."""

    parts: list[Outputs] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    own_entropy: list[Tensor] = field(default_factory=list)
    rows: list[list[int]] | None = None

    def ordered(self, parts: list[Tensor]) -> Tensor:
        """Micro-batch outputs joined, in the order of the batch."""
        joined = torch.concat(parts, dim=0)
        if self.rows is None:
            return joined
        order = get_reverse_idx(list(itertools.chain.from_iterable(self.rows)))
        return joined[torch.tensor(order, dtype=torch.long)]


class ColumnsProto(DataProto):
    """A DataProto whose ``select`` keeps our columns too: ``update_policy`` names the ones that it knows."""

    def select(self, batch_keys=None, non_tensor_batch_keys=None, meta_info_keys=None, deepcopy=False):
        if batch_keys is not None:
            ours = [key for key in self.batch.keys() if key.startswith("verl_entropy_")]
            batch_keys = [*batch_keys, *(key for key in ours if key not in batch_keys)]
        return super().select(batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The model inside FSDP1's wrapper; FSDP2 has none."""
    return module._fsdp_wrapped_module if isinstance(module, dp_actor.FSDP) else module


class EntropyActor(DataParallelPPOActor):
    """See the head of this file. ``plan`` None: verl-agent's actor, bit for bit, but for the order of entropies."""

    def __init__(self, config, actor_module, actor_optimizer=None, *, plan: Plan | None, head: OutsideHead | None = None):
        super().__init__(config=config, actor_module=actor_module, actor_optimizer=actor_optimizer)
        self.plan, self.head = plan, head
        self._logits_outputs = advantage_side.logits_outputs(plan.choices if plan is not None else ())
        self.outputs: dict[str, Tensor] = {}
        self._last: Outputs | None = None
        self._record: Record | None = None
        self._info: dict[str, Any] = {}
        self._means = micro.Means()
        self._pg_losses: list[float] = []

    # ---- forward ----------------------------------------------------------------------------------------------

    @property
    def _needs(self) -> frozenset[str]:
        return self.plan.needs if self.plan is not None else frozenset()

    def _reads_logits(self, training: bool) -> bool:
        setting = self.plan.entropy.log_probs if self.plan is not None else "verl"
        entropy = setting != "verl" and ("grad_entropy" in self._needs if training else True)
        return bool(self._logits_readers(training)) or setting == "chunked" or entropy

    def _logits_readers(self, training: bool) -> dict[str, LogitsOutput]:
        """What the chosen methods compute from the logits in this pass, by name."""
        return {name: output for name, output in self._logits_outputs.items() if output.in_update or not training}

    def _forward_micro_batch(self, micro_batch, temperature, calculate_entropy=False):
        training = torch.is_grad_enabled()
        wants_logits = self._reads_logits(training)
        with self._hooks(logits=wants_logits, hidden=self.head is not None and training) as kept:
            # Without an entropy, the log-probs may be computed in place, and the logits end up as their own gradient.
            with_entropy = calculate_entropy or (training and ("grad_entropy" in self._needs or wants_logits))
            entropy, log_probs = super()._forward_micro_batch(micro_batch, temperature, with_entropy)
        self._last = Outputs(micro_batch, entropy_RT=entropy, hidden=kept.get("hidden"))
        if "logits" in kept:
            log_probs = self._from_logits(kept["logits"], micro_batch, entropy, log_probs, training)
        if self._record is not None:
            self._record.parts.append(self._last)
            self._record.log_probs.append(log_probs)
            if entropy is not None:
                self._record.own_entropy.append(entropy)
        return entropy, log_probs

    @contextlib.contextmanager
    def _hooks(self, logits: bool, hidden: bool):
        kept: dict[str, Tensor] = {}
        handles = []
        if logits:
            # verl-agent divides these logits by the temperature in place
            hook = self.actor_module.register_forward_hook(lambda _, __, output: kept.__setitem__("logits", output.logits))
            handles.append(hook)
        if hidden:
            decoder = unwrapped(self.actor_module).get_decoder()
            handles.append(decoder.register_forward_hook(lambda _, __, output: kept.__setitem__("hidden", output[0])))
        try:
            yield kept
        finally:
            for handle in handles:
                handle.remove()

    def _positions(self, micro_batch, mask_RT: Tensor, shift: int) -> Tensor:
        """Flat positions in the model's output for the response tokens of ``mask_RT``, row by row; -1 is the predicting one."""
        attention = micro_batch["attention_mask"]
        rows, width = attention.shape
        response = mask_RT.shape[1]
        if self.use_remove_padding:
            flat = (attention.reshape(-1).cumsum(0) - 1).view(rows, width)
        else:
            flat = torch.arange(rows * width, device=attention.device).view(rows, width)
        own_RT = flat[:, width - response :]
        return (own_RT + shift)[mask_RT]

    def _from_logits(self, logits, micro_batch, entropy, log_probs, training: bool) -> Tensor:
        """Fill the outputs that are read from the logits; returns the log-probs to use."""
        setting = self.plan.entropy.log_probs
        # auto: verl-agent's entropy where it is fp32 (CUDA's autocast), else ours
        own_pass = setting == "chunked" or (setting == "auto" and entropy is not None and entropy.dtype != torch.float32)
        readers = self._logits_readers(training)
        if not (own_pass or readers):
            return log_probs
        responses = micro_batch["responses"]
        mask_RT = micro_batch["attention_mask"][:, -responses.size(1) :].bool()
        logits_NV = logits.reshape(-1, logits.shape[-1])[self._positions(micro_batch, mask_RT, -1)]

        def spread(values_N: Tensor) -> Tensor:
            return values_N.new_zeros(mask_RT.shape).masked_scatter(mask_RT, values_N)

        if own_pass:
            ours_N, entropy_N = log_probs_and_entropy(logits_NV, responses[mask_RT])
            self._last.entropy_RT = spread(entropy_N)
            log_probs = spread(ours_N) if setting == "chunked" else log_probs
        self._last.logits_RT = {name: spread(output.compute(logits_NV)) for name, output in readers.items()}
        return log_probs

    # ---- old log-probs ----------------------------------------------------------------------------------------

    def compute_log_prob(self, data: DataProto, calculate_entropy=False):
        """verl-agent's pass, with entropies in the order of the rows; what else was asked for is left in ``outputs``."""
        self._record = record = Record()
        try:
            with rebound(dp_actor, rearrange_micro_batches=_recording(record)):
                log_probs, entropy = super().compute_log_prob(data=data, calculate_entropy=calculate_entropy)
        finally:
            self._record = self._last = None
        if not _same(log_probs, record.ordered(record.log_probs)):
            raise RuntimeError(
                "verl-entropy: the log-probs of this pass are not in the order of the rows, so neither are the entropies. Set "
                "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False."
            )
        if entropy is not None:
            entropy = record.ordered(record.own_entropy)
        given: list[dict[str, Tensor | None]] = [
            {advantages.OLD_ENTROPY: part.entropy_RT, **{PREFIX + name: x for name, x in part.logits_RT.items()}}
            for part in record.parts
        ]
        self.outputs = {}
        for name in given[0] if given else ():
            parts = [columns[name] for columns in given]
            if all(part is not None for part in parts):
                self.outputs[name] = record.ordered(parts).float()
        return log_probs, entropy

    # ---- update -----------------------------------------------------------------------------------------------

    def update_policy(self, data: DataProto):
        if self.plan is None:
            return super().update_policy(data=data)
        if "multi_modal_inputs" in data.non_tensor_batch:
            raise ConfigError(
                "verl-entropy: batches with images are cut in verl-agent by a path that drops further columns, so labels and counts "
                "would be lost. Use a text environment."
            )
        if WORKER_INFO not in data.meta_info:
            raise RuntimeError("verl-entropy: the driver sent no state with this batch; its trainer is not verl-entropy's.")
        self._info, self._means, self._pg_losses = data.meta_info[WORKER_INFO], micro.Means(), []
        bound = loss_side.upper_clip(self._info, self.plan)
        if bound is not None:
            with open_dict(self.config):
                self.config.clip_ratio_high = bound
        if self.head is not None:
            self.head.zero_grad()
        data, mini_batches = self._with_columns(data)
        losses = {name: self._loss(getattr(dp_actor, name)) for name in ("compute_policy_loss", "compute_policy_loss_gspo")}
        with rebound(dp_actor, **losses):
            metrics = super().update_policy(data=data)
        metrics["actor/pg_loss"] = self._pg_losses
        metrics.update(self._means.result(mini_batches * self.config.ppo_epochs, average))
        metrics["verl_entropy/active"] = 1.0
        if self.head is not None:
            metrics[f"verl_entropy/{self.plan.head.name}/skipped_steps"] = float(self.head.skipped)
        self._last = None
        return metrics

    def _with_columns(self, data: DataProto) -> tuple[DataProto, int]:
        """The batch with our columns and counts; and the number of mini-batches."""
        width, batch = data.batch["responses"].size(1), data.batch
        mask_RT = batch["attention_mask"][:, -width:].bool()
        # Columns of the driver that a term of the loss may read; a policy loss of ours may also read the old entropy.
        left = {advantages.KEEP, *(PREFIX + name for name in self._logits_outputs)}
        if self.plan.loss is None:
            left.add(advantages.OLD_ENTROPY)
        extra: dict[str, Tensor] = {key: batch[key] for key in batch.keys() if key.startswith(PREFIX) and key not in left}
        meta = data.meta_info
        if advantages.KEEP in batch.keys():
            kept_RT, kept_advantages = batch[advantages.KEEP].bool(), batch["advantages"]
            if self.config.loss_agg_mode.startswith("seq-mean") or self.plan.loss_mode == "gspo":
                first_RT = mask_RT & (mask_RT.cumsum(-1) == 1)
                kept_RT, kept_advantages = advantages.keep_every_row(kept_RT, first_RT, kept_advantages)
            # verl-agent reads the trained tokens from here when it is told that rows hold several turns
            meta = {**meta, "multi_turn": True}
            if self.head is not None:  # it reads every trained token
                whole = micro.count_columns(mask_RT, {}, self.config.ppo_mini_batch_size, total)
                extra.update({WHOLE_MASKS["loss_mask"]: mask_RT, micro.WHOLE_TOKENS: whole[micro.NUM_TOKENS]})
            mask_RT = kept_RT
            extra.update({"loss_mask": kept_RT.to(batch["attention_mask"].dtype), "advantages": kept_advantages})
        counted = {
            key.removeprefix(PREFIX): x
            for key, x in extra.items()
            if x.dim() == 2 and key.startswith(PREFIX) and key not in (advantages.OLD_ENTROPY, WHOLE_MASKS["loss_mask"])
        }
        extra.update(micro.count_columns(mask_RT, counted, self.config.ppo_mini_batch_size, total))
        merged = batch.select(*(key for key in batch.keys() if not key.startswith("verl_entropy_"))).update(extra)
        proto = ColumnsProto(batch=merged, non_tensor_batch=data.non_tensor_batch, meta_info=meta)
        return proto, -(-len(mask_RT) // self.config.ppo_mini_batch_size)

    def _loss(self, original):
        """The policy loss that ``update_policy`` calls in place of ``original``: ours if chosen, and our terms on top."""

        def loss(**given):
            ctx = self._loss_context(given["response_mask"])
            if self.plan.loss is None:
                result = original(**given)
            else:
                result = self._own_loss(ctx, given)
            self._pg_losses.append(float(result[0].detach()))
            tensors = (given["log_prob"], given["old_log_prob"], given["advantages"], given["response_mask"].bool())
            bounds = (given["cliprange_low"], given["cliprange_high"])
            ctx.token_means.update(loss_side.clip_sides(self.plan.loss_mode, *tensors, *bounds))
            terms = loss_side.extra_terms(ctx)
            self._means.add(ctx)
            return (result[0] + sum(terms) / self._factor(), *result[1:]) if terms else result

        return loss

    def _factor(self) -> float:
        """The factor that ``update_policy`` puts on the loss of this micro-batch."""
        if self.config.use_dynamic_bsz:
            return len(self._last.micro_batch) / self.config.ppo_mini_batch_size
        return 1.0 / self.gradient_accumulation

    def _loss_context(self, response_mask: Tensor):
        last = self._last
        head_logits, whole = None, WHOLE_MASKS["loss_mask"]
        mask_RT = (last.micro_batch[whole] if whole in last.micro_batch.keys() else response_mask).bool()
        if self.head is not None:
            shift = self.plan.head.method.shift(self.plan.head.settings)
            where = self._positions(last.micro_batch, mask_RT, shift)
            states_ND = last.hidden.reshape(-1, last.hidden.shape[-1]).index_select(0, where)
            head_logits = self.head.logits(states_ND)
        outputs = micro.model_output(head_logits, mask_RT)
        entropy_RT = last.entropy_RT if "grad_entropy" in self._needs else None
        where = (self.plan, last.micro_batch, response_mask, entropy_RT, outputs, last.logits_RT)
        return micro.context(*where, self._info, world_size())

    def _own_loss(self, ctx, given: dict[str, Any]):
        clip = ClipBounds(given["cliprange_low"], given["cliprange_high"], given["clip_ratio_c"])
        tensors = (given["log_prob"], given["old_log_prob"], given["advantages"], ctx.mask_RT)
        loss_RT, info = loss_side.token_loss(ctx, clip, *tensors)
        mask = given["response_mask"]

        def mean(name: str) -> Tensor:
            if name not in info:  # a loss from outside may report other parts
                return torch.zeros((), device=mask.device)
            return agg_loss(loss_mat=info[name], loss_mask=mask, loss_agg_mode="token-mean")

        pg_loss = agg_loss(loss_mat=loss_RT, loss_mask=mask, loss_agg_mode=given["loss_agg_mode"])
        clipped = mean("clipfrac_high") + mean("clipfrac_low")
        return pg_loss, clipped, mean("ppo_kl"), mean("clipfrac_dual")

    def _optimizer_step(self):
        grad_norm = super()._optimizer_step()
        if self.head is not None:
            self.head.step(self.actor_optimizer.param_groups[0]["lr"], finite=bool(torch.isfinite(grad_norm)))
        return grad_norm


def _recording(record: Record):
    original = dp_actor.rearrange_micro_batches

    def rearrange_micro_batches(*args, **kwargs):
        parts, rows = original(*args, **kwargs)
        record.rows = rows
        return parts, rows

    return rearrange_micro_batches


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(a.float()), torch.nan_to_num(b.float()))
