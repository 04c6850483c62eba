# SPDX-License-Identifier: Apache-2.0
"""Runs of ``python -m verl.trainer.main_ppo`` on the CPU backend, as a user starts them."""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import assets

HERE = Path(__file__).parent
OURS = ("+entropy=[gigpo,aem,seal,epo]", "algorithm.adv_estimator=gigpo")
# Timing, memory and throughput differ between runs, and so do the rollout server's own log-probs in their last bits, which depend on
# which requests happen to share a batch; nothing is trained on them. Everything else of verl's metrics must not differ.
UNSTABLE = (
    "rollout_corr/",
    "rollout_probs_diff",
    "rollout_actor_probs",
    "timing",
    "perf/",
    "throughput",
    "staleness",
    "/mfu",
    "num_turns/",
    "agent_loop",
    "memory",
)


@dataclass
class Result:
    """What a run left behind."""

    code: int
    steps: dict[int, dict]
    log: str
    folder: Path


class Runner:
    """Starts runs on shared assets; every run has its own checkpoints and logs."""

    def __init__(self, folder: Path):
        self.folder = assets.make(folder)

    def command(self, name: str, *overrides: str, world: int = 1, strategy: str = "fsdp2") -> list[str]:
        from verl_entropy.cpu.launch import cpu_overrides

        return [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            *cpu_overrides(world, strategy=strategy, reward_workers=0),
            "trainer.logger=[console,file]",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.total_epochs=100",
            "trainer.total_training_steps=2",
            "trainer.project_name=tests",
            f"trainer.experiment_name={name}",
            f"trainer.default_local_dir={self.folder}/{name}",
            f"data.train_files={self.folder}/train.parquet",
            f"data.val_files={self.folder}/val.parquet",
            "data.train_batch_size=4",
            "data.max_prompt_length=96",
            "data.max_response_length=16",
            "data.shuffle=False",
            "actor_rollout_ref.rollout.full_determinism=True",
            "actor_rollout_ref.actor.fsdp_config.full_determinism=True",  # seeds the workers: the head's dropout
            "actor_rollout_ref.rollout.prompt_length=96",
            "actor_rollout_ref.rollout.response_length=16",
            f"actor_rollout_ref.model.path={self.folder}/model",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env",
            "algorithm.adv_estimator=grpo",
            "+data.env.name=colours:Colours",
            "+data.env.prompt_template=compact",
            "+data.env.max_turns=3",
            "+data.env.action_format=either",
            *overrides,
        ]

    def environment(self, name: str) -> dict[str, str]:
        from verl_entropy.cpu.launch import cpu_env

        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            **cpu_env(),
            "MKL_CBWR": "AUTO,STRICT",
            "PYTHONPATH": os.pathsep.join(paths),
            "VERL_FILE_LOGGER_PATH": str(self.folder / f"{name}.jsonl"),
            "RAY_TMPDIR": "/tmp",
        }

    def start(self, name: str, *overrides: str, **kwargs) -> subprocess.Popen:
        log = open(self.folder / f"{name}.log", "w")  # noqa: SIM115  (the process keeps it)
        return subprocess.Popen(
            self.command(name, *overrides, **kwargs),
            env=self.environment(name),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            start_new_session=True,
        )

    def result(self, name: str, code: int) -> Result:
        lines = (self.folder / f"{name}.jsonl").read_text().splitlines() if (self.folder / f"{name}.jsonl").exists() else []
        steps = {entry["step"]: entry["data"] for entry in map(json.loads, lines)}
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        return Result(code, steps, log, self.folder / name)

    def run(self, name: str, *overrides: str, **kwargs) -> Result:
        process = self.start(name, *overrides, **kwargs)
        try:
            code = process.wait(timeout=900)
        finally:
            stop(process)
        result = self.result(name, code)
        assert code == 0, result.log[-6000:]
        return result


def stop(process: subprocess.Popen) -> None:
    """Kill a run and everything it started, and nothing else: Ray's processes share the session of their driver."""
    import psutil

    def members() -> list[psutil.Process]:
        found = []
        for other in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(other.pid) == process.pid:
                    found.append(other)
        return found

    deadline = time.time() + 30
    while (left := members()) and time.time() < deadline:
        for other in left:
            with contextlib.suppress(psutil.Error):
                other.kill()
        process.poll()
        time.sleep(0.5)
    process.wait()


def stable(step: dict) -> dict:
    """What of verl's metrics is the same in every run."""
    return {k: v for k, v in step.items() if not any(part in k for part in UNSTABLE)}


def differing(a: dict, b: dict) -> list[str]:
    """Metrics in which two runs' steps differ and should not."""
    a, b = stable(a), stable(b)
    return [k for k in sorted(a.keys() & b.keys()) if a[k] != b[k] and not (a[k] != a[k] and b[k] != b[k])]
