# SPDX-License-Identifier: Apache-2.0
"""The quickstart: a tiny agent, warm-started and then trained by verl's own V1 trainer on a CPU.

    python -m verl_entropy.quickstart --folder .quickstart --preset gigpo,aem,seal --steps 30 --seed 0

Everything is kept in the folder, and running it again goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verl_entropy.config import presets
from verl_entropy.cpu.launch import cpu_env, cpu_overrides
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS
from verl_entropy.files import write_atomic
from verl_entropy.quickstart import build
from verl_entropy.runs.runfile import STEPS

PROMPTS, ROLLOUTS = 8, 8
MINI_BATCH_PROMPTS = 8
"""verl counts a mini-batch in prompts x rollouts rows; a row is a turn here, so a step has several updates of 64 turns."""
TOKENS_PER_MICRO_BATCH = 4096
"""Tokens with padding. The activations of larger ones leave the processor's cache, and their memory is mapped anew each time."""
LEARNING_RATE = "1e-4"
"""The bench's healthy regime: plain GRPO learns with it and keeps what it learnt; from 4e-4 up it may lose it again."""
STEPS_IN_ALL = 30
"""As many as the bench's runs in that regime have."""
SAVE_EVERY = 10
COSTLY_EVERY = 5
"""Steps between two samples of trajectories: a run is short, and the default of 10 would show two."""
RUN_FILE = "run"
"""Folder of the run file, in the run's."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m verl_entropy.quickstart", description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(".quickstart"), help="where everything is kept")
    parser.add_argument("--preset", default="gigpo,aem,seal", help="presets for +entropy=[...]; none: verl's plain GRPO")
    parser.add_argument("--steps", type=int, default=STEPS_IN_ALL, help="training steps in all")
    parser.add_argument("--seed", type=int, default=0, help="seed of model, data and sampling")
    parser.add_argument("overrides", nargs="*", help="further overrides for verl")
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: must be at least 1")
    if args.seed < 0:
        parser.error(f"--seed {args.seed}: must be at least 0")
    unknown = [n for n in preset_list(args.preset) if n not in presets.preset_names()]
    if unknown:
        parser.error(f"--preset {','.join(unknown)}: unknown; known are {', '.join(presets.preset_names())}")
    args.folder = args.folder.resolve()
    return args


def preset_list(text: str) -> list[str]:
    """Names in a comma-separated list; empty for none."""
    return [n for n in text.replace(" ", "").split(",") if n and n != "none"]


def prepare(folder: Path, seed: int, steps: int) -> Path:
    """Model, tokenizer and data for ``seed``, made once; returns their folder."""
    assets = folder / f"assets-seed{seed}"
    model = assets / "warm"
    assets.mkdir(parents=True, exist_ok=True)
    build.write_data(assets, seed, max(steps, 200) * PROMPTS)
    if model.is_dir():
        print(f"warm-started model: {model} (kept from an earlier run)")
        return assets
    import torch
    from tqdm import tqdm

    from verl_entropy.quickstart import warm_start

    torch.set_num_threads(1)  # layers this small gain nothing from a second one, and lose much on a busy machine
    tokenizer = build.build_tokenizer()
    network = build.build_model(len(tokenizer), seed)
    rows = warm_start.expert_rows(tokenizer, seed)
    parameters = sum(p.numel() for p in network.parameters())
    print(f"warm start: {parameters:,} parameters on {len(rows):,} turns of a noisy expert")
    with tqdm(total=warm_start.STEPS, desc="warm start", unit="step") as bar:

        def tick(loss: float) -> None:
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

        warm_start.train(network, rows, seed, tick=tick)
    warm_start.save(network, tokenizer, model)
    return assets


def overrides(args: argparse.Namespace, assets: Path, run: Path) -> list[str]:
    """The whole command line of verl's trainer."""
    return [*device_overrides(), *task_overrides(args, assets, run)]


def device_overrides() -> list[str]:
    """The part of it that says where it is trained: on a CPU."""
    return cpu_overrides(1, reward_workers=0, tokens_per_micro_batch=TOKENS_PER_MICRO_BATCH)


def task_overrides(args: argparse.Namespace, assets: Path, run: Path) -> list[str]:
    """The part of it that says what is trained, not on which device."""
    chosen = preset_list(args.preset)
    val_files = f"[{assets / 'seen.parquet'},{assets / 'unseen.parquet'}]"
    return [
        "algorithm.adv_estimator=grpo" if not set(chosen) & {"gigpo", "loop", "loop_dapo", "group_norm"} else "",
        f"+entropy=[{','.join(chosen)}]" if chosen else "",
        "trainer.logger=[file]",
        "trainer.project_name=quickstart",
        f"trainer.experiment_name={run.name}",
        f"trainer.default_local_dir={run / 'checkpoints'}",
        f"trainer.total_training_steps={args.steps}",
        "trainer.total_epochs=1000",
        f"trainer.save_freq={SAVE_EVERY}",
        f"trainer.test_freq={args.steps}",
        "trainer.max_actor_ckpt_to_keep=2",
        "trainer.val_before_train=True",
        f"data.train_files={assets / 'train.parquet'}",
        f"data.val_files={val_files}",
        f"data.train_batch_size={PROMPTS}",
        f"data.max_prompt_length={build.MAX_PROMPT}",
        f"data.max_response_length={build.MAX_RESPONSE}",
        f"data.seed={args.seed}",
        *environment_overrides(),
        f"actor_rollout_ref.model.path={assets / 'warm'}",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        "actor_rollout_ref.actor.optim.weight_decay=0",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI_BATCH_PROMPTS}",
        f"actor_rollout_ref.actor.data_loader_seed={args.seed}",
        "actor_rollout_ref.actor.shuffle=True",
        "actor_rollout_ref.actor.use_kl_loss=False",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}",
        f"actor_rollout_ref.rollout.prompt_length={build.MAX_PROMPT}",
        f"actor_rollout_ref.rollout.response_length={build.MAX_RESPONSE}",
        f"actor_rollout_ref.rollout.seed={args.seed}",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        "algorithm.use_kl_in_reward=False",
        f"++{DIAGNOSTICS}.run_file.folder={run / RUN_FILE}",
        f"++{DIAGNOSTICS}.run_file.samples_every={COSTLY_EVERY}",
        f"++{DIAGNOSTICS}.costly_every={COSTLY_EVERY}",
        *args.overrides,
    ]


def environment_overrides(agent: dict[str, Any] = build.AGENT) -> list[str]:
    """The environment with the prompts of the warm start: ``agent`` is ``data.env``, by default the household's."""
    settings = {k: v for k, v in agent.items() if k != "kwargs"}
    given = {k: f"[{','.join(v)}]" if isinstance(v, list) else v for k, v in agent.get("kwargs", {}).items()}
    settings |= {f"kwargs.{k}": v for k, v in given.items()}
    loop = "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env"
    return [loop, *(f"+data.env.{key}={value}" for key, value in settings.items())]


def read_metrics(files: Iterable[Path]) -> dict[int, dict]:
    """Metrics by step from verl's file logger, later files over earlier ones; a torn last line is left out."""
    steps: dict[int, dict] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            steps.setdefault(int(entry["step"]), {}).update(entry["data"])
    return steps


def metric_files(run: Path) -> list[Path]:
    """The logs of this run's sessions, in order."""
    return sorted(run.glob("metrics-*.jsonl"))


def train(args: argparse.Namespace, assets: Path, run: Path) -> int:
    """Run verl's trainer with a progress bar; returns its exit status."""
    from tqdm import tqdm

    session = len(metric_files(run))
    log_path, metrics_path = run / f"log-{session}.txt", run / f"metrics-{session}.jsonl"
    env = {**os.environ, **cpu_env(), "VERL_FILE_LOGGER_PATH": str(metrics_path)}
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *filter(None, overrides(args, assets, run))]
    done = max(read_metrics(metric_files(run)), default=0)
    print(f"training with verl's V1 trainer; its output is in {log_path}")
    with open(log_path, "w", encoding="utf-8") as log, tqdm(total=args.steps, initial=done, desc="starting verl") as bar:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=run)
        try:
            while process.poll() is None:
                time.sleep(0.5)
                _show(bar, read_metrics([metrics_path]) if metrics_path.exists() else {})
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        _show(bar, read_metrics([metrics_path]) if metrics_path.exists() else {})
    if process.returncode:
        tail = log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        print("\n".join(tail), file=sys.stderr)
    return process.returncode


def _show(bar, steps: dict[int, dict]) -> None:
    trained = [s for s in steps if "verl_entropy/success" in steps[s] or "critic/score/mean" in steps[s]]
    if not trained:
        return
    last = max(trained)
    if last != bar.n:
        bar.update(last - bar.n)
    data = steps[last]
    shown = {"success": data.get("verl_entropy/success"), "entropy": data.get("actor/entropy")}
    bar.set_description("training")
    bar.set_postfix({k: f"{v:.2f}" for k, v in shown.items() if v is not None})


def recorded(args: argparse.Namespace) -> dict | None:
    """Plain GRPO over several seeds, recorded by the bench under these settings; None where they are others."""
    content = json.loads((Path(__file__).parent / "grpo.json").read_text(encoding="utf-8"))
    same = args.steps == content["steps"] and not args.overrides and args.preset != "none"
    return content if same else None


def summary(args: argparse.Namespace, run: Path, minutes: float) -> dict:
    """Success before and after from the run's metrics; written to summary.json."""
    from verl_entropy.quickstart.figure import validation

    steps = read_metrics(metric_files(run))
    checked = [s for s in sorted(steps) if validation(steps[s], "seen") is not None]
    result = {"preset": args.preset, "seed": args.seed, "steps": max(steps), "minutes": round(minutes, 2)}
    for split in ("seen", "unseen"):
        result[f"{split}_before"] = validation(steps[checked[0]], split)
        result[f"{split}_after"] = validation(steps[checked[-1]], split)
    write_atomic(run / "summary.json", json.dumps(result, indent=1).encode() + b"\n")
    return result


def main(argv: list[str] | None = None) -> int:
    """Assets, warm start, training, summary and figure; returns the exit status."""
    args, start = arguments(argv), time.time()
    assets = prepare(args.folder, args.seed, args.steps)
    run = args.folder / f"{args.preset.replace(',', '-')}-seed{args.seed}"
    run.mkdir(parents=True, exist_ok=True)
    finished = max(read_metrics(metric_files(run)), default=0)
    if finished < args.steps:
        code = train(args, assets, run)
        if code:
            return code
    else:
        print(f"{run} has {finished} steps already; --steps {finished + 10} would go on from there")
    result = summary(args, run, (time.time() - start) / 60)
    from verl_entropy.quickstart.figure import draw

    figure = run / "quickstart.png"
    grpo = recorded(args)
    draw(read_metrics(metric_files(run)), figure, f"{args.preset}, seed {args.seed}", grpo)
    print(f"\nsuccess on {build.HELD_OUT} held-out tasks each (sampled at temperature 1):")
    for split, what in (("seen", "known houses, new tasks"), ("unseen", "unknown houses")):
        line = f"  {split:<7}{result[split + '_before']:6.1%} -> {result[split + '_after']:6.1%}   {what}"
        print(line + (f"; plain GRPO {min(grpo[split]):.0%} to {max(grpo[split]):.0%}" if grpo else ""))
    if grpo:
        print(
            f"  plain GRPO: {len(grpo['seeds'])} seeds with the same settings, recorded. One run tells no method from it; "
            "recipes/bench/README.md compares them over seeds."
        )
    print(f"figure: {figure}\nnumbers: {run / 'summary.json'}, metrics of every step: {run}/metrics-*.jsonl")
    _report(run)
    return 0


def _report(run: Path) -> None:
    """The page that ``verl-entropy report`` makes of the run file."""
    if not (run / RUN_FILE / STEPS).is_file():
        print(f"no report: {run / RUN_FILE} has no run file (diagnostics switched off, or a run of an earlier version)")
        return
    from verl_entropy.runs.report import build_report

    print(build_report([run / RUN_FILE], run / "report.html").render())


if __name__ == "__main__":
    sys.exit(main())
