# SPDX-License-Identifier: Apache-2.0
"""The verl symbols this package relies on, per supported version, and a check that reads verl's source without importing it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path

SUPPORTED = ("0.7.1", "0.8.0", "0.9.0", "0.9.1")
"""Versions whose every symbol below was checked. Another one of these series is accepted when no symbol is missing."""

SERIES = ("0.7.", "0.8.", "0.9.", "0.10.0.dev")
"""The last one is verl's branch main as it was tried (hosts/README.md)."""

# module -> {qualified name: parameters that must be there (None: any)}
SYMBOLS: dict[str, dict[str, tuple[str, ...] | None]] = {
    "verl.utils.config": {
        "validate_config": ("config", "use_reference_policy", "use_critic"),
        "omega_conf_to_dataclass": ("config",),
    },
    "verl.trainer.ppo.core_algos": {
        "register_adv_est": ("name_or_enum",),
        "register_policy_loss": ("name",),
        "ADV_ESTIMATOR_REGISTRY": None,
        "POLICY_LOSS_REGISTRY": None,
        "agg_loss": ("loss_mat", "loss_mask", "loss_agg_mode", "dp_size", "batch_num_tokens", "global_batch_size"),
        "compute_policy_loss_vanilla": ("old_log_prob", "log_prob", "advantages", "response_mask"),
    },
    "verl.trainer.ppo.v1.trainer_base": {
        "compute_advantage_for_multi_trajectories": None,  # imported by name: the global that we rebind
        "ReplayBuffer": None,
        "PPOTrainer": None,
        "PPOTrainer.__init__": ("self", "config"),
        "PPOTrainer._build_replay_buffer": ("self",),
        "PPOTrainer._submit_batch_to_rollout": ("self", "batch"),
        "PPOTrainer._compute_advantage": ("self", "batch", "metrics"),
        "PPOTrainer._update_actor": ("self", "batch", "metrics"),
        "PPOTrainer._save_checkpoint": ("self",),
        "PPOTrainer._load_checkpoint": ("self",),
        "PPOTrainer._compute_old_log_prob": ("self", "batch", "metrics"),
        "PPOTrainer._compute_metrics": ("self", "batch", "metrics", "timing_raw", "global_steps", "epoch"),
        "PPOTrainer._validate": ("self",),
        "PPOTrainer.step": ("self", "metrics", "timing_raw"),
        **dict.fromkeys(
            f"PPOTrainer.{name}"
            for name in (
                "config",
                "global_steps",
                "total_training_steps",
                "tokenizer",
                "processor",
                "use_critic",
                "actor_rollout_wg",
            )
        ),
    },
    "verl.trainer.ppo.ray_trainer": {
        "compute_advantage": ("data", "adv_estimator", "config"),
        "compute_data_metrics": None,  # imported by name: the global that we rebind
        "RayPPOTrainer": None,
        "RayPPOTrainer.__init__": ("self", "config"),
        "RayPPOTrainer.init_workers": ("self",),
        "RayPPOTrainer.fit": ("self",),
        "RayPPOTrainer._compute_old_log_prob": ("self", "batch"),
        "RayPPOTrainer._update_actor": ("self", "batch"),
        "RayPPOTrainer._save_checkpoint": ("self",),
        "RayPPOTrainer._load_checkpoint": ("self",),
        **dict.fromkeys(
            f"RayPPOTrainer.{name}"
            for name in (
                "config",
                "global_steps",
                "total_training_steps",
                "tokenizer",
                "actor_rollout_wg",
                "ref_policy_wg",
                "use_reference_policy",
                "ref_in_actor",
            )
        ),
    },
    "verl.protocol": {
        **dict.fromkeys(f"DataProto.{name}" for name in ("batch", "non_tensor_batch", "meta_info")),
        "DataProto": None,
        "DataProto.slice": ("self", "start", "end"),
        "DataProto.select_idxs": ("self", "idxs"),
        "DataProto.union": ("self", "other"),
        "DataProto.from_dict": ("tensors", "non_tensors", "meta_info"),
        "DataProto.concat": ("data",),
    },
    "verl.utils.tracking": {"Tracking": None, "Tracking.log": ("self", "data", "step")},
    "verl.trainer.ppo.v1.replay_buffer": {
        "ReplayBuffer.poll_interval": None,
        "ReplayBuffer.partitions": None,
        "ReplayBuffer._sync_metadata_from_transfer_queue": ("self",),
    },
    "verl.trainer.ppo.utils": {"need_critic": ("config",), "need_reference_policy": ("config",)},
    "verl.trainer.ppo.v1.utils": {
        "compute_advantage_for_multi_trajectories": ("data", "batch_keys", "adv_estimator", "config"),
    },
    "verl.workers.engine_workers": {
        "ppo_loss": None,  # imported by name: the global that we rebind
        "ActorRolloutRefWorker": None,
        "ActorRolloutRefWorker.config": None,
        "ActorRolloutRefWorker.init_model": ("self",),
    },
    "verl.workers.utils.losses": {
        "ppo_loss": ("config", "model_output", "data", "dp_group"),
        "no_padding_2_padding": None,  # imported by name: the global that we rebind
    },
    "verl.workers.utils.padding": {
        "no_padding_2_padding": ("tensor", "data"),
        "response_from_nested": ("tensor", "response_mask"),
    },
    "verl.workers.engine.base": {
        "BaseEngine": None,
        "BaseEngine.get_data_parallel_group": ("self",),
        "BaseEngine.train_batch": ("self", "data", "loss_function"),
        "EngineRegistry": None,
        "EngineRegistry._engines": None,
        "EngineRegistry.register": ("model_type", "backend", "device", "vendor"),
        "EngineRegistry.get_engine_cls": ("model_type", "backend"),
    },
    "verl.workers.engine.fsdp.transformer_impl": {
        **dict.fromkeys(
            f"FSDPEngine.{name}" for name in ("engine_config", "module", "rank", "use_remove_padding", "use_ulysses_sp")
        ),
        "FSDPEngine._build_module": ("self",),
        "FSDPEngine.get_data_parallel_group": ("self",),
        "FSDPEngine.forward_backward_batch": ("self", "data", "loss_function", "forward_only"),
        "FSDPEngine.save_checkpoint": ("self", "local_path"),
        "FSDPEngine.get_per_tensor_param": ("self",),
        "FSDPEngine.get_per_tensor_param_shard": ("self",),
        "FSDPEngineWithLMHead": None,
        "FSDPEngineWithLMHead.forward_step": ("self", "micro_batch", "loss_function", "forward_only"),
        "FSDPEngineWithLMHead.prepare_model_inputs": ("self", "micro_batch"),
        "FSDPEngineWithLMHead.prepare_model_outputs": ("self", "output", "output_args", "micro_batch"),
    },
    "verl.workers.config.actor": {
        **dict.fromkeys(("PolicyLossConfig", "ActorConfig", "ActorConfig.policy_loss", "ActorConfig.strategy"))
    },
    "verl.workers.config.engine": {"FSDPEngineConfig": None},
    "verl.experimental.agent_loop.agent_loop": {
        **dict.fromkeys(("AgentLoopBase", "AgentLoopOutput", "AgentLoopWorker")),
        "AgentLoopBase.continuous_token_builder": None,
        "AgentLoopBase.ct_merge_context_msg": ("self", "previous_messages", "updated_messages", "runtime_token_ids"),
        "AgentLoopBase.ct_merge_assistant_token": ("self", "runtime_token_ids", "assistant_token_ids"),
        "AgentLoopWorker._run_agent_loop": ("self",),
        "AgentLoopWorker._agent_loop_postprocess": ("self", "output"),
        "AgentLoopWorker._postprocess": ("self", "inputs", "input_non_tensor_batch"),
        **dict.fromkeys(("AgentLoopManager", "AgentLoopManager.config")),
        "AgentLoopManager.generate_sequences": ("self", "prompts"),
        "register": ("agent_name",),
    },
    "verl.utils.tensordict_utils": {
        "index_select_tensor_dict": ("batch", "indices"),
        "assign_non_tensor": ("tensor_dict",),
        "assign_non_tensor_stack": ("tensor_dict", "key", "val"),
        "get": ("tensordict", "key"),
        "get_non_tensor_data": ("data", "key", "default"),
    },
    "verl.utils.seqlen_balancing": {"get_seqlen_balanced_partitions": ("seqlen_list",)},
    "verl.workers.rollout.vllm_rollout.vllm_rollout": {
        "ServerAdapter": None,
        "ServerAdapter.__init__": ("self",),
        "ServerAdapter.zmq_handle": None,
    },
    "verl.workers.rollout.vllm_rollout.vllm_async_server": {"vLLMHttpServer": None, "vLLMHttpServer.__init__": ("self",)},
    "verl.workers.rollout.vllm_rollout.utils": {"vLLMColocateWorkerExtension._get_zmq_handle": ("self",)},
    "transfer_queue": {"get_client": None, "kv_batch_get": None, "kv_batch_put": None},
    "transfer_queue.metadata": dict.fromkeys(
        f"KVBatchMeta.{name}" for name in ("keys", "tags", "partition_id", "fields", "extra_info")
    ),
    "transfer_queue.interface": {
        "kv_batch_get": ("keys", "partition_id", "select_fields"),
        "kv_batch_put": ("keys", "partition_id", "fields"),
    },
    "transfer_queue.client": {
        "AsyncTransferQueueClient": None,
        "AsyncTransferQueueClient.async_put": ("self", "data"),
        "AsyncTransferQueueClient.async_kv_retrieve_meta": ("self", "keys", "partition_id"),
    },
    "verl.utils.metric.utils": {
        "reduce_metrics": ("metrics",),
        **dict.fromkeys(("Metric", "Metric.aggregate_dp", "AggregationType", "AggregationType.MAX", "AggregationType.SUM")),
    },
    "verl.utils.checkpoint.checkpoint_manager": {"find_latest_ckpt_path": ("path",)},
    "verl.utils.device": {"get_device_id": None, "get_device_name": None},
    "verl.utils.import_utils": {"import_external_libs": ("external_libs",)},
    "verl.utils.torch_functional": {"FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE": None},
    "verl.utils.model": {
        "update_model_config": ("module_config", "override_config_kwargs"),
        "load_valuehead_model": ("local_path", "torch_dtype", "model_config", "trust_remote_code"),
    },
    "verl.utils.ulysses": {
        "get_ulysses_sequence_parallel_world_size": None,
        "gather_outputs_and_unpad": ("x", "gather_dim", "unpad_dim", "padding_size"),
    },
}

_LOOPS = "verl.experimental.agent_loop.agent_loop"
SHARD = "verl.workers.engine.fsdp.transformer_impl.FSDPEngine.get_per_tensor_param_shard"
NEO = "0.9.0.dev0"
"""Version of verl's branch neo, which has RayPPOTrainer alone and stems from before 0.9.0."""
V1_MODULES = ("verl.trainer.ppo.v1.", "transfer_queue")
"""Modules of verl's V1 trainer, which begins with 0.9."""
SINCE: dict[tuple[int, ...], tuple[str, ...]] = {
    (0, 9): (
        "verl.workers.engine.base.EngineRegistry.register",
        SHARD,
        "verl.workers.utils.padding.response_from_nested",
    ),
    (0, 9, 1): tuple(
        f"{_LOOPS}.AgentLoopBase.{name}"
        for name in ("continuous_token_builder", "ct_merge_context_msg", "ct_merge_assistant_token")
    ),
}
"""What is used from a release on, or has fewer parameters before it."""
UNTIL: dict[tuple[int, ...], tuple[str, ...]] = {(0, 10): SINCE[0, 9, 1]}
"""What is used before a release: verl's main names the merges otherwise, and ours stand in their place."""


@cache
def verl_version() -> str | None:
    """Version of the installed distribution called verl (verl-agent's has the same name), or None."""
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return None


def before(*release: int) -> bool:
    """Whether the installed verl is older than this release, as in ``before(0, 9)``."""
    parts = (verl_version() or "").split(".")
    return tuple(int(part) for part in parts[: len(release)] if part.isdigit()) < release


def has_v1() -> bool:
    """Whether the installed verl runs its V1 trainer."""
    return not before(0, 9) and verl_version() != NEO


def loading() -> str:
    """The variable by which this verl loads the plugin; from 0.9 that is its default."""
    return "VERL_USE_EXTERNAL_MODULES=verl_entropy.plugin" if before(0, 9) else "VERL_USE_EXTERNAL_PLUGINS=auto"


def source(module: str) -> str | None:
    """Source text of a module of the installed verl or its queue, found without an import; None if it is not there."""
    package, *parts = module.split(".")
    root = importlib.util.find_spec(package)
    if root is None or not root.submodule_search_locations:
        return None
    base = Path(next(iter(root.submodule_search_locations)), *parts)
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    a = node.args
    return {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)} | ({"**"} if a.kwarg else set())


def _instance_attributes(function: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _names(tree: ast.Module) -> dict[str, set[str] | None]:
    """Top-level names and ``Class.member`` names of a module (``self.member = ...`` too), with the parameters of functions."""
    names: dict[str, set[str] | None] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names[prefix + node.name] = _parameters(node)
                for name in _instance_attributes(node) if prefix else ():
                    names.setdefault(prefix + name, None)
            elif isinstance(node, ast.ClassDef):
                names[prefix + node.name] = None
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    names[prefix + (alias.asname or alias.name)] = None
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        names[prefix + target.id] = None
            elif isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)
                visit(node.orelse, prefix)

    visit(tree.body, "")
    return names


def symbols() -> dict[str, dict[str, tuple[str, ...] | None]]:
    """What of ``SYMBOLS`` is used with the installed verl."""
    unused = {name for release, names in SINCE.items() if before(*release) for name in names}
    unused |= {SHARD} if verl_version() == NEO else set()
    unused |= {name for release, names in UNTIL.items() if not before(*release) for name in names}
    return {
        module: {name: parameters for name, parameters in wanted.items() if f"{module}.{name}" not in unused}
        for module, wanted in SYMBOLS.items()
        if has_v1() or not module.startswith(V1_MODULES)
    }


def missing_symbols(modules: list[str] | None = None) -> list[str]:
    """Names from ``symbols`` that the installed verl lacks, each with what is wrong; empty if all are there."""
    problems = []
    for module, wanted in symbols().items():
        if modules is not None and module not in modules:
            continue
        text = source(module)
        if text is None:
            problems.append(f"{module} (no such module)")
            continue
        names = _names(ast.parse(text))
        for name, parameters in wanted.items():
            if name not in names:
                problems.append(f"{module}.{name}")
            elif parameters and names[name] is not None:
                lacking = [p for p in parameters if p not in names[name]]
                if lacking and "**" not in names[name]:
                    problems.append(f"{module}.{name} (parameter {', '.join(lacking)})")
    return problems


def is_verl_agent() -> bool:
    """Whether the verl of the import path is verl-agent's, whatever distribution is installed beside it."""
    root = importlib.util.find_spec("verl")
    locations = () if root is None else root.submodule_search_locations or ()
    return any((Path(location).parent / "agent_system").is_dir() for location in locations)


def unsupported_reason(read: bool = True) -> str | None:
    """Why the installed verl cannot be extended, or None if it can.

    ``read``: look for every symbol in the source of a version in SUPPORTED too, for people edit their checkout.
    """
    version = verl_version()
    if is_verl_agent():
        return "this is verl-agent; start it with `python -m verl_entropy.verl_agent`"
    if version is None:
        return "verl is not installed; install it (pip install 'verl==0.9.1') beside verl-entropy"
    if version in SUPPORTED and not read:
        return None
    missing = missing_symbols()
    series = ", ".join(f"{name}x" for name in SERIES[:3])
    wanted = f"verl-entropy supports verl {', '.join(SUPPORTED)} and others of {series}. Fix: pip install 'verl=={SUPPORTED[-1]}'"
    if missing:
        return f"verl {version} lacks {'; '.join(missing)}. {wanted}"
    if version not in SUPPORTED and not version.startswith(SERIES):
        return f"verl {version} has every symbol that is needed but was never tested. {wanted}"
    return None
