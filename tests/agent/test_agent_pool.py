# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import functools
import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from agent_envs import RELEASE, Climb, Simulator, Trouble

from verl_entropy.agent.environment import how_to_run
from verl_entropy.agent.pool import EnvironmentFailure, EnvPool, PoolBroken, shared_pool

ISOLATION = ["thread", "process"]


@pytest.fixture(autouse=True)
def nothing_leaks():
    """After a test neither a thread nor a process of an environment is left."""
    Trouble.built = Trouble.closed = 0
    RELEASE.clear()
    yield
    RELEASE.set()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and (env_threads() or multiprocessing.active_children()):
        time.sleep(0.02)
    assert env_threads() == [] and multiprocessing.active_children() == []


def env_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("env-")]


def run(body, factory=Trouble, **options):
    """Run ``await body(pool)`` and close the pool."""

    async def main():
        pool = EnvPool(factory, **options)
        try:
            return await body(pool)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, pool.close)

    return asyncio.run(main())


async def climb(lease, goal=2):
    await lease.reset(options={"goal": goal})
    result = None
    while result is None or not result.done:
        result = await lease.step("up")
    lease.finish()
    return result


@pytest.mark.parametrize("isolation", ISOLATION)
def test_an_environment_is_reused(isolation):
    async def body(pool):
        for _ in range(3):
            async with pool.lease() as lease:
                result = await climb(lease)
                assert result.info["won"] and result.reward == 1.0 and result.admissible == ("up", "up two", "down")
        return pool.stats

    stats = run(body, isolation=isolation)
    assert (stats.built, stats.episodes, stats.crashes, stats.hangs) == (1, 3, 0, 0)


def test_64_episodes_share_8_environments():
    async def episode(pool, peak):
        async with pool.lease() as lease:
            peak.append(pool.open_environments)
            await lease.reset()
            await lease.step("sleep")
            await climb(lease)

    async def body(pool):
        peak = []
        await asyncio.gather(*(episode(pool, peak) for _ in range(64)))
        return pool.stats, max(peak)

    start = time.monotonic()
    stats, peak = run(body, num_envs=8)
    assert stats.episodes == 64 and stats.built == 8 and peak <= 8
    assert time.monotonic() - start < 64 * 0.05  # in parallel


def test_episodes_that_end_early_free_their_place():
    async def body(pool):
        order = []

        async def episode(name, goal):
            async with pool.lease() as lease:
                await climb(lease, goal)
                order.append(name)

        await asyncio.gather(episode("long", 300), episode("short", 1), episode("waiting", 1))
        return order

    assert run(body, num_envs=2)[-1] == "long"


@pytest.mark.parametrize("isolation", ISOLATION)
@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        ("crash", "crash", "out of order"),
        ("stop iteration", "crash", "StopIteration"),
        ("old gym", "protocol", "Gym before 0.26"),
    ],
)
def test_a_crash_is_one_episodes_and_the_environment_is_rebuilt(isolation, action, kind, message):
    async def body(pool):
        async with pool.lease() as lease:
            await lease.reset()
            with pytest.raises(EnvironmentFailure, match=message) as failure:
                await lease.step(action)
            assert failure.value.kind == kind and pool.open_environments == 0
            with pytest.raises(RuntimeError, match="reset"):
                await lease.step("up")
            await climb(lease)
        return pool.stats

    stats = run(body, isolation=isolation)
    assert (stats.built, stats.crashes, stats.episodes) == (2, 1, 1)


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_hang_is_left_behind_or_killed(isolation):
    async def body(pool):
        async with pool.lease() as lease:
            await lease.reset()
            processes = multiprocessing.active_children()
            start = time.monotonic()
            with pytest.raises(EnvironmentFailure, match=r"hang: step\(\) took longer than 0.5 s"):
                await lease.step("hang")
            assert time.monotonic() - start < 2.0
            await climb(lease)
            assert pool.stats.hangs == 1 and pool.stats.built == 2
            if isolation == "thread":
                assert pool.hung_threads == 1
                RELEASE.set()
            for _ in range(100):
                if not pool.hung_threads:
                    break
                await asyncio.sleep(0.05)
            assert pool.hung_threads == 0
            assert not any(p.is_alive() for p in processes)

    run(body, isolation=isolation, step_timeout_s=0.5)


@pytest.mark.parametrize(("isolation", "action"), [("thread", "hang"), ("process", "hang"), ("process", "exit")])
def test_what_an_environment_started_ends_with_it(isolation, action):
    """A hang in a thread is ended by the environment's ``kill``; with a process goes all that it started."""

    async def body(pool):
        async with pool.lease() as lease:
            pid = (await lease.reset()).info["pid"]
            with pytest.raises(EnvironmentFailure):
                await lease.step(action)
            for _ in range(100):
                if not (pool.hung_threads or alive(pid)):
                    break
                await asyncio.sleep(0.05)
            assert pool.hung_threads == 0 and not alive(pid)
            await climb(lease)

    run(body, Simulator, isolation=isolation, step_timeout_s=0.5)


def alive(pid):
    """Whether a process runs; one that only waits to be collected does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("num_envs", "isolation", "expected"),
    [(None, "auto", (2, "process")), (9, "thread", (9, "thread")), (None, "thread", (2, "thread"))],
)
def test_an_environment_says_how_it_wants_to_be_run(num_envs, isolation, expected):
    class Heavy(Climb):
        POOL_SIZE, ISOLATION = 2, "process"

    assert how_to_run(Heavy, num_envs, isolation) == expected
    assert how_to_run(Climb, None, "auto") == (64, "thread")


def test_a_process_that_exits_is_a_crash():
    async def body(pool):
        async with pool.lease() as lease:
            await lease.reset()
            with pytest.raises(EnvironmentFailure, match="exit code 3"):
                await lease.step("exit")
            await climb(lease)

    run(body, isolation="process")


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_constructor_that_hangs(isolation):
    async def body(pool):
        async with pool.lease() as lease:
            with pytest.raises(PoolBroken, match=r"building took longer.*data\.env\.name"):
                await lease.reset()

    run(body, functools.partial(Trouble, hang_in_build=True), isolation=isolation, reset_timeout_s=0.3)


def test_a_constructor_that_raises_says_so_at_once():
    async def body(pool):
        async with pool.lease() as lease:
            with pytest.raises(PoolBroken, match=r"(?s)unexpected keyword argument 'gaol'.*data\.env\.kwargs"):
                await lease.reset()

    run(body, functools.partial(Climb, gaol=1))


def test_failures_in_a_row_end_the_run_and_a_finished_episode_forgives():
    async def crash(pool):
        async with pool.lease() as lease:
            await lease.reset()
            with pytest.raises(EnvironmentFailure):
                await lease.step("crash")

    async def body(pool):
        for _ in range(3):
            await crash(pool)
            await crash(pool)
            async with pool.lease() as lease:
                await climb(lease)
        for _ in range(3):
            await crash(pool)
        with pytest.raises(PoolBroken, match=r"(?s)3 failures in a row, data\.env\.max_env_failures=3.*out of order"):
            await crash(pool)

    run(body, max_env_failures=3)


def test_hung_threads_are_bounded():
    async def body(pool):
        for _ in range(2):
            async with pool.lease() as lease:
                await lease.reset()
                with pytest.raises(EnvironmentFailure):
                    await lease.step("hang")
            pool._failures_in_a_row = 0
        async with pool.lease() as lease:
            with pytest.raises(PoolBroken, match=r"2 threads hang.*isolation=process"):
                await lease.reset()

    run(body, max_env_failures=2, step_timeout_s=0.1)


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_cancelled_session_gives_its_place_back(isolation):
    async def stuck(pool):
        async with pool.lease() as lease:
            await lease.reset()
            await lease.step("hang")

    async def body(pool):
        task = asyncio.create_task(stuck(pool))
        await asyncio.sleep(1.0 if isolation == "process" else 0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with pool.lease() as lease:
            await climb(lease)
        return pool.stats

    assert run(body, num_envs=1, isolation=isolation).episodes == 1


def test_closing_closes_environments():
    async def body(pool):
        async with pool.lease() as first, pool.lease() as second:
            await climb(first)
            await climb(second)

    run(body)
    assert (Trouble.built, Trouble.closed) == (2, 2)


def test_one_pool_per_loop_and_setting():
    async def pools():
        made = [shared_pool(key, lambda: EnvPool(Climb)) for key in ("a", "a", "b")]
        async with made[0].lease() as lease:
            await climb(lease)
        return made

    first, second = asyncio.run(pools()), asyncio.run(pools())
    assert first[0] is first[1] is not first[2]
    assert second[0] is not first[0] and first[0].open_environments == 0  # a closed loop's pools are closed
    second[0].close()


@pytest.mark.parametrize("isolation", ISOLATION)
def test_a_program_that_ends_while_an_environment_hangs_leaves_nothing(isolation, tmp_path):
    script = f"""
import asyncio, multiprocessing, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from agent_envs import Trouble
from verl_entropy.agent.pool import EnvPool, EnvironmentFailure

async def main():
    pool = EnvPool(Trouble, isolation={isolation!r}, step_timeout_s=0.2)
    async with pool.lease() as hangs, pool.lease() as idle:
        await hangs.reset()
        await idle.reset()
        print(*[p.pid for p in multiprocessing.active_children()], flush=True)
        try:
            await hangs.step("hang")
        except EnvironmentFailure:
            pass

if __name__ == "__main__":
    asyncio.run(main())
"""
    (tmp_path / "program.py").write_text(script)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == (2 if isolation == "process" else 0)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
