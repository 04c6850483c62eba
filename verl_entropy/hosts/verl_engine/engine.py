# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP engine with an auxiliary head inside the root module and one fp32 pass for log-probs and entropy.

With packed rows that pass has the model compute logits only where a response token is predicted.

The class is registered for vendors of verl's platforms, which verl looks up before its own class. Without settings of ours
every method defers to verl's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.ulysses import gather_outputs_and_unpad
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_entropy.batch.numerics import log_probs_and_entropy
from verl_entropy.config import engines
from verl_entropy.diagnostics import sampling
from verl_entropy.hosts.common import advantage_side
from verl_entropy.hosts.common.loss_tools import trained_positions, trained_tokens
from verl_entropy.hosts.common.trainer_keys import (
    HEAD_LOGITS,
    HEAD_ROWS,
    HEAD_TOKENS,
    NUM_SAMPLED,
    PREFIX,
    SAMPLE_CODE,
    SAMPLE_LEAD,
    SAMPLED,
)
from verl_entropy.hosts.install import compat
from verl_entropy.hosts.verl_engine.configs import EntropyFSDPEngineConfig
from verl_entropy.hosts.verl_engine.predicting import Predicting, keeps_logits, response_positions
from verl_entropy.log import say
from verl_entropy.methods.method import LogitsOutput
from verl_entropy.tools.checkpoint import strip_weights

HEAD = "seal_head"
"""Name of the head inside the root module, and prefix of its parameters."""
PREDICTING = "verl_entropy_predicting"
"""Key of ``Predicting`` in what verl hands from the model's inputs to its outputs."""


@dataclass
class CausalLMOutputWithHead(CausalLMOutputWithPast):
    """The model's output plus the head's logits (N,), one per trained response token in row order."""

    head_logits: torch.FloatTensor | None = None


def has_flash_cross_entropy() -> bool:
    """Whether verl's log-probs use flash-attn's kernel (else they are a Python loop over rows)."""
    from verl.utils import torch_functional

    return bool(torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE)


def attach_head(module: torch.nn.Module, head: torch.nn.Module) -> None:
    """Put ``head`` into ``module`` and its logits into the output, for positions given as ``head_positions``."""
    module.add_module(HEAD, head)
    # Its own FSDP unit: own flat parameter and optimiser entry, so that it can be cut out of a checkpoint.
    module._no_split_modules = [*(module._no_split_modules or []), type(head).__name__]
    capture: dict[str, torch.Tensor] = {}  # positions on the way in, logits on the way out

    def run_head(_module, _inputs, output):
        # Before lm_head and not after it, so that its backward comes later: launches of small kernels then hide behind
        # lm_head's large ones.
        positions = capture.pop("positions", None)
        if positions is not None:
            hidden = output[0]
            # index_select, as the backward of hidden[positions] sorts the positions
            capture["logits"] = getattr(module, HEAD)(hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions))

    module.get_decoder().register_forward_hook(run_head)
    inner = module.forward

    @functools.wraps(inner)
    def forward(*args, head_positions=None, **kwargs):
        if head_positions is not None:
            capture["positions"] = head_positions
        output = inner(*args, **kwargs)
        if head_positions is None:
            return output
        return CausalLMOutputWithHead(
            loss=output.loss,
            logits=output.logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            head_logits=capture.pop("logits"),
        )

    module.forward = forward


class EntropyEngineMixin:
    """Head and log-prob pass; mixed into an FSDP language-model engine."""

    _collector: sampling.Collector | None = None
    """Of the pass under way, if it samples."""
    _hidden: torch.Tensor | None = None
    _keeps_logits: bool = False
    """Of the model; see ``keeps_logits``."""

    @property
    def _ours(self) -> bool:
        return isinstance(self.engine_config, EntropyFSDPEngineConfig)

    @functools.cached_property
    def _head(self):
        """The head and its settings; None without one and for the reference model."""
        if not self._ours or self.engine_config.forward_only:
            return None
        return self.engine_config.chosen_head()

    @functools.cached_property
    def _logits_readers(self) -> dict[str, LogitsOutput]:
        """What the chosen methods compute from the logits, by name."""
        if not self._ours or self.engine_config.forward_only:
            return {}
        return advantage_side.logits_outputs(self.engine_config.logits_methods())

    @functools.cached_property
    def _chunked(self) -> bool:
        """Whether log-probs and entropy come from our pass; says so once."""
        if not self._ours or self.engine_config.log_probs == "verl":
            return False
        chosen = self.engine_config.log_probs == "chunked" or not has_flash_cross_entropy()
        if chosen and self.rank == 0:
            why = "as configured" if self.engine_config.log_probs == "chunked" else "flash-attn's cross-entropy is missing"
            say(f"log-probs and entropy: one chunked fp32 pass over response tokens ({why})")
        return chosen

    # ---- head -------------------------------------------------------------------------------------------------

    def _build_module(self):
        module = super()._build_module()
        self._keeps_logits = keeps_logits(module)
        if self._chunked and self.use_remove_padding and not self._keeps_logits and self.rank == 0:
            say(
                f"logits are computed for prompt tokens too (more memory): {type(module).__name__}.forward takes no tensor logits_to_keep"
            )
        if self._head is not None:
            head = self._head.method.build(module.config.get_text_config().hidden_size, self._head.settings, None)
            dtype = next(module.parameters()).dtype
            attach_head(module, head.to(dtype))
        if self._ours and self.engine_config.sample and not self.engine_config.forward_only:
            module.get_decoder().register_forward_hook(self._catch_hidden)
        return module

    def prepare_model_inputs(self, micro_batch):
        model_inputs, output_args = super().prepare_model_inputs(micro_batch)
        if self._head is not None and torch.is_grad_enabled():
            packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
            shift = self._head.method.shift(self._head.settings)
            token_N, row_N = trained_tokens(micro_batch)
            model_inputs["head_positions"] = trained_positions(micro_batch, packed, shift, token_N, row_N)
            output_args[HEAD_TOKENS], output_args[HEAD_ROWS] = token_N, row_N
        if self._ours_reads(micro_batch) or self._collector is not None:
            predicting = self._predicting(micro_batch, model_inputs["input_ids"].numel())
            output_args[PREDICTING] = predicting
            if predicting is not None and predicting.kept:
                model_inputs["logits_to_keep"] = predicting.model_N
        return model_inputs, output_args

    def _ours_reads(self, micro_batch) -> bool:
        """Whether log-probs and entropy of this micro-batch come from our pass."""
        return self._chunked and not _needs_stock_outputs(micro_batch)

    def _predicting(self, micro_batch, width: int) -> Predicting | None:
        """None where a sequence is sharded: our pass then takes every token."""
        packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
        if packed and self.use_ulysses_sp:
            return None
        packed_N = response_positions(micro_batch, True, -1)
        model_N = packed_N if packed else response_positions(micro_batch, False, -1)
        kept = packed and self._keeps_logits and self._ours_reads(micro_batch) and len(packed_N) > 0
        return Predicting(packed_N, model_N, width, kept)

    def get_per_tensor_param(self, **kwargs):
        parameters, peft = super().get_per_tensor_param(**kwargs)
        return _without_head(parameters), peft

    def get_per_tensor_param_shard(self, **kwargs):
        parameters, peft = super().get_per_tensor_param_shard(**kwargs)
        return _without_head(parameters), peft

    def save_checkpoint(self, local_path, *args, **kwargs):
        super().save_checkpoint(local_path, *args, **kwargs)
        if self._head is not None and local_path is not None and self.rank == 0:
            strip_weights(Path(local_path) / "huggingface")  # an export for others; shards and optimiser keep the head

    # ---- outputs ----------------------------------------------------------------------------------------------

    def prepare_model_outputs(self, output, output_args, micro_batch, **rest):
        if self._collector is not None:
            self._collect(output, output_args, micro_batch)
        if self._ours_reads(micro_batch):
            model_output = self._chunked_outputs(output, output_args, micro_batch)
        else:
            model_output = super().prepare_model_outputs(output, output_args, micro_batch, **rest)
        if isinstance(output, CausalLMOutputWithHead):
            model_output |= {HEAD_LOGITS: output.head_logits, **{key: output_args[key] for key in (HEAD_TOKENS, HEAD_ROWS)}}
        return model_output

    def forward_step(self, micro_batch, loss_function, forward_only):
        loss, output = super().forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)
        for key in (HEAD_LOGITS, HEAD_TOKENS, HEAD_ROWS):  # of the loss alone; verl before 0.9 joins what is left by rows
            output["model_output"].pop(key, None)
        return loss, output

    def _chunked_outputs(self, output, output_args, micro_batch):
        """Log-probs and entropy of response tokens; other positions, which no loss reads, are zero."""
        with_entropy = tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False)
        input_ids, labels_N = micro_batch["input_ids"], output_args["input_ids_rmpad_rolled"]
        scale = None if output_args.get("temperature_is_one") else _token_temperature(output_args, input_ids)
        predicting = output_args[PREDICTING]
        if predicting is None:
            # A shard of the packed sequence: every token of it, then gathered, as verl does.
            logits_NV = output.logits.squeeze(0)
        else:
            logits_NV, labels_N = predicting.logits(output.logits), labels_N.index_select(0, predicting.packed_N)
            scale = scale if scale is None else scale.index_select(0, predicting.packed_N)
        log_probs_N, entropy_N = log_probs_and_entropy(logits_NV, labels_N, scale, with_entropy=with_entropy)
        outputs = {"log_probs": log_probs_N}
        if with_entropy:
            outputs["entropy"] = entropy_N
        if with_entropy or torch.is_grad_enabled():  # not under LoRA's reference, which is this engine without the adapter
            outputs.update(self._logit_outputs(logits_NV, scale))

        def full(values_N: torch.Tensor) -> torch.Tensor:
            if predicting is None:
                values = gather_outputs_and_unpad(values_N, gather_dim=0, unpad_dim=0, padding_size=output_args["pad_size"])
            else:
                values = values_N.new_zeros(input_ids.values().shape[0]).index_put((predicting.packed_N,), values_N)
            return torch.nested.nested_tensor_from_jagged(values, input_ids.offsets())

        return {name: full(values_N) for name, values_N in outputs.items()}

    def _logit_outputs(self, logits_NV: torch.Tensor, scale) -> dict[str, torch.Tensor]:
        """Outputs of methods that read the logits themselves; each works in chunks."""
        training = torch.is_grad_enabled()
        return {
            PREFIX + name: output.compute(logits_NV, temperature=scale)
            for name, output in self._logits_readers.items()
            if output.in_update or not training
        }

    # ---- sample of the diagnostics ----------------------------------------------------------------------------

    def _catch_hidden(self, _module, _inputs, output) -> None:
        if self._collector is not None:
            self._hidden = output[0]

    def _collect(self, output, output_args, micro_batch) -> None:
        """Hidden states and logits of the marked tokens, copied before anything scales the logits in place."""
        hidden, self._hidden = self._hidden, None
        if hidden is None:
            return
        predicting, code_N = output_args[PREDICTING], micro_batch[SAMPLE_CODE].values()
        token_N = code_N.nonzero().squeeze(-1)
        logits_NV = None
        if output.logits is not None:
            temperature = _token_temperature(output_args, micro_batch["input_ids"])
            temperature_N = temperature.index_select(0, predicting.packed_N.index_select(0, token_N))
            logits_NV = predicting.logits(output.logits, token_N)
            logits_NV = logits_NV.float() / temperature_N.float().clamp(min=1e-8).unsqueeze(-1)
        states_ND = hidden.reshape(-1, hidden.shape[-1]).index_select(0, predicting.model_N.index_select(0, token_N))
        answer_N = micro_batch["responses"].values().index_select(0, token_N)
        self._collector.add(states_ND, logits_NV, answer_N, code_N.index_select(0, token_N))

    def _sampling_pass(self, data, number: int):
        self._collector = sampling.Collector(number)
        try:
            output = super().forward_backward_batch(data, None, True)
            if self._collector.total_JD is None and self._no_hidden:
                return output
            gram_JJ, mean_JD = self._collector.finish(self.get_data_parallel_group())
        finally:
            self._collector = self._hidden = None
        rows = sampling.pack(gram_JJ, mean_JD, data[SAMPLE_LEAD])
        output["model_output"][SAMPLED] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return output

    @functools.cached_property
    def _no_hidden(self) -> bool:
        """True; says once that the decoder's output was never seen."""
        say(f"{type(self.module).__name__} gives no hidden states: this run has no metrics of representations and interference")
        return True

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        number = tu.get_non_tensor_data(data=data, key=NUM_SAMPLED, default=0) if self._ours and forward_only else 0
        if number and loss_function is None and not self.engine_config.forward_only and not self.use_ulysses_sp:
            return self._sampling_pass(data, number)
        return super().forward_backward_batch(data, loss_function, forward_only)


def _token_temperature(output_args, input_ids: torch.Tensor) -> torch.Tensor:
    """Temperature of each of the micro-batch's tokens: verl has it so with packed rows, else one per row."""
    if "temperature_rmpad" in output_args:
        return output_args["temperature_rmpad"]
    return output_args["temperature"].repeat_interleave(input_ids.offsets().diff(), output_size=input_ids.values().shape[0])


def _needs_stock_outputs(micro_batch) -> bool:
    """Outputs that only verl's path gives: fused kernels, distillation, sum of squared probabilities."""
    flags = ("use_fused_kernels", "distillation_use_topk", "distillation_only", "calculate_sum_pi_squared")
    return any(tu.get_non_tensor_data(data=micro_batch, key=flag, default=False) for flag in flags)


def _without_head(parameters):
    """The stream of weights for the rollout engine, which has no head."""
    return (entry for entry in parameters if f"{HEAD}." not in entry[0])


class EntropyFSDPEngineWithLMHead(EntropyEngineMixin, FSDPEngineWithLMHead):
    """verl's FSDPEngineWithLMHead with ``EntropyEngineMixin``."""


def register(_: ModuleType | None = None) -> None:
    """Register for the vendors of verl's CUDA platforms, and on CPU when that platform is chosen."""
    if get_device_name() == "cpu":
        from verl_entropy.cpu import engine as cpu_engine

        cpu_engine.register_engines(EntropyFSDPEngineWithLMHead)
        return
    kinds = {"model_type": "language_model", "backend": ["fsdp", "fsdp2"], "device": "cuda"}
    if compat.before(0, 9):  # knows no vendors, and keeps the class that was first
        for backend in kinds["backend"]:
            EngineRegistry._engines["language_model"][backend]["cuda"] = EntropyFSDPEngineWithLMHead
        return
    EngineRegistry.register(**kinds, vendor=[v for v in engines.VENDORS if v != "cpu"])(EntropyFSDPEngineWithLMHead)
