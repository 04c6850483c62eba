# SPDX-License-Identifier: Apache-2.0
"""verl's FSDP and FSDP2 engines on a CPU, with gloo, at any world size.

What differs from an accelerator, all of it in ``CpuFSDPMixin``:

* FSDP1 refuses ``sync_module_states=True`` for parameters on a CPU. verl loads the checkpoint on rank 0 only
  and has meta tensors elsewhere, so the weights are broadcast here, before wrapping. This also makes randomly
  initialised parts (a value head, an auxiliary head, LoRA) equal on all ranks.
* A reference model asks for CPU offloading. The parameters are on the CPU already, and FSDP2's ``pin_memory``
  needs an accelerator: no offloading.
* verl loads a value model with ``flash_attention_2``: here with the attention of the model's config.
"""

from __future__ import annotations

from typing import Any

from verl_entropy.hosts.install.rebound import rebound

BACKENDS = ["fsdp", "fsdp2"]


def broadcast_module(module, src: int = 0) -> None:
    """Give every rank the parameters and buffers (persistent or not) of rank ``src``; meta tensors are made
    real first.
    """
    import torch

    if torch.distributed.get_world_size() == 1:
        return
    if any(parameter.is_meta for parameter in module.parameters()):
        module.to_empty(device="cpu")
    tensors = dict(module.named_parameters())
    tensors.update(module.named_buffers())
    with torch.no_grad():
        for name in sorted(tensors):  # the order of registration may differ between a meta and a real module
            torch.distributed.broadcast(tensors[name].data, src=src)


def load_value_model(local_path, torch_dtype, model_config, trust_remote_code):
    """``verl.utils.model.load_valuehead_model`` with the attention implementation of ``model_config``."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )


def _fsdp1_on_cpu(fsdp: type) -> type:
    class CpuFullyShardedDataParallel(fsdp):
        """FSDP1 without synchronising states (done by ``broadcast_module``) and without offloading."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{**kwargs, "sync_module_states": False, "cpu_offload": None})

    return CpuFullyShardedDataParallel


def _no_offload_policy(**_: Any) -> None:
    return None


class CpuFSDPMixin:
    """To be put before an ``FSDPEngine`` in the bases of an engine for device ``cpu``."""

    def _build_module(self):
        import verl.utils.model

        with rebound(verl.utils.model, load_valuehead_model=load_value_model):
            return super()._build_module()

    def _build_fsdp_module(self, module):
        from verl.workers.engine.fsdp import transformer_impl

        broadcast_module(module)
        with rebound(
            transformer_impl,
            FSDP=_fsdp1_on_cpu(transformer_impl.FSDP),
            CPUOffloadPolicy=_no_offload_policy,
        ):
            return super()._build_fsdp_module(module)


def register_engines(language_model_base: type | None = None) -> tuple[type, type]:
    """Register the language-model and the value-model engine for device ``cpu`` and return both classes.

    ``language_model_base`` is the engine that accelerators use (default: verl's ``FSDPEngineWithLMHead``). To
    be called after ``verl.workers.engine.fsdp.transformer_impl`` is imported, once per process.
    """
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    base = language_model_base or transformer_impl.FSDPEngineWithLMHead
    language = type(f"Cpu{base.__name__}", (CpuFSDPMixin, base), {"__module__": __name__})
    value_base = transformer_impl.FSDPEngineWithValueHead
    value = type(f"Cpu{value_base.__name__}", (CpuFSDPMixin, value_base), {"__module__": __name__})
    EngineRegistry.register(model_type="language_model", backend=BACKENDS, device="cpu")(language)
    EngineRegistry.register(model_type="value_model", backend=BACKENDS, device="cpu")(value)
    return language, value
