# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy data``: data sets of an environment for verl's RL and SFT trainers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_entropy.commands.output import json_option, print_json
from verl_entropy.config.settings import ConfigError

DEFAULTS = {"max_prompt_length": 2048, "max_response_length": 512}
"""Token limits where neither a recipe nor an override gives them: those of the papers' ALFWorld and ScienceWorld runs."""

MANY = 500
"""Episodes of a held-out split beyond which a validation takes long."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.description = (
        "DIR/SPLIT.parquet gets a row per episode, which the agent loops of verl-entropy play. With --expert, "
        "DIR/SPLIT_expert.parquet gets a row per turn of expert episodes, as the very tokens of the step-wise agent loop, for "
        "verl's SFT trainer with data.custom_cls.path=pkg://verl_entropy.data.sft_dataset data.custom_cls.name=TokenDataset."
    )
    parser.add_argument("name", help="environment: a name of verl_entropy.envs, or package.module:Class")
    parser.add_argument("--split", required=True, help="a split of the environment")
    parser.add_argument("--count", type=int, help="episodes; left out: the whole split")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the files")
    parser.add_argument("--seed", type=int, default=0, help="which episodes are drawn, where there is a choice (default 0)")
    loops = ("stepwise_env", "span_env")
    parser.add_argument("--agent", choices=loops, help="agent loop of the RL rows (default: the recipe's, else stepwise_env)")
    expert = parser.add_argument_group("warm start")
    expert.add_argument("--expert", action="store_true", help="also play the episodes with the environment's expert")
    expert.add_argument("--tokenizer", help="checkpoint whose tokenizer and chat template are used (needed by --expert)")
    expert.add_argument(
        "--thought",
        help="thought given to a replayed action; {action} stands for it; left out: a plain one, or none where "
        "data.env.require_think=false",
    )
    expert.add_argument("--noise-target", type=float, default=0.0, help="share of turns that show a random action")
    expert.add_argument("--noise-play", type=float, default=0.0, help="share of the others that play one and show the expert's")
    settings = parser.add_argument_group("settings of the run that will use the data")
    settings.add_argument("--recipe", metavar="GROUP=NAME", help="take them from a recipe, for example seal/alfworld=grpo")
    settings.add_argument("--recipes", default="recipes", help="folder of the recipes (default recipes)")
    more = {"nargs": "+", "action": "extend", "default": [], "metavar": "KEY=VALUE"}
    settings.add_argument("--set", dest="overrides", help="data.env.*, data.max_prompt_length and the like", **more)
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the files once everything that can fail is done; 0 if all is well."""
    from verl_entropy.data import source, write

    run_settings = read_settings(args.name, args.overrides, args.recipe, args.recipes)
    settings, agent = run_settings.agent(), args.agent or run_settings.agent_loop
    writer = _turn_writer(args, run_settings, settings, agent) if args.expert else None
    found = source.tasks(settings.name, args.split, count=args.count, seed=args.seed, kwargs=settings.kwargs)
    source.prepare(settings.name, found)
    file, expert_file = (args.out / f"{args.split}{end}.parquet" for end in ("", "_expert"))
    files, expert = {file: source.rl_rows(found, settings.name, args.split, agent)}, None
    if writer is not None:
        files[expert_file], failed = _play_expert(args, writer, found)
        expert = _told(expert_file, files[expert_file], len(found), failed)
    write.write_parquets(files)
    if args.json:
        written = {"environment": settings.name, "split": args.split, "agent": agent, "file": str(file), "episodes": len(found)}
        print_json({**written, "expert": expert})
    else:
        print(f"{file}: {len(found)} episodes of {settings.name}, split {args.split}, played by {agent}")
        if args.count is None and args.split != "train" and len(found) > MANY:
            print(f"(as data.val_files, each validation plays all {len(found)}; --count 128 takes as many as verl-agent's)")
        _print_expert(expert)
    return 0


def _print_expert(expert: dict[str, Any] | None) -> None:
    if expert is None:
        return
    print(f"{expert['file']}: {expert['turns']} turns of {expert['episodes']} expert episodes, at most {expert['tokens']} tokens")
    print(f"(data.max_length of the SFT trainer must be at least {expert['tokens']})")
    if expert["failed_seeds"]:
        seeds = ", ".join(map(str, expert["failed_seeds"][:8])) + (" ..." if len(expert["failed_seeds"]) > 8 else "")
        print(f"left out {len(expert['failed_seeds'])} episodes whose goal the expert did not reach (seeds {seeds})")


@dataclass(frozen=True)
class RunSettings:
    """What data makers and evaluation need to know of a run."""

    data: dict[str, Any]
    """verl's ``data`` section, with ``data.env``."""
    agent_loop: str = "stepwise_env"
    temperature: float = 0.4
    """Of validation: verl-agent's, where no recipe says otherwise."""

    def agent(self) -> Any:
        """The agent loop's settings."""
        from verl_entropy.agent.settings import AgentSettings

        return AgentSettings.from_mappings(self.data["env"])


def read_settings(name: str | None, overrides: list[str], recipe: str | None, recipes: str) -> RunSettings:
    """Settings from a recipe or from defaults, and from overrides."""
    from omegaconf import OmegaConf

    if recipe is not None:
        from verl_entropy.data.recipe import check, compose

        check(recipe.lstrip("+"), recipes)
        config = compose([f"+{recipe.lstrip('+')}", *overrides], recipes)
        rollout, data = config.actor_rollout_ref.rollout, OmegaConf.to_container(config.data, resolve=True)
        temperature = rollout.val_kwargs.temperature if rollout.val_kwargs.do_sample else 0.0
        found = RunSettings(data, rollout.agent.default_agent_loop, float(temperature))
    else:
        found = RunSettings({**DEFAULTS, **_dotlist(overrides)})
    env = found.data.setdefault("env", {})
    if name is not None and env.setdefault("name", name) != name:
        raise ConfigError(f"{name}: the settings are for data.env.name={env['name']}. Give that name, or another --recipe.")
    return found


def _dotlist(overrides: list[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    for item in overrides:
        if "=" not in item or not item.lstrip("+").startswith("data."):
            raise ConfigError(f"{item}: expected KEY=VALUE with a key of data.*, for example data.env.history_length=3.")
    node = OmegaConf.from_dotlist([item.lstrip("+") for item in overrides])
    return OmegaConf.to_container(node, resolve=True).get("data", {})


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a checkpoint, with a chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # tokenizers raises bare ones
        raise ConfigError(
            f"--tokenizer={path}: cannot be loaded ({str(error).splitlines()[0]}). Give a checkpoint's folder."
        ) from error
    if not tokenizer.chat_template:
        raise ConfigError(f"--tokenizer={path}: it has no chat template, and the agent loop needs one. Use an instruct model's.")
    return tokenizer


def _noise(args: argparse.Namespace) -> Any:
    from verl_entropy.data.expert_turns import Noise

    return Noise(args.noise_target, args.noise_play)


def _turn_writer(args: argparse.Namespace, run_settings: RunSettings, settings: Any, agent: str) -> Any:
    """What writes the expert's turns; ConfigError for arguments that do not fit."""
    from verl_entropy import envs
    from verl_entropy.data.expert_turns import TurnWriter
    from verl_entropy.data.experts import HasExpert

    data = run_settings.data
    if agent != "stepwise_env":
        raise ConfigError(
            "--expert: writes the turns of stepwise_env; rows of span_env hold whole episodes. Set --agent stepwise_env."
        )
    if not args.tokenizer:
        raise ConfigError("--tokenizer: needed by --expert, whose rows are tokens. Give the folder of the model to be trained.")
    if _noise(args).any and not isinstance(envs.resolve(settings.name), HasExpert):
        raise ConfigError(
            f"--noise-target, --noise-play: the expert of {settings.name} replays known actions and does not recover from others; "
            "noise needs an environment with expert(info). Leave it out."
        )
    lengths = {key: data.get(key) or value for key, value in DEFAULTS.items()}
    return TurnWriter(settings, load_tokenizer(args.tokenizer), template_kwargs=data.get("apply_chat_template_kwargs"), **lengths)


def _play_expert(args: argparse.Namespace, writer: Any, found: list) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows of the expert's turns, and the seeds of the episodes left out."""
    from verl_entropy.data.expert_turns import collect
    from verl_entropy.data.experts import THOUGHT

    settings = writer.settings
    thought = args.thought or (THOUGHT if settings.require_think else "")
    rows, failed = collect(writer, found, noise=_noise(args), seed=args.seed, thought=thought)
    if not rows:
        raise ValueError(
            f"--expert: no episode of split {args.split} reached its goal within data.env.max_turns={settings.max_turns}: raise it, "
            f"unless {settings.name} knows no expert there."
        )
    return rows, failed


def _told(file: Path, rows: list[dict[str, Any]], episodes: int, failed: list[int]) -> dict[str, Any]:
    return {
        "file": str(file),
        "turns": len(rows),
        "episodes": episodes - len(failed),
        "tokens": max(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows),
        "failed_seeds": failed,
    }
