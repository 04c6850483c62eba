# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible chat endpoint: rate limit, what is tried again, and what every request would meet."""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from verl_entropy import http_client
from verl_entropy.agent.cut import is_cut
from verl_entropy.http_client import BadStatus, NoAnswer
from verl_entropy.runs.judge.prompt import MAX_OUTPUT

CHAT = "/chat/completions"
MAX_REPLY = 2**20
"""Bytes of a reply that are read: a score needs some hundred."""
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Status codes that pass: overload, rate limits, gateways."""
FATAL = (300, 301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
"""Status codes that every other request would get, too."""
FIRST_WAIT = 1.0
"""Seconds before the first retry."""
JITTER = 0.25


class JudgeError(ValueError):
    """Judging cannot go on; the message says why and what to do."""


class RequestFailed(Exception):
    """One request failed for good; others may succeed."""


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask."""

    url: str
    """Base address, as https://host/v1."""
    model: str
    key: str = field(default="", repr=False)
    per_minute: float = 60.0
    """Requests begun in a minute at most, retries included; 0: no limit."""
    timeout: float = 60.0
    """Seconds that a connection may be silent."""
    retries: int = 5
    max_output: int = MAX_OUTPUT
    first_wait: float = FIRST_WAIT
    body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a request, over ours; None takes one away (models that want max_completion_tokens)."""

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not self.model.strip():
            raise JudgeError("model is empty. Give the name that the endpoint knows, --model NAME.")
        if not http_client.is_key(self.key):
            raise JudgeError(
                "the key has spaces, control or non-ASCII characters. Set the environment variable to the key alone."
            )
        reserved = sorted({"model", "messages", "stream", "n"} & set(self.body))
        if reserved:
            raise JudgeError(f"body sets {', '.join(reserved)}: not allowed. Use --model, and leave the others out.")
        for name, low in (("per_minute", 0.0), ("timeout", 0.001), ("retries", 0), ("max_output", 1)):
            if not low <= getattr(self, name) < 1e9:
                raise JudgeError(f"{name}={getattr(self, name)}: must be at least {low:g} and finite.")

    @property
    def chat_url(self) -> str:
        """Address of chat completions."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        return urlunsplit(parts._replace(path=path if path.endswith(CHAT) else path + CHAT, fragment=""))

    @property
    def exposes_key(self) -> bool:
        """Whether the key would cross a network unencrypted."""
        parts = urlsplit(self.url)
        return bool(self.key) and parts.scheme == "http" and not _loopback(parts.hostname or "")


def _check_url(url: str) -> None:
    if not http_client.is_url(url):
        raise JudgeError("endpoint: not an address. Give the base address, as --endpoint https://host/v1.")
    if urlsplit(url).username or urlsplit(url).password:
        raise JudgeError("endpoint: holds a user or password, which would show in logs. Put the key into the environment.")


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RateLimit:
    """Evenly spaced starts, over all threads."""

    def __init__(self, per_minute: float):
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> None:
        """Return when the next request may begin, or ``stop`` is set."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self._gap
        stop.wait(max(start - now, 0.0))

    def hold(self, seconds: float) -> None:
        """Let no request begin for so long: the endpoint said that it has too many."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@dataclass(frozen=True)
class Reply:
    """An answer and the tokens it took."""

    text: Any
    input_tokens: int
    output_tokens: int
    cut: bool = False
    """It was ended by the token limit."""


class Client:
    """Asks the endpoint; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self.stop = threading.Event()
        """Set it to end waits and retries soon."""
        self._limit = RateLimit(endpoint.per_minute)

    def ask(self, messages: list[dict[str, str]]) -> Reply:
        """One answer. RequestFailed: this request failed for good; JudgeError: every request would."""
        e = self.endpoint
        body = {"temperature": 0, "max_tokens": e.max_output, **e.body, "model": e.model, "messages": messages}
        body = {name: value for name, value in body.items() if value is not None}

        def attempt() -> Reply:
            self._limit.wait(self.stop)
            if self.stop.is_set():
                raise RequestFailed("stopped")
            return _reply(http_client.send(e.chat_url, body, timeout_s=e.timeout, key=e.key, max_reply=MAX_REPLY))

        try:
            return http_client.again(
                attempt, retries=e.retries, first_wait_s=e.first_wait, passes=self._passes, jitter=JITTER, stop=self.stop
            )
        except BadStatus as error:
            problem = f"HTTP {error.code}"
            if error.code in FATAL:
                raise JudgeError(f"{problem} from the endpoint.{_advice(error)}.") from error
            if error.code not in RETRIED:
                raise RequestFailed(f"{problem} {error}") from error
        except NoAnswer as error:
            problem = f"no answer: {error}"
        except ValueError as error:  # a reply that is no chat completion
            problem = http_client.one_line(f"{type(error).__name__}: {error}", e.key)
        raise RequestFailed(f"{problem} ({e.retries + 1} attempts)")

    def _passes(self, error: BaseException) -> bool:
        """Whether another attempt may succeed; all requests are held back where the endpoint says that it has too many."""
        if not isinstance(error, BadStatus):
            return isinstance(error, NoAnswer | ValueError)
        if error.code == 429:
            self._limit.hold(error.retry_after_s)
        return error.code in RETRIED


def _advice(error: BadStatus) -> str:
    """What to do about a status that every request would get; the endpoint's own words where they are of use."""
    if error.code < 400:
        return " The endpoint redirects; give the address it points to"
    if error.code == 401:
        return " Set the environment variable of --key-env to a valid key"
    hint = (
        "Check --endpoint (the base address, as https://host/v1) and --model"
        if error.code == 404
        else "Check endpoint and account"
    )
    return f" {error} {hint}"


def _count(usage: Any, key: str) -> int:
    value = usage.get(key) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _reply(data: bytes) -> Reply:
    """The answer in a reply; ValueError if it is no chat completion."""
    try:
        record = json.loads(data)
    except RecursionError as error:
        raise ValueError("the reply is no chat completion") from error
    choices = record.get("choices") if isinstance(record, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict):
        raise ValueError("the reply is no chat completion")
    usage = record.get("usage")
    return Reply(
        message.get("content"),
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        is_cut(first.get("finish_reason")),
    )
