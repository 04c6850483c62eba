# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy evaluate``: success of a checkpoint or an endpoint on the splits of an environment."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from verl_entropy.commands.output import json_option, print_json, to_json
from verl_entropy.config.settings import ConfigError

TASKS = 128
"""Tasks of a split where ``--count`` is left out: verl-agent's validation."""


def _count(text: str) -> int | str:
    """The value of ``--count``."""
    return text if text == "all" else int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "Every task of the split is played --seeds times with the prompts and the parsing of the step-wise agent loop. Intervals are "
        "of 95 %: Wilson's where each task is played once, else the bootstrap over tasks. pass@k is the unbiased estimate."
    )
    parser.add_argument("checkpoint", nargs="?", help="Hugging Face checkpoint, sampled on the CPU (or use --endpoint)")
    parser.add_argument(
        "--endpoint", metavar="URL", help="OpenAI-compatible server: vLLM, SGLang, verl's rollout server, a provider"
    )
    parser.add_argument("--env", help="environment; left out: that of --recipe")
    parser.add_argument("--split", action="append", required=True, help="a split; several: repeat it (IID and OOD)")
    parser.add_argument("--seeds", type=int, default=1, help="passes over the tasks; pass@k up to this k (default 1)")
    parser.add_argument(
        "--count", type=_count, help=f"tasks of each split, or all; left out: {TASKS} of them, or all of a smaller split"
    )
    parser.add_argument("--seed", type=int, default=0, help="which tasks and which random numbers (default 0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the JSON here, with every episode")
    json_option(parser)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--temperature", type=float, help="default: the recipe's, else 0.4 (verl-agent's validation)")
    sampling.add_argument("--top-p", type=float, default=1.0)
    sampling.add_argument("--max-tokens", type=int, help="tokens of one answer; default: data.max_response_length")
    sampling.add_argument("--concurrency", type=int, help="episodes at once; default: what the environment says, usually 64")
    server = parser.add_argument_group("with --endpoint")
    server.add_argument("--model", help="its model; left out: the only one it serves")
    server.add_argument(
        "--no-neutral",
        action="store_true",
        help="do not send top_k, min_p and repetition_penalty: for a provider that refuses them",
    )
    server.add_argument("--tokenizer", help="send token ids of this checkpoint's chat template, cut to data.max_prompt_length")
    settings = parser.add_argument_group("settings of the agent loop")
    settings.add_argument("--recipe", metavar="GROUP=NAME", help="take them from a recipe, for example seal/alfworld=grpo")
    settings.add_argument("--recipes", default="recipes", help="folder of the recipes (default recipes)")
    more = {"nargs": "+", "action": "extend", "default": [], "metavar": "KEY=VALUE"}
    settings.add_argument("--set", dest="overrides", help="data.env.* and data.max_prompt_length", **more)


def run(args: argparse.Namespace) -> int:
    """Play, print and write; 0 if all is well."""
    from verl_entropy.commands.data import DEFAULTS, read_settings
    from verl_entropy.data import source
    from verl_entropy.evaluate.summary import summarise, table
    from verl_entropy.files import write_atomic

    _check(args)
    found = read_settings(args.env, args.overrides, args.recipe, args.recipes)
    _check_loop(found.agent_loop)
    for key, value in DEFAULTS.items():
        found.data[key] = found.data.get(key) or value
    if args.concurrency is not None:
        found.data["env"]["num_envs"] = args.concurrency
    args.temperature = found.temperature if args.temperature is None else args.temperature
    args.max_tokens = found.data["max_response_length"] if args.max_tokens is None else args.max_tokens
    settings = found.agent()
    splits, said = [], []
    for split in args.split:
        tasks, total = source.some_tasks(settings.name, split, args.count, TASKS, args.seed, settings.kwargs)
        splits.append((split, tasks))
        many = f"{len(tasks)} of {total or 'any number of'} tasks (--count), {args.seeds} pass(es) (--seeds)"
        said.append(f"{split}: {many}: {len(tasks) * args.seeds} episodes")
    started = time.monotonic()
    outcomes, sent = asyncio.run(_play(args, found, settings, splits, said))
    result = {
        "environment": settings.name,
        "policy": args.endpoint or args.checkpoint,
        "sampling": sent,
        "seeds": args.seeds,
        **summarise(outcomes, time.monotonic() - started),
    }
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(args.out, to_json({**result, "outcomes": [vars(o) for o in outcomes]}).encode() + b"\n")
    if args.json:
        print_json(result)
    else:
        print(_text(result, table(result)))
    return 0


def _check(args: argparse.Namespace) -> None:
    if bool(args.checkpoint) == bool(args.endpoint):
        raise ConfigError("checkpoint, --endpoint: give one of them.")
    for key, value in (("seeds", args.seeds), ("concurrency", args.concurrency)):
        if value is not None and value < 1:
            raise ConfigError(f"--{key}={value}: must be at least 1.")
    if args.env is None and args.recipe is None:
        raise ConfigError("--env: name the environment, or take it from --recipe.")
    if args.checkpoint:
        _check_checkpoint(Path(args.checkpoint))


def _check_loop(name: str) -> None:
    from verl_entropy.evaluate.play import POLICIES

    if name not in POLICIES:
        key = "actor_rollout_ref.rollout.agent.default_agent_loop"
        raise ConfigError(f"{key}={name}: evaluate plays {' and '.join(POLICIES)} only. Set one, or give another --recipe.")


def _check_checkpoint(path: Path) -> None:
    if (path / "actor").is_dir():
        raise ConfigError(
            f"{path}: verl's own checkpoint, in shards. Merge it first: `python -m verl.model_merger merge --backend fsdp "
            f"--local_dir {path}/actor --target_dir FOLDER` (after `verl-entropy strip-head` if it holds a SEAL head)."
        )
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{path}: no Hugging Face checkpoint (no config.json there). Give the folder of one, or --endpoint URL."
        )


async def _play(args: argparse.Namespace, found: Any, settings: Any, splits: list, said: list) -> tuple[list, dict[str, Any]]:
    """The outcomes, and the sampling values that they were drawn with."""
    from tqdm import tqdm

    from verl_entropy.agent.pool import PoolBroken
    from verl_entropy.agent.template import answer_tags, end_texts
    from verl_entropy.commands.data import load_tokenizer
    from verl_entropy.data.expert_turns import TurnWriter, prompt_builder
    from verl_entropy.evaluate.play import Ask, play
    from verl_entropy.evaluate.samplers import Checkpoint, Endpoint, Sampling

    limit, path = found.data["max_prompt_length"], args.tokenizer or args.checkpoint
    tokenizer = load_tokenizer(path) if path else None
    special = set(tokenizer.all_special_tokens) if tokenizer else set()
    tags = answer_tags(settings)
    sampling = Sampling(args.temperature, args.top_p, args.max_tokens, _closing_tag(settings, tokenizer))
    tokenize = None
    if tokenizer is not None:
        tokenize = TurnWriter(settings, tokenizer, limit, args.max_tokens, found.data.get("apply_chat_template_kwargs")).tokenize
    keep_special = bool(special & tags)
    ends = end_texts(tokenizer, settings) if keep_special else ()
    if args.endpoint:
        sampler: Any = Endpoint(
            args.endpoint,
            sampling,
            model=args.model,
            tokens=tokenizer is not None,
            concurrency=args.concurrency or 64,
            keep_special=keep_special,
            neutral=not args.no_neutral,
            think_tag=settings.think_tag,
            thought_opened=settings.think_in_prompt,
            end_texts=ends,
        )
    else:
        sampler = Checkpoint(args.checkpoint, tokenizer, sampling, limit, keep_special=keep_special, end_texts=ends)
    chat = limit + found.data["max_response_length"]
    ask = Ask(prompt_builder(settings), sampler, limit, chat, tokenize, found.agent_loop)
    print(*said, sep="\n", file=sys.stderr if args.json else sys.stdout, flush=True)
    episodes = args.seeds * sum(len(tasks) for _, tasks in splits)
    try:
        with tqdm(total=episodes, unit="episode", disable=None) as bar:  # None: not where stderr is no terminal
            return await play(settings, splits, ask, samples=args.seeds, seed=args.seed, tick=bar.update), sampler.sent
    except PoolBroken as error:
        raise ConfigError(f"--env={settings.name}: {error}") from error
    finally:
        sampler.close()


def _closing_tag(settings: Any, tokenizer: Any) -> tuple[int, ...]:
    """Where ``data.env.stop_at_action`` stops an answer."""
    if not settings.stop_at_action:
        return ()
    tags = [tokenizer.encode(f"</{tag}>", add_special_tokens=False) for tag in settings.answer_tags] if tokenizer else []
    if not tags or any(len(ids) != 1 for ids in tags):
        raise ConfigError("data.env.stop_at_action=True: needs --tokenizer, and closing tags that are one token of it each.")
    return tuple(ids[0] for ids in tags)


def _text(result: dict[str, Any], table: str) -> str:
    speed = result["throughput"]
    tokens = f", {speed['tokens_per_s']:.0f} tokens/s" if speed["tokens_per_s"] else ""
    methods = ", ".join(dict.fromkeys(v["interval_method"] for v in result["splits"].values()))
    lines = [
        table,
        f"intervals: {methods}; temperature {result['sampling']['temperature']:g}, {result['seeds']} pass(es) over the tasks",
    ]
    lines.append(
        f"{speed['episodes_per_s']:.2f} episodes/s, {speed['turns_per_s']:.1f} turns/s{tokens} in {speed['seconds']:.1f} s"
    )
    cut = max((v["cut_answers"] or 0.0 for v in result["splits"].values()), default=0.0)
    if cut:
        lines.append(
            f"up to {cut:.1%} of a split's answers were cut by --max-tokens={result['sampling']['max_tokens']} and not executed"
        )
    failures = sum(v["environment_failures"] for v in result["splits"].values())
    if failures:
        lines.append(f"{failures} episodes had no working environment and count as failures")
    return "\n".join(lines)
