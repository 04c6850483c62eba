# SPDX-License-Identifier: Apache-2.0
"""One run, from preparing its world to its result file.

python -m bench.one WORLD REGIME METHOD SEED WORK RESULTS AT_ONCE [--steps N] [--diagnose]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.claims import claims
from bench.outcome import curves, held_out, outcome, step_seconds
from bench.plan import METHODS, ROOT, WORLDS, Job
from bench.prepare import KERNELS
from verl_entropy.cpu.launch import cpu_env
from verl_entropy.diagnostics.settings import PATH as DIAGNOSTICS
from verl_entropy.quickstart.__main__ import COSTLY_EVERY, read_metrics

FORMAT = 1
PACKAGES = ("verl-entropy", "verl", "torch", "transformers", "ray", "numpy")
CARD_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "TOKENIZERS_PARALLELISM": "false", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}
"""The last: CUDA graphs for steps in which some episodes begin a turn while others are in one (tests/gpu/seams.sh)."""
BUSY = 3
"""Exit status: another process trains this run."""
STARTS = 3
STALLED = 1800.0
"""Seconds without a new step after which a run is given up: where Ray ended one of its processes, verl waits for ever."""
PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """The lock on ``path``, which the system frees when its holder dies; False if it is held and ``wait`` is false."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def prepare(world: str, seed: int, work: Path) -> Path:
    """Data and warm start of a seed, made by whichever run comes first; returns the world's folder. Raises RuntimeError if that fails."""
    folder = work / world
    with locked(folder / f"prepare-seed{seed}.lock", wait=True):
        command = [sys.executable, "-m", "bench.prepare", world, str(folder), str(seed)]
        if status := subprocess.run(command, env=os.environ | KERNELS).returncode:
            raise RuntimeError(f"the data and warm start of seed {seed} in {folder} ended with {status}; what it said is above")
    return folder


def words(job: Job, folder: Path, run: Path, steps: int, diagnose: bool = False) -> list[str]:
    """The overrides of the run: the world's, the regime's, the method's, and the bench's own.

    ``diagnose``: a run file in ``run_file(run)``, and the costly metrics (interference among them) every COSTLY_EVERY steps.
    """
    world, method = WORLDS[job.world], METHODS[job.method]
    seen = (f"++{DIAGNOSTICS}.run_file.folder={run_file(run)}", f"++{DIAGNOSTICS}.costly_every={COSTLY_EVERY}")
    return [
        *importlib.import_module(world.module).words(folder, job.seed, run, steps, method.presets),
        "trainer.save_freq=-1",  # a run that was cut begins anew
        f"trainer.test_freq={max(1, steps // world.validations)}",
        "++ray_kwargs.ray_init.address=local",
        *world.regimes[job.regime].overrides,
        *(word.format(held=world.held) for word in method.overrides),
        *(seen if diagnose else ()),
    ]


def run_file(run: Path) -> Path:
    """Where a diagnosed run's file is: the report names a run by this folder."""
    return run.parent / "run_files" / run.name


def train(job: Job, run: Path, command: list[str], env: dict[str, str]) -> None:
    """Run the trainer in ``run``; raises RuntimeError with the end of its log.

    verl asks the system for a free port and listens on it seconds later: of many runs that start at once, two may be given the same.
    """
    log = run / "log.txt"
    for _ in range(STARTS):
        with open(log, "w", encoding="utf-8") as file:
            ended = followed(
                subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=run), run / "metrics.jsonl"
            )
        if ended == "with 0":
            return
        if not PORT_TAKEN.search(log.read_text(encoding="utf-8", errors="replace")):
            break
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    raise RuntimeError(f"{job.label()} ended {ended}; its log is {log}:\n{tail}")


def followed(process: subprocess.Popen, metrics: Path) -> str:
    """How the trainer ended: with its exit status, or given up after STALLED seconds in which it logged no step."""
    last, size = time.monotonic(), -1
    try:
        while process.poll() is None:
            time.sleep(0.5)
            if (now := metrics.stat().st_size if metrics.is_file() else 0) != size:
                last, size = time.monotonic(), now
            if time.monotonic() - last > STALLED:
                return f"without a new step for {STALLED:g} s"
        return f"with {process.returncode}"
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def commit() -> str:
    """The commit that is checked out, with + if files differ; $VERL_ENTROPY_COMMIT for a tree without git."""
    if named := os.environ.get("VERL_ENTROPY_COMMIT"):
        return named
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "verl_entropy", "examples/bench"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed.stdout.strip() else "")


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine(at_once: int, card: bool = False) -> dict[str, Any]:
    """Where the run ran, and beside how many others."""
    found: dict[str, Any] = {}
    if card:
        import torch

        found["card"] = torch.cuda.get_device_name(0)
    return found | {
        "processor": processor(),
        "cores": os.cpu_count(),
        "runs_at_once": at_once,
        "python": platform.python_version(),
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """The file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
    partial.replace(path)


def values(words: list[str]) -> dict[str, str]:
    """The last word of each key."""
    return dict(word.lstrip("+").split("=", 1) for word in words)


def weight_norm(words: list[str]) -> float:
    """Of the policy that a run begins with: older warm starts of a seed are another policy on some processors; the page pairs none of these."""
    from safetensors import safe_open

    total = 0.0
    for path in sorted(Path(values(words)["actor_rollout_ref.model.path"]).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            total += sum(file.get_tensor(name).double().square().sum().item() for name in file.keys())
    return total**0.5


def settings(words: list[str], work: Path) -> dict[str, str]:
    """What the run was given, the last word of each key, without what names this machine's folders."""
    return values([word for word in words if str(work) not in word.split("=", 1)[1]])


def run(job: Job, work: Path, results: Path, at_once: int, steps: int, diagnose: bool = False) -> None:
    """Prepare, train, write the result."""
    folder, run_folder = prepare(job.world, job.seed, work), job.folder(work)
    with locked(run_folder.with_suffix(".lock"), wait=False) as mine:
        if not mine:
            sys.exit(BUSY)
        if job.file(results).is_file():  # trained by another bench meanwhile
            return
        for left in (run_folder, run_file(run_folder)):
            shutil.rmtree(left, ignore_errors=True)
        run_folder.mkdir(parents=True)
        overrides = words(job, folder, run_folder, steps, diagnose)
        metrics = run_folder / "metrics.jsonl"
        env = {**os.environ, **(CARD_ENV if WORLDS[job.world].card else cpu_env()), "VERL_FILE_LOGGER_PATH": str(metrics)}
        start = time.time()
        train(job, run_folder, [sys.executable, "-m", "verl.trainer.main_ppo", *overrides], env)
        seconds, logged, world = time.time() - start, read_metrics([metrics]), WORLDS[job.world]
        found, held = curves(logged), held_out(logged, world)
        write(
            job.file(results),
            {
                "format": FORMAT,
                "world": job.world,
                "regime": job.regime,
                "method": job.method,
                "seed": job.seed,
                "steps": max(logged),
                "outcome": outcome(found, held, world.splits),
                "seconds": round(seconds, 1),
                "step_seconds": step_seconds(logged),
                "commit": commit(),
                "weight_norm": weight_norm(overrides),
                "versions": {name: metadata.version(name) for name in (*PACKAGES, *(("vllm",) if world.card else ()))},
                "machine": machine(at_once, world.card),
                "ended": time.strftime("%Y-%m-%d", time.gmtime()),
                "held_out": held,
                "claims": claims(logged),
                "curves": found,
                "settings": settings(overrides, work),
            },
        )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.one")
    for name in ("world", "regime", "method"):
        parser.add_argument(name)
    parser.add_argument("seed", type=int)
    for name in ("work", "results"):
        parser.add_argument(name, type=Path)
    parser.add_argument("at_once", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--diagnose", action="store_true")
    args = parser.parse_args(argv)
    job = Job(args.world, args.regime, args.method, args.seed)
    steps = args.steps or WORLDS[args.world].regimes[args.regime].steps
    run(job, args.work.resolve(), args.results.resolve(), args.at_once, steps, args.diagnose)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RuntimeError as error:
        sys.exit(str(error))
