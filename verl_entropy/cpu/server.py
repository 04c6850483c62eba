# SPDX-License-Identifier: Apache-2.0
"""The rollout server of ``rollout.name=hf``: one transformers model in one async Ray actor.

Tokens in, tokens out. Requests are gathered for a short window and completed together; the next batch starts
when this one is finished. Settings, all optional, under ``actor_rollout_ref.rollout.engine_kwargs.hf``:

    num_threads        threads of torch; more than there are free cores is many times slower (default 1)
    batch_window_ms    a batch starts when no request has come for this long (default 10)
    batch_wait_ms      ... or when the first request has waited this long (default 100)
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
import torch
from verl.utils import normalize_token_ids
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from verl_entropy.cpu.runner import ModelRunner
from verl_entropy.cpu.sampling import Completion, Request


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """``actor_rollout_ref.rollout.engine_kwargs.hf``."""

    num_threads: int = 1
    batch_window_ms: float = 10.0
    batch_wait_ms: float = 100.0

    @classmethod
    def from_engine_kwargs(cls, engine_kwargs: Mapping[str, Any]) -> ServerSettings:
        given = dict(engine_kwargs.get("hf") or {})
        allowed = [field.name for field in dataclasses.fields(cls)]
        for key, value in given.items():
            number = int if key == "num_threads" else int | float
            if key not in allowed or not isinstance(value, number) or value <= 0:
                raise ValueError(
                    f"actor_rollout_ref.rollout.engine_kwargs.hf.{key}={value!r}: allowed are num_threads "
                    "(an integer >= 1), batch_window_ms and batch_wait_ms (numbers > 0); "
                    "fix: remove it or set one of these"
                )
        return cls(**given)


def load_model(model_config: HFModelConfig):
    """The policy in fp32, as the actor computes: only then is the ratio of an on-policy batch exactly 1."""
    from verl.utils.model import get_hf_auto_model_class

    auto_class = get_hf_auto_model_class(hf_config=model_config.hf_config)
    return auto_class.from_pretrained(
        model_config.local_path,
        config=model_config.hf_config,
        dtype=torch.float32,
        trust_remote_code=model_config.trust_remote_code,
    )


@dataclasses.dataclass
class _Pending:
    request_id: str
    request: Request
    done: asyncio.Future


class HFServer:
    """What verl calls on a rollout server. A plain class, so that it also runs without Ray."""

    def __init__(self, config, model_config, replica_rank: int = 0):
        rollout = omega_conf_to_dataclass(config)
        model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        self.settings = ServerSettings.from_engine_kwargs(rollout.engine_kwargs)
        self.runner = ModelRunner(load_model(model_config), model_config.tokenizer, rollout, replica_rank)
        self.max_num_seqs = rollout.max_num_seqs
        # The number of threads belongs to the thread that computes, so it is set where the pool's thread
        # starts.
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(self.settings.num_threads,))
        self._pending: list[_Pending] = []
        self._running: list[_Pending] = []
        self._arrived = asyncio.Event()
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._idle = asyncio.Lock()  # held while the model computes or its weights change
        self._reject = False
        self._abort = False
        self._loop: asyncio.Task | None = None
        self._stats = {"batches": 0, "requests": 0, "tokens": 0, "seconds": 0.0}

    async def ready(self) -> str:
        """Address under which the load balancer knows this server."""
        return f"hf-{self.runner.replica_rank}"

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list | None = None,
        video_data: list | None = None,
        audio_data: list | None = None,
        mm_processor_kwargs: dict | None = None,
        priority: int = 0,
    ) -> TokenOutput:
        """Complete a prompt; log-probabilities only if ``sampling_params["logprobs"]`` asks for them."""
        if image_data or video_data or audio_data:
            raise ValueError("the hf rollout takes text only; fix: use rollout.name=vllm for images, video and audio")
        while not self._admitted.is_set():
            if self._reject:
                return self._output(Completion([], [], aborted=True), logprobs=False)
            await self._admitted.wait()
        request = self.runner.request(normalize_token_ids(prompt_ids), sampling_params, request_id)
        pending = _Pending(request_id, request, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._arrived.set()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._serve())
        return self._output(await pending.done, logprobs=request.params.logprobs)

    async def generate_many(self, requests: list[dict[str, Any]]) -> list[TokenOutput | BaseException]:
        """The arguments of several calls of ``generate`` in one; what a request raises takes the place of its output."""
        return await asyncio.gather(*(self.generate(**request) for request in requests), return_exceptions=True)

    def _output(self, completion: Completion, logprobs: bool) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.log_probs if logprobs else None,
            stop_reason="aborted" if completion.aborted else "completed",
            extra_fields={"global_steps": self.runner.global_steps}
            | ({} if completion.top_log_probs is None else {"top_log_probs": completion.top_log_probs}),
        )

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            await self._window()
            async with self._idle:
                await self._run_batch()

    async def _window(self) -> None:
        """Wait until requests stop arriving."""
        deadline = time.monotonic() + self.settings.batch_wait_ms / 1000
        seen = -1
        while seen < len(self._pending) < self.max_num_seqs and time.monotonic() < deadline:
            seen = len(self._pending)
            await asyncio.sleep(self.settings.batch_window_ms / 1000)

    async def _run_batch(self) -> None:
        self._running = self._pending[: self.max_num_seqs]
        self._pending = self._pending[self.max_num_seqs :]
        if not self._pending:
            self._arrived.clear()
        if not self._running:
            return
        requests = [pending.request for pending in self._running]
        start = time.monotonic()
        try:
            completions = await asyncio.get_running_loop().run_in_executor(
                self._pool, self.runner.run, requests, lambda: self._abort
            )
        except Exception as error:
            self._finish([error] * len(requests))
        else:
            self._finish(completions)
            tokens = sum(len(completion.token_ids) for completion in completions)
            for key, value in zip(self._stats, (1, len(requests), tokens, time.monotonic() - start), strict=True):
                self._stats[key] += value

    def _finish(self, results: list[Completion | Exception]) -> None:
        for pending, result in zip(self._running, results, strict=True):
            if pending.done.done():  # the caller went away
                continue
            if isinstance(result, Exception):
                pending.done.set_exception(result)
            else:
                pending.done.set_result(result)
        self._running = []

    async def load_weights(self, weights: dict[str, torch.Tensor], last: bool, global_steps: int | None = None) -> None:
        """One bucket of a weight update; ``global_steps`` is the version of the weights, given with the last
        bucket.
        """
        async with self._idle:
            self.runner.load_weights(weights, last)
            if last and global_steps is not None:
                self.runner.set_global_steps(global_steps)

    async def set_global_steps(self, global_steps: int) -> None:
        self.runner.set_global_steps(global_steps)

    async def stats(self) -> dict[str, float]:
        """Batches, requests, new tokens and seconds of computing since the start."""
        return dict(self._stats)

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Return every request as far as it is and admit no more until ``resume_generation``.

        Requests that come meanwhile wait, or return at once as aborted if ``reject_request``.
        """
        self._reject = reject_request
        self._admitted.clear()
        self._abort = True
        waiting, self._pending = self._pending, []
        ids = [pending.request_id for pending in (*waiting, *self._running)]
        for pending in waiting:
            if not pending.done.done():
                pending.done.set_result(Completion([], [], aborted=True))
        async with self._idle:
            self._abort = False
        return {"aborted_count": len(ids), "request_ids": ids}

    async def resume_generation(self) -> None:
        self._reject = False
        self._admitted.set()

    async def wait_for_requests_to_drain(self) -> None:
        while self._pending or self._running:
            await asyncio.sleep(self.settings.batch_window_ms / 1000)

    async def sleep(self) -> None:
        """Nothing to free on a CPU: weights stay, and a cache lives no longer than its batch."""

    async def wake_up(self, tags: list[str] | None = None) -> None:
        pass

    async def clear_kv_cache(self) -> None:
        pass

    async def release_kv_cache(self) -> None:
        pass

    async def resume_kv_cache(self) -> None:
        pass

    async def start_profile(self, **kwargs: Any) -> None:
        """verl's rollout profiling drives the profiler of an inference engine; there is none here."""

    async def stop_profile(self) -> None:
        pass


class HFReplica(RolloutReplica):
    """Starts one ``HFServer`` per rank of the actor."""

    async def launch_servers(self) -> None:
        if self.is_reward_model or self.is_teacher_model:
            raise ValueError(
                "rollout.name=hf cannot serve a reward or teacher model: it has no HTTP endpoint; "
                "fix: use a rule-based reward on a CPU"
            )
        if self.world_size != 1:
            raise ValueError(
                "rollout.name=hf runs a whole model per rank: tensor_model_parallel_size x "
                f"data_parallel_size x pipeline_model_parallel_size is {self.world_size} and must be 1; fix: set "
                "actor_rollout_ref.rollout.tensor_model_parallel_size=1"
            )
        server = (
            ray.remote(HFServer)
            .options(
                name=server_name(self.replica_rank, self.name_suffix),
                max_concurrency=self.max_concurrency,
                num_cpus=0,
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        self._server_address = await server.ready.remote()
        self._server_handle = server
        self.servers = [server]

    async def sleep(self) -> None:
        await self._server_handle.wait_for_requests_to_drain.remote()
        await super().sleep()


def server_name(replica_rank: int, suffix: str = "") -> str:
    return f"hf_server_{replica_rank}_0{suffix}"
