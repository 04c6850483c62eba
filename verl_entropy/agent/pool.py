# SPDX-License-Identifier: Apache-2.0
"""Blocking environments behind an event loop: a thread each, time limits, rebuild after a crash or a hang.

Each environment lives in its own host and every call on it, the constructor included, is made from
one thread. ``isolation="process"`` puts the object in a spawned process that the thread talks to; such an
environment can be killed, with all that it started. A hung thread cannot: unless the environment's ``kill``
frees it, it is left behind (daemonic, counted, bounded) and its environment replaced.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import threading
import time
import traceback
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from verl_entropy import envs
from verl_entropy.agent.environment import StepResult, TextEnvironment, how_to_run, read_reset, read_step
from verl_entropy.agent.settings import AgentSettings

logger = logging.getLogger(__name__)

Factory = Callable[[], TextEnvironment]
CLOSE_SECONDS = 5.0
"""What closing may take at exit, all environments together, before threads are left and processes killed."""


class EnvironmentFailure(RuntimeError):
    """One environment crashed, hung or broke the interface; it has been given up."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


BROKEN = "verl_entropy_broken"
"""Partition of verl's queue in which a worker says that its pool is broken; the trainer's replay buffer then ends the run."""


class PoolBroken(RuntimeError):
    """The environments fail so persistently that the run must not go on."""


# ----------------------------------------------------------------------------- hosts


class _ThreadHost:
    """The environment as an object of this process."""

    def __init__(self, factory: Factory):
        self._factory = factory
        self._environment: TextEnvironment | None = None

    def build(self) -> None:
        self._environment = self._factory()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._environment.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        return self._environment.step(action)

    def snapshot(self) -> bytes:
        """The environment as it is now, of a class with SNAPSHOT = clone."""
        return pickle.dumps(self._environment)

    def restore(self, snapshot: bytes) -> None:
        """Go on from such a snapshot; what a clone's class promises is that the object before it holds nothing to close."""
        self._environment = pickle.loads(snapshot)

    @property
    def built(self) -> bool:
        return self._environment is not None

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    def kill(self) -> None:
        """A thread cannot be killed, but what it waits for can, if the environment has ``kill``."""
        kill = getattr(self._environment, "kill", None)
        if kill is not None:
            kill()


class _ProcessHost:
    """The environment in a spawned process; all but ``kill`` is called from the host's thread."""

    def __init__(self, factory: Factory):
        self._factory = factory
        self._lock = threading.Lock()
        self._killed = self._ended = False
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: multiprocessing.connection.Connection | None = None

    def build(self) -> None:
        context = multiprocessing.get_context("spawn")
        with self._lock:
            if self._killed:
                raise EnvironmentFailure("hang", "given up before its process started")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve_process, args=(theirs, self._factory), daemon=True)
            self._process.start()
        theirs.close()
        self._receive()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        return self._ask("reset", {"seed": seed, "options": options})

    def step(self, action: str) -> Any:
        return self._ask("step", {"action": action})

    def snapshot(self) -> bytes:
        return self._ask("snapshot", {})

    def restore(self, snapshot: bytes) -> None:
        self._ask("restore", {"snapshot": snapshot})

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError, EnvironmentFailure):
            self._connection.send(("close", {}))
        multiprocessing.connection.wait([self._process.sentinel], 0.0 if self._killed else CLOSE_SECONDS / 2)
        self.kill()
        self._process.join()
        self._connection.close()

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            self._end_group()

    def _end_group(self) -> None:
        """Kill the process and, once, all that it started."""
        if self._process is None or self._ended:
            return
        self._ended = True
        with contextlib.suppress(OSError):  # it had not come so far as to have a group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _ask(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            self._connection.send((name, arguments))
        except OSError as error:
            raise self._died() from error
        return self._receive()

    def _receive(self) -> Any:
        try:
            status, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if status == "error":
            raise EnvironmentFailure("crash", value)
        return value

    def _died(self) -> EnvironmentFailure:
        # The pipe closes a moment before the exit code is known. Until join nobody else can have the group's number.
        multiprocessing.connection.wait([self._process.sentinel], 1.0)
        with self._lock:
            self._end_group()
        self._process.join(1.0)
        return EnvironmentFailure("crash", f"its process ended with exit code {self._process.exitcode}")


def _serve_process(connection: multiprocessing.connection.Connection, factory: Factory) -> None:
    """Main function of an environment's process."""
    os.setpgid(0, 0)  # whatever the environment starts can be ended with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    host = _ThreadHost(factory)
    names = ("build", "reset", "step", "snapshot", "restore")
    calls: dict[str, Callable[..., Any]] = {name: getattr(host, name) for name in names}
    name, arguments = "build", {}
    while name != "close":
        try:
            connection.send(("ok", calls[name](**arguments)))
        except Exception:
            connection.send(("error", traceback.format_exc(limit=-8)))
        if not host.built:
            return
        try:
            name, arguments = connection.recv()
        except EOFError:
            break
    host.close()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    multiprocessing.connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)


class _Slot:
    """A host and the thread that makes its calls."""

    def __init__(self, host: _ThreadHost | _ProcessHost, number: int):
        self.host = host
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve_thread, args=(self._tasks, host), name=f"env-{number}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Future:
        future: Future = Future()
        self._tasks.put((call, future))
        return future

    def retire(self) -> None:
        """Close the environment as soon as its present call returns, and end the thread."""
        self._tasks.put(None)

    def __del__(self) -> None:
        self.retire()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)


def _serve_thread(tasks: queue.SimpleQueue, host: _ThreadHost | _ProcessHost) -> None:
    while (task := tasks.get()) is not None:
        call, future = task
        if future.set_running_or_notify_cancel():
            # Errors travel as results: asyncio refuses StopIteration, and SystemExit must not end the thread.
            try:
                outcome = (call(), None)
            except BaseException as error:
                outcome = (None, error)
            future.set_result(outcome)
        task = call = future = outcome = None  # keep nothing of the last episode alive
    try:
        host.close()
    except Exception:
        logger.warning("closing an environment failed", exc_info=True)


# ----------------------------------------------------------------------------- pool


@dataclass
class PoolStats:
    """Counters of a pool since it was made."""

    built: int = 0
    episodes: int = 0
    crashes: int = 0
    hangs: int = 0


class EnvPool:
    """At most ``num_envs`` open environments, built on demand, reused from episode to episode."""

    def __init__(
        self,
        factory: Factory,
        *,
        num_envs: int = 64,
        isolation: str = "thread",
        step_timeout_s: float = 60.0,
        reset_timeout_s: float = 120.0,
        max_env_failures: int = 64,
    ):
        self.stats = PoolStats()
        self._factory = factory
        self._host = {"thread": _ThreadHost, "process": _ProcessHost}[isolation]
        self._step_timeout_s, self._reset_timeout_s = step_timeout_s, reset_timeout_s
        self._max_failures = max_env_failures
        self._failures_in_a_row = 0
        self._last_failure = ""
        self._semaphore = asyncio.Semaphore(num_envs)
        self._free: list[_Slot] = []
        self._open: set[_Slot] = set()
        self._hung: list[_Slot] = []
        _pools.add(self)

    @property
    def open_environments(self) -> int:
        """Environments in use or kept for reuse."""
        return len(self._open)

    @property
    def full(self) -> bool:
        """Whether the next lease has to wait."""
        return self._semaphore.locked()

    @property
    def hung_threads(self) -> int:
        """Threads left behind that still hang."""
        self._hung = [slot for slot in self._hung if slot.alive]
        return len(self._hung)

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[EnvLease]:
        """Wait for a free place and hold it; ``reset`` builds an environment if it needs one."""
        async with self._semaphore:
            lease = EnvLease(self, self._free.pop() if self._free else None)
            try:
                yield lease
            finally:
                lease.end()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close every environment; what does not close in time is killed (processes) or left (threads)."""
        slots, self._open, self._free = self._open, set(), []
        for slot in slots:
            slot.retire()
        _join(slots, seconds)
        for slot in slots:
            if slot.alive:
                slot.host.kill()
        _join(slots, 1.0)

    # -- used by EnvLease

    async def build(self) -> _Slot:
        """A new environment, or EnvironmentFailure; PoolBroken if not even the first one can be built."""
        self._check_health()
        slot = _Slot(self._host(self._factory), self.stats.built + self.stats.crashes + self.stats.hangs)
        self._open.add(slot)
        try:
            await self.call(slot, slot.host.build, self._reset_timeout_s, "building")
        except EnvironmentFailure as error:
            if self.stats.built == 0:
                raise PoolBroken(
                    f"the environment cannot be built ({error}). Check data.env.name and data.env.kwargs."
                ) from error
            raise
        self.stats.built += 1
        return slot

    async def reset(self, slot: _Slot, seed: int | None, options: dict[str, Any] | None) -> StepResult:
        answer = await self.call(slot, lambda: slot.host.reset(seed, options), self._reset_timeout_s, "reset()")
        return self._read(slot, read_reset, answer)

    async def step(self, slot: _Slot, action: str) -> StepResult:
        answer = await self.call(slot, lambda: slot.host.step(action), self._step_timeout_s, "step()")
        return self._read(slot, read_step, answer)

    async def snapshot(self, slot: _Slot) -> bytes:
        return await self.call(slot, slot.host.snapshot, self._step_timeout_s, "snapshot()")

    async def restore(self, slot: _Slot, snapshot: bytes) -> None:
        await self.call(slot, lambda: slot.host.restore(snapshot), self._reset_timeout_s, "restore()")

    async def call(self, slot: _Slot, function: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Run ``function`` on the slot's thread; a failure gives the slot up: EnvironmentFailure."""
        future = asyncio.wrap_future(slot.submit(function))
        try:
            done, _ = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError:
            future.cancel()
            self._give_up(slot, running=True)
            raise
        if not done:
            future.cancel()
            self._give_up(slot, running=True)
            raise self._failed("hang", f"{what} took longer than {timeout_s:g} s")
        result, error = future.result()
        if error is None:
            return result
        self._give_up(slot)
        if isinstance(error, EnvironmentFailure):
            raise self._failed(error.kind, f"{what}: {error}") from error
        trace = "".join(traceback.format_exception(error, limit=-8))
        raise self._failed("crash", f"{what} raised {trace}") from error

    def give_back(self, slot: _Slot, finished: bool) -> None:
        self._free.append(slot)
        if finished:
            self.stats.episodes += 1
            self._failures_in_a_row = 0

    # -- private

    def _read(self, slot: _Slot, reader: Callable[[Any], StepResult], answer: Any) -> StepResult:
        try:
            return reader(answer)
        except (TypeError, ValueError) as error:
            raise self.broke_interface(slot, error) from error

    def broke_interface(self, slot: _Slot | None, error: Exception) -> EnvironmentFailure:
        """Count an environment that broke the interface, and give it up; the failure to raise."""
        if slot is not None:
            self._give_up(slot)
        return self._failed("protocol", str(error))

    def _give_up(self, slot: _Slot, running: bool = False) -> None:
        self._open.discard(slot)
        slot.retire()
        if running:
            slot.host.kill()
            self._hung.append(slot)

    def _failed(self, kind: str, message: str) -> EnvironmentFailure:
        if kind == "hang":
            self.stats.hangs += 1
        else:
            self.stats.crashes += 1
        self._failures_in_a_row += 1
        self._last_failure = f"{kind}: {message}"
        return EnvironmentFailure(kind, message)

    def _check_health(self) -> None:
        hung = self.hung_threads
        if self._failures_in_a_row < self._max_failures and hung < self._max_failures:
            return
        too_many_hang = hung >= self._max_failures
        cause = f"{hung} threads hang" if too_many_hang else f"{self._failures_in_a_row} failures in a row"
        raise PoolBroken(
            f"{cause}, data.env.max_env_failures={self._max_failures}. Last failure: {self._last_failure}. "
            "Repair the environment; if it hangs, set data.env.isolation=process so that it can be killed, "
            "or raise data.env.step_timeout_s."
        )


def _join(slots: set[_Slot], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for slot in slots:
        slot.join(max(0.0, deadline - time.monotonic()))


class EnvLease:
    """The right to one open environment for one session."""

    def __init__(self, pool: EnvPool, slot: _Slot | None):
        self._pool, self._slot = pool, slot
        self._finished = False

    async def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> StepResult:
        """Start an episode; builds an environment if the lease has none or the last one failed."""
        slot, self._slot = self._slot, None
        if slot is None:
            slot = await self._pool.build()
        result = await self._pool.reset(slot, seed, options)
        self._slot, self._finished = slot, False
        return result

    async def step(self, action: str) -> StepResult:
        """Take one action; after an EnvironmentFailure only ``reset`` can follow."""
        slot, self._slot = self._slot, None
        if slot is None:
            raise RuntimeError("step() without an open episode: call reset() first")
        result = await self._pool.step(slot, action)
        self._slot = slot
        return result

    async def snapshot(self) -> bytes:
        """The environment as it is; it goes on as if nothing had been asked."""
        slot, self._slot = self._slot, None
        if slot is None:
            raise RuntimeError("snapshot() without an open episode: call reset() first")
        found = await self._pool.snapshot(slot)
        self._slot = slot
        return found

    async def restore(self, snapshot: bytes) -> None:
        """Put the environment where another one was at its ``snapshot``."""
        slot, self._slot = self._slot, None
        if slot is None:
            slot = await self._pool.build()
        await self._pool.restore(slot, snapshot)
        self._slot, self._finished = slot, False

    def broke_interface(self, error: ValueError) -> EnvironmentFailure:
        """Give up the environment because of something it said; the failure to raise."""
        slot, self._slot = self._slot, None
        return self._pool.broke_interface(slot, error)

    def finish(self) -> None:
        """Say that the episode was played to its end; the pool then forgets earlier failures."""
        self._finished = True

    def end(self) -> None:
        """Give the environment back; called by the pool."""
        if self._slot is not None:
            self._pool.give_back(self._slot, self._finished)
            self._slot = None


# ----------------------------------------------------------------------------- pools of this process

_pools: weakref.WeakSet[EnvPool] = weakref.WeakSet()
_shared: dict[asyncio.AbstractEventLoop, dict[str, EnvPool]] = {}


def pool_of(s: AgentSettings) -> EnvPool:
    """A pool of the environment of these settings; ValueError where there is none of that name."""
    num_envs, isolation = how_to_run(envs.resolve(s.name), s.num_envs, s.isolation)
    return EnvPool(functools.partial(envs.make, s.name, **s.kwargs), num_envs=num_envs, isolation=isolation, **s.limits)


def shared_pool(key: str, make: Callable[[], EnvPool]) -> EnvPool:
    """The pool of ``key`` in the running event loop; made at first use. Pools of closed loops are closed."""
    for loop in [loop for loop in _shared if loop.is_closed()]:
        for pool in _shared.pop(loop).values():
            pool.close()
    pools = _shared.setdefault(asyncio.get_running_loop(), {})
    if key not in pools:
        pools[key] = make()
    return pools[key]


@atexit.register
def close_all() -> None:
    """Close every pool of this process."""
    for pool in list(_pools):
        pool.close()
    _shared.clear()
