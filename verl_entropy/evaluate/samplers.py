# SPDX-License-Identifier: Apache-2.0
"""Who answers a prompt: an OpenAI-compatible server, or a checkpoint in this process."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from verl_entropy import http_client
from verl_entropy.agent.cut import is_cut, tokens_cut
from verl_entropy.agent.prompts import FittedPrompt
from verl_entropy.agent.template import without_end
from verl_entropy.batch.foreign import read_whole
from verl_entropy.config.settings import ConfigError
from verl_entropy.http_client import BadStatus, NoAnswer

NEUTRAL: Mapping[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling values that change nothing; a server takes those that a request leaves out from the model's generation_config.json."""
STANDARD = ("presence_penalty", "frequency_penalty")
"""Those of them that every OpenAI-compatible server knows; vLLM and SGLang know all."""

RETRIES, FIRST_WAIT_S = 4, 1.0
"""Requests that the server refuses for now (429, 5xx, a connection that breaks) are sent again after 1, 2, 4, 8 seconds."""
WINDOW_S = 0.02
"""A batch of a local checkpoint starts when no request has come for this long: its episodes step in time with one another."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn."""

    temperature: float = 0.4
    top_p: float = 1.0
    max_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    """Besides the model's own end tokens (``data.env.stop_at_action``)."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"--temperature={self.temperature}: must be at least 0 (greedy).")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p={self.top_p}: must be in (0, 1].")
        if self.max_tokens < 1:
            raise ValueError(f"--max-tokens={self.max_tokens}: must be at least 1.")


@dataclass(frozen=True)
class Answer:
    """The text of an answer and how many tokens it took; ``cut``: it ended at the token limit or was aborted, not by itself."""

    text: str
    tokens: int
    cut: bool = False


class Sampler(Protocol):
    """Answers prompts; many calls are under way at once."""

    async def answer(self, prompt: FittedPrompt, seed: int) -> Answer:
        """One answer; the same prompt and seed give the same one where the server can do that."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class EndpointError(ValueError):
    """The server cannot be reached or does not speak the protocol."""


class Endpoint:
    """An OpenAI-compatible server: vLLM, SGLang, verl's rollout server, or a provider.

    ``tokens=True`` sends the prompt's token ids to ``/v1/completions``, exactly as the agent loop sends them; else the
    messages go to ``/v1/chat/completions`` and the server renders its own chat template. ``keep_special``: the
    tags of the answer are special tokens of the tokenizer. ``neutral``: send also the values of `NEUTRAL` that are no part of
    OpenAI's protocol; off for a provider that refuses them. ``think_tag``: a thought that the server hands over apart from
    the text (``reasoning_content``, ``reasoning``) is put back between these tags; ``thought_opened``: the chat template
    has opened it.
    """

    def __init__(self, url: str, sampling: Sampling, *, model: str | None = None, tokens: bool = False, concurrency: int = 64,
                 timeout_s: float = 600.0, keep_special: bool = False, neutral: bool = True, think_tag: str = "think",
                 thought_opened: bool = False, end_texts: Sequence[str] = ()):  # fmt: skip
        if not http_client.is_url(url):
            raise ValueError(f"--endpoint={url}: expected a URL such as http://localhost:8000/v1.")
        self._url = url.rstrip("/")
        self._url += "" if self._url.endswith("/v1") else "/v1"
        self._sampling, self._tokens, self._timeout_s = sampling, tokens, timeout_s
        self._think_tag, self._thought_opened = think_tag, thought_opened
        self._end_texts = tuple(end_texts)
        self.sent: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            **{key: value for key, value in NEUTRAL.items() if neutral or key in STANDARD},
        }
        """The sampling values of every request, besides its seed."""
        if sampling.stop_token_ids:  # vLLM's and SGLang's; a provider will say that it does not know it
            self.sent["stop_token_ids"] = list(sampling.stop_token_ids)
        if keep_special:
            self.sent["skip_special_tokens"] = False
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not http_client.is_key(self._key):
            raise ValueError("OPENAI_API_KEY: has spaces, control or non-ASCII characters. Set it to the key alone.")
        self._threads, self._stop = ThreadPoolExecutor(concurrency), threading.Event()
        self.model = model or self._only_model()

    async def answer(self, prompt: FittedPrompt, seed: int) -> Answer:
        """One answer."""
        body: dict[str, Any] = {"model": self.model, **self.sent, "seed": seed}
        path = "/completions" if self._tokens else "/chat/completions"
        body |= {"prompt": prompt.token_ids} if self._tokens else {"messages": prompt.messages}
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, path, body, RETRIES)
        return self._read(path, reply)

    def close(self) -> None:
        """Stop the threads."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, path: str, reply: Any) -> Answer:
        try:
            choice = reply["choices"][0]
            text = choice["text"] if self._tokens else self._whole(choice["message"])
            if not isinstance(text, str):
                raise TypeError("the text is no text")
            text = without_end(text, self._end_texts)
            used = (reply.get("usage") or {}).get("completion_tokens")
            return Answer(
                text, 0 if used is None else read_whole(used, "usage.completion_tokens"), is_cut(choice.get("finish_reason"))
            )
        except (KeyError, IndexError, TypeError) as error:
            raise EndpointError(f"--endpoint: {self._url}{path} answered {str(reply)[:200]!r}, not a completion.") from error

    def _whole(self, message: Mapping[str, Any]) -> str:
        """The text as the model wrote it: servers with a reasoning parser take the thought and its tags out."""
        text = message.get("content") or ""
        thought = message.get("reasoning_content") or message.get("reasoning")
        opening, closing = f"<{self._think_tag}>", f"</{self._think_tag}>"
        if not isinstance(thought, str) or not thought.strip() or closing in text:
            return text
        before = "" if self._thought_opened else opening
        # without a text after it the thought may be unfinished: it is not closed for the model
        return f"{before}{thought}{closing}{text}" if text.strip() else f"{before}{thought}"

    def _refused(self, path: str, error: BadStatus) -> EndpointError:
        reason = str(error)
        refused = [key for key in NEUTRAL if key not in STANDARD and key in self.sent and key in reason]
        if refused:
            reason += f" It does not know {', '.join(refused)}: set --no-neutral"
        return EndpointError(f"--endpoint: {self._url}{path} answered {error.code}: {reason or error.reason}.")

    def _ask(self, path: str, body: Mapping[str, Any] | None, retries: int = 0) -> Any:
        def send() -> bytes:
            return http_client.send(self._url + path, body, timeout_s=self._timeout_s, key=self._key)

        try:
            found = http_client.again(send, retries=retries, first_wait_s=FIRST_WAIT_S, passes=self._passes, stop=self._stop)
            return json.loads(found)
        except BadStatus as error:
            raise self._refused(path, error) from error
        except NoAnswer as error:
            raise EndpointError(
                f"--endpoint: {self._url}{path} does not answer ({error}). Is the server up, and is that its address?"
            ) from error
        except ValueError as error:
            raise EndpointError(
                f"--endpoint: {self._url}{path} does not answer in JSON. Is that an OpenAI-compatible server?"
            ) from error

    def _passes(self, error: BaseException) -> bool:
        passing = isinstance(error, NoAnswer) or (isinstance(error, BadStatus) and (error.code == 429 or error.code >= 500))
        return passing and not self._stop.is_set()

    def _only_model(self) -> str:
        try:
            found = [str(entry["id"]) for entry in self._ask("/models", None)["data"]]
        except (KeyError, TypeError) as error:
            raise EndpointError(f"--endpoint: {self._url}/models lists no models. Name one with --model.") from error
        if len(found) != 1:
            raise EndpointError(f"--endpoint: {self._url} serves {', '.join(found) or 'nothing'}. Choose one with --model.")
        return found[0]


@dataclass(frozen=True)
class _Rollout:
    """The settings that `ModelRunner` reads of verl's rollout configuration."""

    prompt_length: int
    response_length: int
    logprobs_mode: str = "processed_logprobs"
    max_model_len: int | None = None
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    full_determinism: bool = True
    seed: int = 0


class Checkpoint:
    """A Hugging Face checkpoint sampled on the CPU with the code of the CPU rollout server, in batches."""

    def __init__(
        self,
        path: str,
        tokenizer: Any,
        sampling: Sampling,
        prompt_length: int,
        *,
        keep_special: bool = False,
        batch: int = 64,
        end_texts: Sequence[str] = (),
    ):
        import torch
        from transformers import AutoModelForCausalLM

        from verl_entropy.cpu.runner import ModelRunner

        try:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        except Exception as error:  # safetensors has an error of its own, which is neither OSError nor ValueError
            raise ConfigError(
                f"{path}: its weights cannot be loaded ({str(error).splitlines()[0]}). Give a folder that save_pretrained wrote whole."
            ) from error
        self._runner = ModelRunner(model, tokenizer, _Rollout(prompt_length, sampling.max_tokens))
        self._decode = lambda ids: without_end(tokenizer.decode(ids, skip_special_tokens=not keep_special), end_texts)
        self._sampling, self._batch = sampling, batch
        self._ends = {*self._runner.eos_ids, *sampling.stop_token_ids}
        self.sent = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens, **NEUTRAL}
        self._pending: list[tuple[Any, asyncio.Future]] = []
        self._thread = ThreadPoolExecutor(1)
        self._loop: asyncio.Task | None = None

    async def answer(self, prompt: FittedPrompt, seed: int) -> Answer:
        """One answer."""
        s = self._sampling
        params = {
            "temperature": s.temperature,
            "top_p": s.top_p,
            "max_tokens": s.max_tokens,
            "seed": seed,
            "stop_token_ids": s.stop_token_ids,
        }
        request = self._runner.request(prompt.token_ids, params)
        done = asyncio.get_running_loop().create_future()
        self._pending.append((request, done))
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._serve())
        return await done

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _answer(self, completion: Any) -> Answer:
        ids = completion.token_ids
        cut = tokens_cut(ids, self._sampling.max_tokens, self._ends, "abort" if completion.aborted else None)
        return Answer(self._decode(ids), len(ids), cut)

    async def _serve(self) -> None:
        while self._pending:
            seen = -1
            while seen < len(self._pending) < self._batch:
                seen = len(self._pending)
                await asyncio.sleep(WINDOW_S)
            batch, self._pending = self._pending[: self._batch], self._pending[self._batch :]
            requests = [request for request, _ in batch]
            try:
                completions = await asyncio.get_running_loop().run_in_executor(self._thread, self._runner.run, requests)
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
                continue
            for (_, done), completion in zip(batch, completions, strict=True):
                if not done.done():
                    done.set_result(self._answer(completion))
