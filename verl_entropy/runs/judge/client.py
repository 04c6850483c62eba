# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible chat endpoint by the standard library: rate limit, retries with backoff, and a key that never shows.

The key is only ever put into the Authorization header of requests to the given endpoint: redirects are refused, and messages
are cleared of it.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from verl_entropy.agent.cut import is_cut
from verl_entropy.runs.judge.prompt import MAX_OUTPUT

CHAT = "/chat/completions"
MAX_REPLY = 2**20
"""Bytes of a reply that are read: a score needs some hundred."""
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Status codes that pass: overload, rate limits, gateways."""
FATAL = (300, 301, 302, 303, 307, 308, 401, 402, 403, 404, 405)
"""Status codes that every other request would get, too."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds before the first retry (doubled each time) and at most."""


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
        if self.key and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
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
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known or not url.isprintable() or " " in url:
        raise JudgeError("endpoint: not an address. Give the base address, as --endpoint https://host/v1.")
    if parts.username or parts.password:
        raise JudgeError("endpoint: holds a user or password, which would show in logs. Put the key into the environment.")


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


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
        self._opener = urllib.request.build_opener(_NoRedirect)

    def ask(self, messages: list[dict[str, str]]) -> Reply:
        """One answer. RequestFailed: this request failed for good; JudgeError: every request would."""
        e = self.endpoint
        body = {"temperature": 0, "max_tokens": e.max_output, **e.body, "model": e.model, "messages": messages}
        body = {name: value for name, value in body.items() if value is not None}
        problem, wait = "", 0.0
        for attempt in range(e.retries + 1):
            if attempt:
                self.stop.wait(max(wait, min(e.first_wait * 2.0 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.75, 1.25)))
            self._limit.wait(self.stop)
            if self.stop.is_set():
                raise RequestFailed("stopped")
            try:
                return _reply(self._post(body))
            except urllib.error.HTTPError as error:
                problem, wait = self._status(error)
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem, wait = self._clean(f"{type(error).__name__}: {error}"), 0.0
        raise RequestFailed(f"{problem} ({e.retries + 1} attempts)")

    def _post(self, body: dict[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "verl-entropy"}
        if self.endpoint.key:
            headers["Authorization"] = f"Bearer {self.endpoint.key}"
        data = json.dumps(body).encode("ascii")
        request = urllib.request.Request(self.endpoint.chat_url, data=data, headers=headers, method="POST")
        deadline = time.monotonic() + 10 * self.endpoint.timeout  # a reply that trickles must end, too
        with self._opener.open(request, timeout=self.endpoint.timeout) as reply:
            found = b""
            while len(found) < MAX_REPLY and (part := reply.read1(2**16)):
                found += part
                if time.monotonic() > deadline:
                    raise TimeoutError("the reply did not end")
        return found

    def _status(self, error: urllib.error.HTTPError) -> tuple[str, float]:
        """What an error status says and how long to wait; raises where a retry is of no use."""
        with error:
            said = self._clean(error.read(2000).decode("utf-8", errors="replace"))
        problem = f"HTTP {error.code}"
        if error.code in FATAL:
            hint = {
                401: "Set the environment variable of --key-env to a valid key",
                404: "Check --endpoint (the base address, as https://host/v1) and --model",
            }
            moved = "The endpoint redirects; give the address it points to" if error.code < 400 else "Check endpoint and account"
            text = "" if error.code < 400 or error.code == 401 else f" {said}"
            raise JudgeError(f"{problem} from the endpoint.{text} {hint.get(error.code, moved)}.")
        if error.code not in RETRIED:
            raise RequestFailed(f"{problem} {said}")
        wait = _retry_after(error.headers.get("Retry-After"))
        if error.code == 429:
            self._limit.hold(wait)
        return problem, wait

    def _clean(self, text: str) -> str:
        """``text`` on one short line, without the key."""
        if self.endpoint.key:
            text = text.replace(self.endpoint.key, "***")
        text = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(text.split())[:200]


def _retry_after(value: str | None) -> float:
    """Seconds of a Retry-After header (a number or a date), at most LONGEST_WAIT; 0 without a readable one."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else 0.0


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
