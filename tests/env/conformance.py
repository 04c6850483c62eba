# SPDX-License-Identifier: Apache-2.0
"""What every environment keeps, as functions over a ``Spec`` and an open environment of it; run as a program it measures the table of them.

A new environment is a module ``specs/<name>.py`` with a constant ``SPEC``; nothing else has to be edited.

    python tests/env/conformance.py --json FILE
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from verl_entropy import envs
from verl_entropy.agent.environment import StepResult, how_to_run, read_reset, read_step
from verl_entropy.agent.pool import EnvironmentFailure, EnvPool
from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.envs.simulators.jvm import find_java

HERE = Path(__file__).parent
Row = dict[str, Any]
Player = Callable[[str, dict[str, Any]], str]

NONSENSE = ("", "  \n", "fly to the moon", "\u2603\u00fc\U0001f600 \u202e", "take " + "very " * 4000 + "heavy box")
"""Actions that no environment knows: nothing, white space, a wrong one, odd characters, 4,000 words."""


@dataclass(frozen=True)
class Spec:
    """An environment as the suite plays it."""

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    missing: Callable[[], str] = lambda: ""
    """Why it cannot run here (the tests are then skipped with this line), or ""."""
    rows: Callable[[int], list[Row]] | None = None
    """The first n rows of its data set; None: its own ``episodes``."""
    player: Callable[[Any, dict[str, Any]], Player] | None = None
    """From (environment, info of reset) to what the expert does; None: its own ``expert_actions``."""
    splits: tuple[str, ...] = ()
    """None given: its own ``SPLITS``."""
    wrong: tuple[tuple[dict[str, Any], str], ...] = (({"split": "mars"}, "split"),)
    """Wrong settings, and what the message must name."""
    expert_rows: int = 6
    turns: int = 3
    """Turns of an episode of the parallel and determinism checks, after which it is given up."""
    distinct: int = 16
    """Groups of the parallel check; its 64 episodes are divided among them."""
    open_at_once: int = 8
    """Environments open in the parallel check."""
    step_timeout_s: float = 1.5
    """Time limit of the hang check: well above a step of the environment on a busy machine."""
    package: str = ""
    licence: str = "Apache-2.0"
    episodes: str = ""
    """How many episodes its splits have, for the table."""

    @property
    def environment(self) -> type:
        return envs.resolve(self.name)

    @property
    def all_splits(self) -> tuple[str, ...]:
        return self.splits or tuple(self.environment.SPLITS)

    def make(self) -> Any:
        return envs.make(self.name, split=self.split, **self.kwargs)

    def first(self, count: int) -> list[Row]:
        if self.rows is not None:
            return self.rows(count)
        return self.environment.episodes(self.split, count=count, **self.kwargs)

    def expert(self, environment: Any, info: dict[str, Any]) -> Player | None:
        if self.player is not None:
            return self.player(environment, info)
        actions = environment.expert_actions()
        if actions is None:
            return None
        left: Iterator[str] = iter(actions)
        return lambda observation, info: next(left)


def package_and_java(package: str) -> str:
    """Why a Java simulator cannot run here, or ""."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    try:
        find_java()
    except ValueError as error:
        return str(error)
    return ""


def specs() -> list[Spec]:
    """Every spec of the folder whose adapter exists."""
    return [importlib.import_module(f"specs.{path.stem}").SPEC for path in sorted((HERE / "specs").glob("[a-z]*.py"))]


class Sabotage:
    """An adapter that also obeys ``!crash``, ``!hang`` and ``!flood``; every other action is the adapter's own."""

    def __init__(self, name: str, kwargs: dict[str, Any]):
        self._inner = envs.make(name, **kwargs)

    def reset(self, *, seed=None, options=None):
        return self._inner.reset(seed=seed, options=options)

    def step(self, action):
        simulators = psutil.Process().children(recursive=True)
        if action == "!crash":
            if not simulators:
                raise RuntimeError("sabotage")
            for process in simulators:
                process.kill()
            return self._inner.step("look around")
        if action == "!hang":
            for process in simulators:
                process.suspend()
            while any(process.status() != psutil.STATUS_STOPPED for process in simulators):
                time.sleep(0.01)
            return self._inner.step("look around") if simulators else time.sleep(60)
        observation, *rest = self._inner.step("look around" if action == "!flood" else action)
        return (observation + " \u2603 \u00e4\u00f6\u00fc" * 20_000 if action == "!flood" else observation, *rest)

    def close(self):
        self._inner.close()


# ----------------------------------------------------------------------------- helpers


def simulators() -> list[psutil.Process]:
    """Processes that this one started, directly or not."""
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(p.cmdline())]


def leftovers(before: set[int], seconds: float = 10.0) -> list[str]:
    """Environment threads and processes that are still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        multiprocessing.active_children()  # reaps those that have ended
        found = [t.name for t in threading.enumerate() if t.name.startswith("env-")]
        for process in simulators():
            if process.pid not in before:
                found.append(f"{process.pid} {process.name()}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def in_pool(spec: Spec, body: Callable[[EnvPool], Any], sabotaged: bool = False, **options: Any) -> Any:
    """Run ``await body(pool)`` on environments of the spec and close the pool."""
    kwargs = {"split": spec.split, **spec.kwargs}
    factory = functools.partial(Sabotage, spec.name, kwargs) if sabotaged else functools.partial(envs.make, spec.name, **kwargs)

    async def main() -> Any:
        pool = EnvPool(factory, **options)
        try:
            return await body(pool)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, pool.close)

    return asyncio.run(main())


def comparable(result: StepResult) -> tuple[Any, ...]:
    """What two members of a group must share."""
    named = {key: result.info.get(key) for key in ("won", "task", "task_type", "anchor", "score")}
    return result.observation, result.reward, result.done, result.admissible, json.dumps(named, sort_keys=True, default=str)


def script(spec: Spec, environment: Any, row: Row) -> list[str]:
    """A few actions for a row: the expert's first ones where it is a list, and one that no environment knows."""
    environment.reset(seed=row["seed"], options=row["options"])
    actions = environment.expert_actions() if spec.player is None else None
    return ["fly to the moon", *(actions or ["look around"])[: spec.turns]]


def trace(environment: Any, row: Row, actions: list[str]) -> list[tuple[Any, ...]]:
    """Play ``actions`` from the row's start, up to the end of the episode."""
    results = [read_reset(environment.reset(seed=row["seed"], options=row["options"]))]
    for action in actions:
        if results[-1].done:
            break
        results.append(read_step(environment.step(action)))
    return [comparable(result) for result in results]


async def play_in(lease: Any, row: Row, actions: list[str]) -> list[tuple[Any, ...]]:
    """As ``trace``, in a pool."""
    results = [await lease.reset(row["seed"], row["options"] or None)]
    for action in actions:
        if results[-1].done:
            break
        results.append(await lease.step(action))
    lease.finish()
    return [comparable(result) for result in results]


def play_expert(spec: Spec, environment: Any, row: Row, limit: int = 400) -> tuple[bool, int]:
    """Whether the expert reaches the goal, and in how many steps; (False, 0) if there is no expert."""
    observation, info = environment.reset(seed=row["seed"], options=row["options"])
    act = spec.expert(environment, info)
    if act is None:
        return False, 0
    for count in range(1, limit + 1):
        result = read_step(environment.step(act(observation, info)))
        observation, info = result.observation, result.info
        if result.done:
            return bool(info["won"]) and result.terminated and result.reward > 0, count
    return False, limit


# ----------------------------------------------------------------------------- checks


def check_rows(spec: Spec, environment: Any) -> None:
    """``episodes``: as many rows as asked for, the same every time, plain JSON, every split its own."""
    rows = spec.first(12)
    assert len(rows) == 12 and rows == spec.first(12) and rows[:5] == spec.first(5)
    for row in rows:
        assert json.loads(json.dumps(row)) == row
        assert isinstance(row["seed"], int) and isinstance(row["options"], dict)
        assert isinstance(row["task_type"], str) and row["prompt"].strip()
    keys = [json.dumps([row["seed"], row["options"]], sort_keys=True) for row in rows]
    assert len(set(keys)) == len(keys), "two rows are the same episode"
    if spec.rows is None:
        other = spec.environment.episodes(spec.split, count=12, seed=1, **spec.kwargs)
        assert other != rows, "seed does not change the draw"
        for split in spec.all_splits:
            assert spec.environment.episodes(split, count=2, **spec.kwargs)


def check_determinism(spec: Spec, environment: Any) -> None:
    """A row plays the same in a fresh object, in one that played others before, and again (a group)."""
    rows, fresh = spec.first(3), spec.make()
    try:
        for row in rows:
            actions = script(spec, environment, row)
            first = trace(environment, row, actions)
            assert first == trace(fresh, row, actions) == trace(fresh, row, actions)
            assert len(first) > 1 and first[0][0].strip()
        assert trace(environment, rows[0], ["look around"]) != trace(environment, rows[1], ["look around"]), (
            "two rows look the same"
        )
    finally:
        fresh.close()
        fresh.close()  # closing twice is allowed


def check_info(spec: Spec, environment: Any) -> None:
    """Task and type are those of the row; nothing is won at the start; admissible actions are taken."""
    for row in spec.first(2):
        _, info = environment.reset(seed=row["seed"], options=row["options"])
        assert info["task"].strip() and not info["won"]
        assert row["task_type"] == info["task_type"]
        for action in list(info.get("admissible_actions") or ())[:3]:
            read_step(environment.step(action))
            environment.reset(seed=row["seed"], options=row["options"])


def check_unicode(spec: Spec, environment: Any) -> None:
    """Actions of any text get an answer that is text and can be written as UTF-8, and do not win."""
    row = spec.first(1)[0]
    for action in NONSENSE:
        environment.reset(seed=row["seed"], options=row["options"])
        result = read_step(environment.step(action))
        result.observation.encode("utf-8")
        assert not result.info["won"] and result.reward <= 0


def check_long_observations_and_crash(spec: Spec, environment: Any) -> None:
    """A flooded observation travels through the pool, and its prompt is cut to the limit; then the simulator is killed
    in the middle of an episode: that episode fails, and the next reset rebuilds it."""
    row = spec.first(1)[0]

    async def body(pool: EnvPool) -> StepResult:
        async with pool.lease() as lease:
            whole = await play_in(lease, row, ["look around"])
            await lease.reset(row["seed"], row["options"] or None)
            flooded = await lease.step("!flood")
            await lease.reset(row["seed"], row["options"] or None)
            try:
                await lease.step("!crash")
                raise AssertionError("a dead simulator went unnoticed")
            except EnvironmentFailure as failure:
                assert failure.kind == "crash"
            assert await play_in(lease, row, ["look around"]) == whole
        assert (pool.stats.built, pool.stats.crashes) == (2, 1)
        return flooded

    flooded = in_pool(spec, body, sabotaged=True, isolation="process")
    assert len(flooded.observation) > 100_000 and "\u2603" in flooded.observation

    def tokenize(messages: list[dict[str, str]]) -> list[int]:
        return list(range(len(" ".join(m["content"] for m in messages).split())))

    fitted = PromptBuilder().fit(tokenize, 2048, str(flooded.info["task"]), flooded.observation, (), flooded.admissible, 2)
    assert len(fitted.token_ids) <= 2048 and fitted.dropped_words > 0


def check_hang(spec: Spec, environment: Any) -> None:
    """The simulator stops answering: the step ends at its limit, everything of it is killed, and it is rebuilt."""
    row = spec.first(1)[0]

    async def body(pool: EnvPool) -> None:
        async with pool.lease() as lease:
            await lease.reset(row["seed"], row["options"] or None)
            started = time.monotonic()
            try:
                await lease.step("!hang")
                raise AssertionError("a hanging simulator answered")
            except EnvironmentFailure as failure:
                assert failure.kind == "hang"
            assert time.monotonic() - started < spec.step_timeout_s + 5
            await lease.reset(row["seed"], row["options"] or None)
        assert (pool.stats.built, pool.stats.hangs) == (2, 1)

    in_pool(spec, body, sabotaged=True, isolation="process", step_timeout_s=spec.step_timeout_s)


def check_parallel(spec: Spec, environment: Any) -> None:
    """64 episodes in groups, on a few environments at once: no failure, and the members of a group are equal."""
    rows = spec.first(spec.distinct)
    scripts = [script(spec, environment, row) for row in rows]

    async def body(pool: EnvPool) -> list[list[tuple[Any, ...]]]:
        async def one(index: int) -> list[tuple[Any, ...]]:
            async with pool.lease() as lease:
                return await play_in(lease, rows[index], scripts[index])

        traces = await asyncio.gather(*(one(k % spec.distinct) for k in range(64)))
        assert pool.stats.episodes == 64 and pool.stats.crashes == pool.stats.hangs == 0
        assert pool.stats.built <= spec.open_at_once
        return traces

    _, isolation = how_to_run(spec.environment, None, "auto")
    traces = in_pool(spec, body, num_envs=spec.open_at_once, isolation=isolation, reset_timeout_s=300.0)
    for k, found in enumerate(traces):
        assert found == traces[k % spec.distinct], f"members of group {k % spec.distinct} differ"


def check_expert(spec: Spec, environment: Any) -> None:
    """The expert, or the gold path, reaches the goal on every row."""
    for row in spec.first(spec.expert_rows):
        won, steps = play_expert(spec, environment, row)
        assert won, f"expert lost {row} after {steps} steps"


def check_settings(spec: Spec, environment: Any) -> None:
    """A wrong setting is one ValueError that names it, before anything is started."""
    for settings, named in spec.wrong:
        before = {p.pid for p in simulators()}
        try:
            envs.make(spec.name, **{"split": spec.split, **spec.kwargs, **settings}).close()
        except ValueError as error:
            value = next(iter(settings.values()))
            shown = value[0] if isinstance(value, list) else value
            assert named in str(error) and str(shown) in str(error), error
        else:
            raise AssertionError(f"{settings} was accepted")
        assert {p.pid for p in simulators()} <= before


CHECKS: dict[str, Callable[[Spec, Any], None]] = {
    function.__name__.removeprefix("check_"): function
    for function in (
        check_rows,
        check_settings,
        check_determinism,
        check_info,
        check_unicode,
        check_long_observations_and_crash,
        check_hang,
        check_parallel,
        check_expert,
    )
}


# ----------------------------------------------------------------------------- table


def measure(spec: Spec) -> dict[str, Any]:
    """A row of the table: start-up, speed with one reset per episode, memory, and the expert's successes."""

    def memory() -> float:
        own = psutil.Process()
        return sum(p.memory_info().rss for p in (own, *own.children(recursive=True))) / 2**20

    rows = spec.first(2 * spec.expert_rows)
    before, started = memory(), time.perf_counter()
    environment = spec.make()
    environment.reset(seed=rows[0]["seed"], options=rows[0]["options"])
    start_up = time.perf_counter() - started
    played = [play_expert(spec, environment, row) for row in rows]
    # The second time round: what a long run has, after the just-in-time compiler and the caches are warm.
    started, steps, plays = time.perf_counter(), 0, 0
    while plays < len(rows) or time.perf_counter() - started < 5.0:
        steps += play_expert(spec, environment, rows[plays % len(rows)])[1]
        plays += 1
    seconds, used = time.perf_counter() - started, memory() - before
    environment.close()
    return {
        "env": spec.name,
        "version": importlib.metadata.version(spec.package) if spec.package else "own",
        "licence": spec.licence,
        "splits": list(spec.all_splits),
        "episodes": spec.episodes,
        "steps_per_s": round(steps / seconds, 1),
        "start_up_s": round(start_up, 2),
        "memory_mb": round(used),
        "expert_success": f"{sum(won for won, _ in played)}/{len(played)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, help="file to write")
    parser.add_argument("--only", nargs="*", help="names of environments; default: all that run here")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        spec = next(spec for spec in specs() if spec.name == arguments.one)
        Path(arguments.json).write_text(json.dumps(measure(spec)))
        return
    table = []
    for spec in specs():
        if arguments.only and spec.name not in arguments.only:
            continue
        reason = spec.missing()
        if reason:
            print(f"{spec.name}: skipped, {reason}", file=sys.stderr)
            continue
        # A process of its own: what one environment keeps in memory is not counted for the next.
        part = Path(f"{arguments.json}.{spec.name}.part")
        subprocess.run([sys.executable, __file__, "--json", str(part), "--one", spec.name], check=True, timeout=900)
        table.append(json.loads(part.read_text()))
        part.unlink()
        print(json.dumps(table[-1]), file=sys.stderr)
    Path(arguments.json).write_text(json.dumps({"cpu": os.cpu_count(), "rows": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
