# SPDX-License-Identifier: Apache-2.0
"""``python -m bench``: train what is missing, then write the page."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from heapq import nlargest
from pathlib import Path

import psutil

from bench import one
from bench.plan import METHODS, MODEL, RESULTS, ROOT, TUNING_SEEDS, WORLDS, Job, jobs

STAGGER = 2.0
"""Seconds between two starts: verl's start is heaviest in its first seconds."""


def chosen(text: str, known: list[str], option: str) -> list[str]:
    """Names of a comma-separated list, in its order; all of ``known`` for "all"."""
    names = known if text == "all" else [n for n in text.replace(" ", "").split(",") if n]
    if unknown := [n for n in names if n not in known]:
        raise SystemExit(f"{option} {','.join(unknown)}: unknown; known are {', '.join(known)}")
    return names


def seed_list(text: str) -> list[int]:
    """``0-4``, ``0,2`` or both."""
    seeds: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise SystemExit(f"--seeds {text}: expected seeds and ranges as 0-4 or 0,2,5-7")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="bash examples/bench.sh", description="Train what is missing, then write the page.")
    specs = {name: spec for world in WORLDS.values() for name, spec in world.regimes.items()}
    parser.add_argument("--world", default="all", help=f"all, or some of {', '.join(WORLDS)}")
    parser.add_argument(
        "--regime", default="all", help=f"all, or some of {', '.join(specs)}; a candidate needs --seeds from {TUNING_SEEDS} up"
    )
    parser.add_argument("--method", default="all", help=f"all, or some of {', '.join(METHODS)}")
    parser.add_argument("--seeds", default="0-4", help="0-4, 0,2,5-7; seeds from 100 up are for tuning and not on the page")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="runs at once; default: half of the cores"
    )
    parser.add_argument("--model", type=Path, help="folder of SmolLM2-135M-Instruct or its like, for worlds on a card")
    parser.add_argument("--cards", default="0", help="the cards that they share, as 0,1; %(default)s")
    parser.add_argument("--steps", type=int, help="fewer steps, to try; needs --results")
    parser.add_argument("--work", type=Path, default=ROOT / ".bench", help="where runs are trained; %(default)s")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results go; with another folder no page is written")
    parser.add_argument(
        "--diagnose", action="store_true", help="run files with interference, and WORK/report.html of all runs; needs --results"
    )
    parser.add_argument("--page", action="store_true", help="write the page from the results that are there, and train nothing")
    args = parser.parse_args(argv)
    offered = [name for name, world in WORLDS.items() if args.model or not world.card]
    args.worlds = chosen(args.world, offered if args.world == "all" else list(WORLDS), "--world")
    regular = ",".join(name for name, spec in specs.items() if not spec.candidate)
    args.regimes = chosen(regular if args.regime == "all" else args.regime, list(specs), "--regime")
    args.methods = chosen(args.method, list(METHODS), "--method")
    args.seeds = seed_list(args.seeds)
    if min(args.seeds) < TUNING_SEEDS and any(specs[name].candidate for name in args.regimes):
        parser.error(f"--regime {args.regime}: a candidate is tried on tuning seeds; give --seeds from {TUNING_SEEDS} up")
    if lacking := [name for name in args.worlds if WORLDS[name].card and not args.model and not args.page]:
        parser.error(f"--world {','.join(lacking)}: trains a pretrained model on a card; give --model FOLDER of one, too")
    if not all(card.isdigit() for card in args.cards.split(",")):
        parser.error(f"--cards {args.cards}: expected numbers as 0 or 0,1")
    for name in ("jobs", "steps"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: must be at least 1")
    if args.diagnose and args.results == RESULTS:
        parser.error("--diagnose: computes more than the bench's results had; give --results FOLDER, too")
    if args.steps and args.results == RESULTS:
        parser.error(f"--steps {args.steps}: results of other lengths are not mixed; give --results FOLDER, too")
    return args


def check_host(missing: list[Job], at_once: int) -> None:
    """Raise SystemExit if the system does not allow the threads of ``at_once`` of these runs, and say so if memory may not do."""
    worlds, at_once = [WORLDS[job.world] for job in missing], min(at_once, len(missing))
    threads, memory = (sum(nlargest(at_once, (getattr(w, need) for w in worlds))) for need in ("threads", "memory"))
    allowed = Path("/proc/sys/kernel/pid_max")
    limit = int(allowed.read_text()) if allowed.is_file() else sys.maxsize
    if threads > limit:
        raise SystemExit(
            f"--jobs {at_once}: needs about {threads} threads, and kernel.pid_max is {limit}. "
            "Run sysctl -w kernel.pid_max=4194304, or lower --jobs."
        )
    if (free := psutil.virtual_memory().available // 10**9) < memory:
        print(
            f"--jobs {at_once}: needs about {memory} GB of memory, and {free} are available. When they run out, Ray ends processes "
            "of a run, which fails or is given up after half an hour: lower --jobs.",
            flush=True,
        )


def run_all(missing: list[Job], args: argparse.Namespace) -> int:
    """Train, ``args.jobs`` runs at once; returns how many failed. A signal ends the runs, too."""
    waiting, running, failed, start = list(missing), {}, 0, time.time()
    cards: dict[Job, str] = {}
    options = [*([f"--steps={args.steps}"] if args.steps else []), *(["--diagnose"] if args.diagnose else [])]

    def stop(signum: int, frame: object) -> None:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        raise SystemExit(128 + signum)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    while waiting or running:
        while waiting and len(running) < args.jobs:
            job = waiting.pop(0)
            words = [job.world, job.regime, job.method, str(job.seed), str(args.work), str(args.results), str(args.jobs)]
            command = [sys.executable, "-m", "bench.one", *words, *options]
            env = dict(os.environ)
            if WORLDS[job.world].card:
                taken = [cards[other] for other in running.values() if other in cards]
                cards[job] = min(args.cards.split(","), key=taken.count)
                env |= {MODEL: str(args.model.resolve()), "CUDA_VISIBLE_DEVICES": cards[job]}
            running[subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL)] = job
            print(f"{time.time() - start:6.0f} s  start  {job.label()}", flush=True)
            time.sleep(STAGGER)
        for process in [p for p in running if p.poll() is not None]:
            job = running.pop(process)
            known = {0: "end  ", one.BUSY: "busy: another bench trains it, "}
            failed += process.returncode not in known
            how = known.get(process.returncode, f"FAILED with {process.returncode}")
            print(f"{time.time() - start:6.0f} s  {how}  {job.label()}", flush=True)
        time.sleep(0.5)
    return failed


def report(every: list[Job], args: argparse.Namespace) -> None:
    """What became of the diagnosed runs that ended, a line each, and the report on them."""
    from bench.outcome import told
    from verl_entropy.runs.report import build_report

    ended = [job for job in every if job.file(args.results).is_file()]
    for job in ended:
        print(told(json.loads(job.file(args.results).read_text(encoding="utf-8"))))
    files = [one.run_file(job.folder(args.work)) for job in ended]
    if present := [file for file in files if file.is_dir()]:
        print(build_report(present, args.work / "report.html").render())


def main(argv: list[str] | None = None) -> int:
    """Runs, then the page; exit status 1 if a run failed."""
    args, failed = arguments(argv), 0
    if not args.page:
        every = jobs(args.worlds, args.regimes, args.methods, args.seeds)
        missing = [job for job in every if not job.file(args.results).is_file()]
        print(
            f"{len(every)} runs, {len(every) - len(missing)} are there, {len(missing)} to train, {args.jobs} at once", flush=True
        )
        check_host(missing, args.jobs)
        failed = run_all(missing, args)
        if args.diagnose:
            report(every, args)
    if args.results.resolve() == RESULTS:
        from bench.page.write import write_page

        print(write_page(args.results))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
