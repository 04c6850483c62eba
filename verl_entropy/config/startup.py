# SPDX-License-Identifier: Apache-2.0
"""Values of verl's own keys with which an agent run cannot work (refused) or is odd (warned of), at every start and in ``validate``.

Works on plain mappings; imports neither torch nor verl. A key that is absent or null is verl's business and passes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from verl_entropy.config.plan import Plan
from verl_entropy.config.settings import ConfigError, lookup
from verl_entropy.config.spelling import did_you_mean
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS_PATH
from verl_entropy.methods import registry

ARR = "actor_rollout_ref"
AGENT_LOOPS = ("single_turn_agent", "tool_agent", "stepwise_env", "span_env", "tool_agent_branching")
"""verl's and ours; others come with ``rollout.agent.agent_loop_config_path`` or a module of the user's."""
_PRECISIONS = ("fp32", "float32", "bf16", "bfloat16", "fp16", "float16")
_ESTIMATES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_KL = (*_ESTIMATES, *(f"{name}+" for name in _ESTIMATES))
_CHECKPOINT = ("model", "optimizer", "extra", "hf_model")
# key: (words, whether a module of the user's may bring others)
_WORDS: dict[str, tuple[tuple[str, ...], bool]] = {
    "trainer.device": (("cuda", "npu", "xpu", "cpu"), True),
    "trainer.resume_mode": (("auto", "disable", "resume_path"), False),
    "trainer.v1.trainer_mode": (("sync", "colocate_async", "separate_async"), True),
    "trainer.v1.sampler.max_off_policy_strategy": (("drop", "wait"), True),
    "data.truncation": (("error", "left", "right", "middle"), False),
    "algorithm.kl_penalty": (_KL, False),
    "algorithm.kl_ctrl.type": (("fixed", "adaptive"), False),
    "algorithm.rollout_correction.rollout_is": (("token", "sequence"), False),
    f"{ARR}.rollout.name": (("vllm", "sglang", "trtllm", "hf"), True),
    f"{ARR}.rollout.mode": (("async",), False),
    f"{ARR}.rollout.multi_turn.format": (
        ("hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4"),
        True,
    ),
    f"{ARR}.rollout.multi_turn.tool_response_truncate_side": (("left", "right", "middle"), False),
    f"{ARR}.rollout.checkpoint_engine.backend": (
        ("naive", "nccl", "hccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded"),
        True,
    ),
    f"{ARR}.actor.strategy": (
        ("fsdp", "fsdp2", "fsdp_turbo", "megatron", "mindspeed", "veomni", "torchtitan", "automodel"),
        True,
    ),
    f"{ARR}.actor.kl_loss_type": (_KL, False),
    f"{ARR}.actor.fsdp_config.model_dtype": (_PRECISIONS, False),
    f"{ARR}.actor.checkpoint.save_contents": (_CHECKPOINT, True),
    f"{ARR}.actor.checkpoint.load_contents": (_CHECKPOINT, True),
    "trainer.logger": (
        *(("console", "file", "wandb", "tensorboard", "mlflow", "swanlab", "vemlp_wandb", "clearml", "trackio", "rl_insight"),),
        True,
    ),
}
"""Of verl 0.9.1."""
_ENGINE_WORDS: dict[str, tuple[str, ...]] = {
    f"{ARR}.rollout.load_format": (
        *("dummy", "auto", "safetensors", "hf", "pt", "npcache", "gguf", "bitsandbytes", "mistral", "sharded_state"),
        *("tensorizer", "runai_streamer", "fastsafetensors", "layered", "remote", "flash_rl"),
    ),
    f"{ARR}.rollout.logprobs_mode": ("processed_logprobs", "processed_logits", "raw_logprobs", "raw_logits"),
}
"""Words that vLLM and SGLang own and add to: others are a warning."""
REWARD_MANAGERS = ("naive", "dapo", "gdpo", "rate_limited", "remote", "batch", "prime")
"""Those that verl 0.7 to 0.9 register."""
HIGH_LR, LORA_FACTOR = 1e-3, 10
"""Learning rates of RL on language models lie between 1e-7 and 1e-5, ten times that with LoRA; a hundred times more is a slip."""
HIGH_COEFF = 0.1
"""Of an entropy bonus per nat; the papers use .001 to .01."""

# key: (least, a value to set): whole numbers
_COUNTS: dict[str, tuple[int, str]] = {
    "data.train_batch_size": (1, "64"),
    "data.gen_batch_size": (1, "data.train_batch_size"),
    "data.max_prompt_length": (1, "2048"),
    "data.max_response_length": (1, "512"),
    "data.dataloader_num_workers": (0, "8"),
    "data.filter_overlong_prompts_workers": (1, "1"),
    "data.seed": (0, "null"),
    "reward.num_workers": (0, "8"),
    "trainer.n_gpus_per_node": (1, "1 (workers a node; on the CPU backend too)"),
    "trainer.nnodes": (1, "1"),
    "trainer.total_epochs": (1, "1 (with none, nothing is trained)"),
    "trainer.total_training_steps": (1, "null, for total_epochs"),
    "trainer.v1.sampler.max_off_policy_threshold": (1, "1"),
    f"{ARR}.rollout.n": (1, "8"),
    f"{ARR}.rollout.seed": (0, "42"),
    f"{ARR}.rollout.prompt_length": (1, "data.max_prompt_length"),
    f"{ARR}.rollout.response_length": (1, "512"),
    f"{ARR}.rollout.max_model_len": (2, "null, for the model's"),
    f"{ARR}.rollout.max_num_seqs": (1, "256"),
    f"{ARR}.rollout.max_num_batched_tokens": (1, "8192"),
    f"{ARR}.rollout.tensor_model_parallel_size": (1, "1"),
    f"{ARR}.rollout.data_parallel_size": (1, "1"),
    f"{ARR}.rollout.pipeline_model_parallel_size": (1, "1"),
    f"{ARR}.rollout.agent.num_workers": (1, "8"),
    f"{ARR}.rollout.multi_turn.max_parallel_calls": (1, "1"),
    f"{ARR}.rollout.val_kwargs.n": (1, "1"),
    f"{ARR}.rollout.log_prob_micro_batch_size_per_gpu": (1, "8"),
    f"{ARR}.rollout.log_prob_max_token_len_per_gpu": (1, "16384"),
    f"{ARR}.actor.ppo_epochs": (1, "1"),
    f"{ARR}.actor.ppo_mini_batch_size": (1, "data.train_batch_size or a part of it"),
    f"{ARR}.actor.ppo_micro_batch_size_per_gpu": (1, "8"),
    f"{ARR}.actor.ppo_max_token_len_per_gpu": (1, "16384"),
    f"{ARR}.actor.ulysses_sequence_parallel_size": (1, "1"),
    f"{ARR}.model.lora_rank": (0, "0 (no LoRA)"),
}

# key: (test of a usable value, what is allowed, a value to set)
_RANGES: tuple[tuple[str, Any, str, str], ...] = (
    (f"{ARR}.rollout.temperature", lambda v: v > 0, "above 0 (log-probs are of logits / temperature: at 0 all are NaN)", "1.0"),
    (f"{ARR}.rollout.top_p", lambda v: 0 < v <= 1, "above 0, at most 1", "1.0"),
    (f"{ARR}.rollout.top_k", lambda v: v >= -1, "-1 (all words), or a number of words", "-1"),
    (f"{ARR}.rollout.val_kwargs.temperature", lambda v: v >= 0, "at least 0", "0"),
    (f"{ARR}.rollout.val_kwargs.top_p", lambda v: 0 < v <= 1, "above 0, at most 1", "1.0"),
    (f"{ARR}.rollout.val_kwargs.top_k", lambda v: v >= -1, "-1 (all words), or a number of words", "-1"),
    (f"{ARR}.rollout.gpu_memory_utilization", lambda v: 0 < v <= 1, "above 0, at most 1", "0.5"),
    (f"{ARR}.actor.optim.lr", lambda v: v >= 0, "at least 0", "1e-6"),
    (f"{ARR}.actor.optim.min_lr_ratio", lambda v: 0 <= v <= 1, "from 0 to 1", "0.0"),
    (f"{ARR}.actor.optim.weight_decay", lambda v: v >= 0, "at least 0", "0.01"),
    (f"{ARR}.actor.optim.clip_grad", lambda v: v > 0, "above 0 (0 makes every gradient zero)", "1.0"),
    (f"{ARR}.actor.grad_clip", lambda v: v > 0, "above 0 (0 makes every gradient zero)", "1.0"),
    (f"{ARR}.actor.clip_ratio", lambda v: v >= 0, "at least 0", "0.2"),
    (f"{ARR}.actor.clip_ratio_low", lambda v: v >= 0, "at least 0", "0.2"),
    (f"{ARR}.actor.clip_ratio_high", lambda v: v >= 0, "at least 0", "0.2"),
    (f"{ARR}.actor.clip_ratio_c", lambda v: v > 1, "above 1 (verl's dual clip stops at the first update otherwise)", "3.0"),
    (f"{ARR}.actor.fsdp_config.fsdp_size", lambda v: v == -1 or v >= 1, "-1 (all GPUs), or a number of GPUs", "-1"),
    ("data.train_max_samples", lambda v: v == -1 or v >= 1, "-1 (all), or a number of samples", "-1"),
    ("algorithm.gamma", lambda v: 0 <= v <= 1, "from 0 to 1", "1.0"),
    ("algorithm.lam", lambda v: 0 <= v <= 1, "from 0 to 1", "1.0"),
)


_FILES = (
    "data.custom_cls.path",
    "reward.custom_reward_function.path",
    "trainer.resume_from_path",
    f"{ARR}.rollout.agent.agent_loop_config_path",
    f"{ARR}.rollout.multi_turn.tool_config_path",
    f"{ARR}.rollout.multi_turn.function_tool_path",
)


def _number(raw: Mapping[str, Any], path: str) -> float | None:
    """A number of the configuration, also as Hydra leaves 1e-6 (text); None for everything else."""
    value = lookup(raw, path)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def refuse(plan: Plan, raw: Mapping[str, Any]) -> None:
    """Raise ConfigError on the first value with which the run cannot work: key, value, what is allowed, what to set."""
    for path, usable, allowed, fix in _RANGES:
        value = _number(raw, path)
        if value is not None and not (math.isfinite(value) and usable(value)):
            raise ConfigError(f"{path}={value:g}: must be {allowed}. Set {path}={fix}.")
    for path, (least, fix) in _COUNTS.items():
        given, value = lookup(raw, path), _number(raw, path)
        text = isinstance(given, str) and value is None and "?" not in given
        if text or (value is not None and not (math.isfinite(value) and value == int(value) >= least)):
            raise ConfigError(f"{path}={given}: must be a whole number, at least {least}. Set {path}={fix}.")
    _refuse_sizes(raw)
    _refuse_words(raw)
    _refuse_combinations(raw)
    _refuse_folders(plan, raw)


def _refuse_sizes(raw: Mapping[str, Any]) -> None:
    gpus = (_number(raw, "trainer.n_gpus_per_node") or 1) * (_number(raw, "trainer.nnodes") or 1)
    for key in (f"{ARR}.rollout.tensor_model_parallel_size", f"{ARR}.actor.ulysses_sequence_parallel_size"):
        parallel = _number(raw, key) or 1
        if parallel > gpus:
            raise ConfigError(
                f"{key}={parallel:g}: more than the {gpus:g} GPU(s) of trainer.n_gpus_per_node * trainer.nnodes. Set {key}={gpus:g} or less."
            )
    sampler = [f"{ARR}.rollout.{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model")]
    sizes = [_number(raw, key) or 1 for key in sampler]
    if math.prod(sizes) > gpus and lookup(raw, "trainer.v1.trainer_mode") != "separate_async":
        raise ConfigError(
            f"{', '.join(f'{key}={size:g}' for key, size in zip(sampler, sizes, strict=True))}: one sampler then takes {math.prod(sizes):g} "
            f"GPUs, and trainer.n_gpus_per_node * trainer.nnodes is {gpus:g}. Set one of them lower."
        )
    shard = _number(raw, f"{ARR}.actor.fsdp_config.fsdp_size") or -1
    if 0 < shard < gpus and gpus % shard:
        raise ConfigError(
            f"{ARR}.actor.fsdp_config.fsdp_size={shard:g}: does not divide the {gpus:g} GPU(s) of trainer.n_gpus_per_node * trainer.nnodes. "
            "Set it to a divisor, or -1 for all."
        )
    longest, prompt = _number(raw, f"{ARR}.rollout.max_model_len"), _number(raw, "data.max_prompt_length")
    if longest is not None and prompt is not None and prompt >= longest:
        raise ConfigError(
            f"{ARR}.rollout.max_model_len={longest:g}: a prompt of data.max_prompt_length={prompt:g} leaves no token for the response. "
            f"Set max_model_len to data.max_prompt_length + data.max_response_length, or null."
        )


def _refuse_words(raw: Mapping[str, Any]) -> None:
    loop = lookup(raw, f"{ARR}.rollout.agent.default_agent_loop")
    if isinstance(loop, str) and loop not in AGENT_LOOPS and not _foreign(raw):
        raise ConfigError(
            f"{ARR}.rollout.agent.default_agent_loop={loop}: no such agent loop.{did_you_mean(loop, AGENT_LOOPS)} Known: "
            f"{', '.join(AGENT_LOOPS)}; one of yours comes with {ARR}.rollout.agent.agent_loop_config_path."
        )
    module = lookup(raw, f"{ARR}.rollout.checkpoint_engine.custom_backend_module")
    for path, (known, more) in _WORDS.items():
        value = lookup(raw, path) if not (module and path.endswith("checkpoint_engine.backend")) else None
        for word in [value] if isinstance(value, str) else value if isinstance(value, list) else ():
            if word not in (*known, "tracking", "???") and not (
                more and _foreign(raw)
            ):  # verl's old word for wandb; left to be given
                raise ConfigError(f"{path}={word}: not known.{did_you_mean(str(word), known)} Set one of {', '.join(known)}.")


def _foreign(raw: Mapping[str, Any]) -> bool:
    """Whether a module of the user's, or another package's plugin, may register words of its own."""
    given = (lookup(raw, f"{ARR}.{key}") for key in ("rollout.agent.agent_loop_config_path", "model.external_lib"))
    if any(given) or os.environ.get("VERL_USE_EXTERNAL_MODULES"):
        return True
    return any(not entry.value.startswith("verl_entropy") for entry in metadata.entry_points(group="verl.plugins"))


def _refuse_combinations(raw: Mapping[str, Any]) -> None:
    resume = lookup(raw, "trainer.resume_from_path")
    if lookup(raw, "trainer.resume_mode") == "resume_path" and not (isinstance(resume, str) and "global_step_" in resume):
        raise ConfigError(
            f"trainer.resume_from_path={resume}: trainer.resume_mode=resume_path needs the folder global_step_N of a checkpoint. Give it, or "
            "set trainer.resume_mode=auto."
        )
    if lookup(raw, "algorithm.filter_groups.enable", False) and not lookup(raw, "algorithm.filter_groups.metric"):
        raise ConfigError(
            "algorithm.filter_groups.metric=null: with filter_groups.enable=True verl must know what a group is judged by. "
            "Set algorithm.filter_groups.metric=acc, or enable=False."
        )
    horizon = _number(raw, "algorithm.kl_ctrl.horizon")
    if lookup(raw, "algorithm.kl_ctrl.type") == "adaptive" and horizon is not None and horizon <= 0:
        raise ConfigError(f"algorithm.kl_ctrl.horizon={horizon:g}: must be above 0. Set algorithm.kl_ctrl.horizon=10000.")
    alpha = _number(raw, f"{ARR}.model.lora_alpha")
    if (_number(raw, f"{ARR}.model.lora_rank") or 0) > 0 and alpha is not None and alpha <= 0:
        raise ConfigError(f"{ARR}.model.lora_alpha={alpha:g}: at 0 the adapter does nothing. Set {ARR}.model.lora_alpha=16.")
    if "model" in lookup(raw, ARR, {}) and not lookup(raw, f"{ARR}.model.path"):
        raise ConfigError(f"{ARR}.model.path=null: no model. Give a folder or a name on the hub.")
    for key in ("train_files", "val_files"):
        if key in lookup(raw, "data", {}) and not lookup(raw, f"data.{key}") and not lookup(raw, "data.custom_cls.path"):
            raise ConfigError(
                f"data.{key}={lookup(raw, f'data.{key}')}: no data. Give a parquet file (`verl-entropy data` makes one)."
            )


def _refuse_folders(plan: Plan, raw: Mapping[str, Any]) -> None:
    if plan.active and plan.diagnostics.enabled:
        _refuse_folder(f"{DIAGNOSTICS_PATH}.run_file.folder", plan.diagnostics.run_file.folder)
    saves, folder = (_number(raw, "trainer.save_freq") or 0) > 0, lookup(raw, "trainer.default_local_dir")
    # A folder far from any that is here is another machine's: `validate` runs anywhere.
    if saves and isinstance(folder, str) and Path(folder).expanduser().absolute().parent.exists():
        _refuse_folder("trainer.default_local_dir", folder)


def _refuse_folder(name: str, folder: Any) -> None:
    """A folder, or the nearest folder above it that exists, must take new files."""
    if not isinstance(folder, str) or not folder.strip() or "://" in folder:
        return
    path = Path(folder).expanduser().absolute()
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    key = f"{name}={folder}"
    if not there.is_dir():
        raise ConfigError(f"{key}: {there} is a file. Give another folder.")
    kernel = str(there).startswith(("/proc", "/sys"))  # root may do everything there but make files
    if kernel or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: {there} cannot be written to. Give another folder, or change its rights.")


# ----------------------------------------------------------------------------- warnings


def odd(plan: Plan, raw: Mapping[str, Any]) -> Iterator[str]:
    """Values that work and are hardly meant, each with the fix."""
    yield from _odd_lengths(raw)
    yield from _odd_files(raw)
    yield from _odd_rollout(raw)
    yield from _odd_training(raw)
    yield from _odd_filter(raw)
    yield from _odd_methods(plan, raw)


def _odd_lengths(raw: Mapping[str, Any]) -> Iterator[str]:
    for ours, theirs in (("data.max_response_length", "response_length"), ("data.max_prompt_length", "prompt_length")):
        one, other = _number(raw, ours), _number(raw, f"{ARR}.rollout.{theirs}")
        if one is not None and other is not None and one != other:
            yield (
                f"{ours}={one:g}, but {ARR}.rollout.{theirs}={other:g}: the sampler and the agent loop go by the second. Leave "
                f"rollout.{theirs} out (it follows {ours}), or make them equal."
            )
    prompt, response = _sizes(raw)
    longest = _number(raw, f"{ARR}.rollout.max_model_len")
    if longest is not None and prompt + response > longest:
        yield (
            f"{ARR}.rollout.max_model_len={longest:g}: below data.max_prompt_length + response length = {prompt:g} + {response:g}, so "
            f"responses to long prompts are cut. Set it to {prompt + response:g} or null, or shorten the others."
        )
    positions, scaled = _positions(lookup(raw, f"{ARR}.model.path"))
    if positions is not None and not scaled and max(longest or 0, prompt + response) > positions:
        yield (
            f"data.max_prompt_length + response length = {prompt:g} + {response:g}"
            + (f", rollout.max_model_len={longest:g}" if longest else "")
            + f": the model has {positions} positions (max_position_embeddings); what is longer is cut, or the sampler does not "
            "start. Shorten them, or take a model with a longer context."
        )


def _sizes(raw: Mapping[str, Any]) -> tuple[float, float]:
    """Most tokens of a prompt and of a response, as the sampler and the agent loop take them."""
    prompt, response = (
        _number(raw, f"{ARR}.rollout.{part}_length") or _number(raw, f"data.max_{part}_length") or 0
        for part in ("prompt", "response")
    )
    return prompt, response


def _positions(model: Any) -> tuple[int | None, bool]:
    """Positions of the model in a local folder, and whether they are scaled (rope_scaling); (None, False) where not at hand."""
    if not isinstance(model, str):
        return None, False
    try:
        content = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, False
    content = content if isinstance(content, dict) else {}
    text = content.get("text_config")
    text = text if isinstance(text, dict) else content
    found = text.get("max_position_embeddings")
    return (found if isinstance(found, int) and not isinstance(found, bool) else None), bool(text.get("rope_scaling"))


def _absent(path: Any) -> bool:
    """A path that is not on this machine; an address or ``pkg://`` is none."""
    return isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists()


def _odd_files(raw: Mapping[str, Any]) -> Iterator[str]:
    for key in ("train_files", "val_files"):
        files = lookup(raw, f"data.{key}")
        for file in [files] if isinstance(files, str) else files or ():
            if _absent(file):
                yield (
                    f"data.{key}: {file} is not on this machine. Make it (`verl-entropy data`), or mend the path; without it the run "
                    "stops when it reads its data."
                )
    for key in _FILES:
        if _absent(file := lookup(raw, key)):
            yield f"{key}={file}: not on this machine. Mend the path; without it the run stops when it reads that."
    for role in (f"{ARR}.model.path", "critic.model.path"):
        model = lookup(raw, role)
        if role.startswith("critic") and not lookup(raw, "critic.enable", False):
            continue
        local = isinstance(model, str) and (model.startswith(("/", "./", "../", "~/")) or model.count("/") > 1)
        if local and "://" not in model and "~/models/" not in model and not Path(model).expanduser().exists():
            yield f"{role}={model}: no such folder on this machine. Mend the path, or give a model's name on the hub."


def _odd_rollout(raw: Mapping[str, Any]) -> Iterator[str]:
    rollout = f"{ARR}.rollout"
    for path, known in _ENGINE_WORDS.items():
        word = lookup(raw, path)
        if isinstance(word, str) and word not in known:
            yield f"{path}={word}: no word that vLLM or SGLang is known to have.{did_you_mean(word, known)} Known: {', '.join(known)}."
    manager = lookup(raw, "reward.reward_manager", {})
    if lookup(manager, "source") == "register" and lookup(manager, "name") not in REWARD_MANAGERS:
        name = str(lookup(manager, "name"))
        yield f"reward.reward_manager.name={name}: verl registers none of that name.{did_you_mean(name, REWARD_MANAGERS)}"
    mode, temperature = lookup(raw, f"{rollout}.logprobs_mode"), _number(raw, f"{rollout}.temperature")
    if mode in ("raw_logprobs", "raw_logits") and (temperature not in (None, 1.0) or mode == "raw_logits"):
        yield (
            f"{rollout}.logprobs_mode={mode}: the sampler's values are then not the log-probs of logits / temperature={temperature or 1:g} that "
            "the trainer has. Set it to processed_logprobs."
        )
    if lookup(raw, f"{rollout}.ignore_eos", False) is True:
        yield f"{rollout}.ignore_eos=True: every response runs to its full length, past its end token. Set it to False."
    greedy = not lookup(raw, f"{rollout}.val_kwargs.do_sample", False) or _number(raw, f"{rollout}.val_kwargs.temperature") == 0.0
    repeats = _number(raw, f"{rollout}.val_kwargs.n") or 1
    if repeats > 1 and greedy:
        yield (
            f"{rollout}.val_kwargs.n={repeats:g}: without sampling the responses to one prompt are alike. Set val_kwargs.do_sample=True and "
            "val_kwargs.temperature=1.0, or val_kwargs.n=1."
        )
    longest = sum(_sizes(raw))
    for switch, key in (
        (f"{ARR}.actor.use_dynamic_bsz", f"{ARR}.actor.ppo_max_token_len_per_gpu"),
        (f"{rollout}.log_prob_use_dynamic_bsz", f"{rollout}.log_prob_max_token_len_per_gpu"),
    ):
        most = (_number(raw, key) or math.inf) * (_number(raw, f"{ARR}.actor.ulysses_sequence_parallel_size") or 1)
        if lookup(raw, switch, False) and most < longest:
            yield (
                f"{key}={_number(raw, key):g}: below prompt + response length = {longest:g}; verl stops at the first "
                f"row that is longer. Set it to {longest:g} or more."
            )


def _odd_training(raw: Mapping[str, Any]) -> Iterator[str]:
    actor = f"{ARR}.actor"
    batch, mini = _number(raw, "data.train_batch_size"), _number(raw, f"{actor}.ppo_mini_batch_size")
    if batch is not None and mini is not None and batch < mini and not lookup(raw, "algorithm.filter_groups.enable", False):
        # Without dynamic batches verl refuses it; with them it fills the mini-batch with rows that train nothing.
        yield (
            f"data.train_batch_size={batch:g}: below {actor}.ppo_mini_batch_size={mini:g}, so there is no whole mini-batch (both "
            f"count prompts). Set {actor}.ppo_mini_batch_size={batch:g} or less."
        )
    elif batch is not None and mini and batch % mini:
        yield (
            f"data.train_batch_size={batch:g}: no multiple of {actor}.ppo_mini_batch_size={mini:g}, so the last mini-batch is filled up with "
            f"rows that train nothing. Set {actor}.ppo_mini_batch_size to a divisor."
        )
    ratio = _number(raw, f"{actor}.optim.lr_warmup_steps_ratio")
    if ratio is not None and ratio >= 1:
        yield f"{actor}.optim.lr_warmup_steps_ratio={ratio:g}: the learning rate never gets to optim.lr. Set it to 0.1 or less."
    lr = _number(raw, f"{actor}.optim.lr")
    rank = max(_number(raw, f"{ARR}.model.lora_rank") or 0, _number(raw, f"{ARR}.model.lora.rank") or 0)
    if lr is not None and lr > HIGH_LR * (LORA_FACTOR if rank else 1):
        yield f"{actor}.optim.lr={lr:g}: RL of language models uses 1e-7 to 1e-5 (LoRA to 1e-4); the policy will be lost. Set it to 1e-6."
    if lr == 0.0:
        yield f"{actor}.optim.lr=0: nothing is trained. Set it to 1e-6."
    older, norm = _number(raw, f"{actor}.grad_clip"), _number(raw, f"{actor}.optim.clip_grad")
    if older is not None and norm is not None and older != norm:
        yield f"{actor}.grad_clip={older:g}: verl's engines go by {actor}.optim.clip_grad={norm:g}. Set that."
    if lookup(raw, f"{actor}.use_kl_loss", False) and _number(raw, f"{actor}.kl_loss_coef") == 0.0:
        yield f"{actor}.kl_loss_coef=0: the reference policy is computed and does nothing. Set {actor}.use_kl_loss=False, or a coefficient."
    warmup = _number(raw, "trainer.critic_warmup") or 0
    if warmup > 0 and lookup(raw, "algorithm.adv_estimator") != "gae" and not lookup(raw, "critic.enable"):
        yield f"trainer.critic_warmup={warmup:g}: there is no critic, and the policy is not trained before that step. Set it to 0."
    usual = _number(raw, f"{actor}.clip_ratio")
    low, high = (_number(raw, f"{actor}.clip_ratio_{side}") for side in ("low", "high"))
    low, high = (usual if low is None else low), (usual if high is None else high)
    if high is not None and high < (low or 0.0):
        yield (
            f"{actor}.clip_ratio_high={high:g}: below clip_ratio_low={low:g}, so unlikely tokens can fall further than rise, which lowers "
            f"entropy{' (at 0 none can rise)' if high == 0 else ''}. Set clip_ratio_high to at least clip_ratio_low."
        )
    if low is not None and low >= 1.0:
        yield f"{actor}.clip_ratio_low={low:g}: 1 - clip_ratio_low is not above 0, so nothing is clipped below. Set it below 1."
    if high is not None and high > 1.0:
        yield f"{actor}.clip_ratio_high={high:g}: hardly anything is clipped above. Usual: 0.2 to 0.3."
    coeff = _number(raw, f"{actor}.entropy_coeff")
    if coeff is not None and (coeff < 0 or coeff > HIGH_COEFF):
        what = "lowers entropy" if coeff < 0 else "outweighs the policy's loss"
        yield f"{actor}.entropy_coeff={coeff:g}: a bonus of this size {what}. Usual: 0 to 0.01."
    for key in (f"{actor}.kl_loss_coef", "algorithm.kl_ctrl.kl_coef"):
        if (_number(raw, key) or 0.0) < 0:
            yield f"{key}={_number(raw, key):g}: rewards distance from the reference policy. Set it to at least 0."


def _odd_filter(raw: Mapping[str, Any]) -> Iterator[str]:
    """Dynamic sampling, of which each trainer does another part. verl-agent's (it alone has ``env``) does what its keys say."""
    key = "algorithm.filter_groups"
    if not lookup(raw, f"{key}.enable", False) or lookup(raw, "env.env_name"):
        return
    if not lookup(raw, "trainer.use_v1", False):
        yield (
            f"{key}.enable=True: verl's RayPPOTrainer does not read it and keeps every group. Set trainer.use_v1=True (verl 0.9), or "
            "enable=False."
        )
        return
    most = _number(raw, f"{key}.max_num_gen_batches") or 0
    if most > 0:
        yield (
            f"{key}.max_num_gen_batches={most:g}: verl's V1 trainer does not read it. Where all groups stay alike (all failed, say), it samples "
            "for ever: look at training/filter_groups/evicted_samples, and set max_num_gen_batches=0."
        )
    loop = lookup(raw, f"{ARR}.rollout.agent.default_agent_loop")
    if lookup(raw, f"{key}.metric") == "reward" and loop == "stepwise_env":
        yield (
            f"{key}.metric=reward: with {loop} a row is a turn, whose reward is not the episode's, so hardly a group is left out. Set "
            f"{key}.metric=acc."
        )


def _odd_methods(plan: Plan, raw: Mapping[str, Any]) -> Iterator[str]:
    names = {choice.name for choice in plan.choices}
    for choice in plan.choices:
        for other in names & set(choice.method.doubtful_with):
            yield f"{choice.name} with {other}: {choice.method.doubtful_with[other]}"
        for f in dataclasses.fields(choice.method.settings):
            value, usual = getattr(choice.settings, f.name), f.metadata.get("usual")
            if usual is not None and value is not None and value > usual:
                yield f"{choice.method.path}.{f.name}={value:g}: outweighs the policy's loss. The paper's: {f.default:g}."
        yield from registry.doubts(choice.method, choice.settings, raw)
