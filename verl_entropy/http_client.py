# SPDX-License-Identifier: Apache-2.0
"""JSON over HTTP for the judge, evaluation, the search retriever and the code sandbox: time-outs, retries, a key that never shows.

The key is only ever put into the Authorization header of requests to the given address: redirects are not followed, and texts of
errors are cleared of it. Every request has a connection of its own, so none is sent on one that the server has just closed.
"""

from __future__ import annotations

import email.utils
import functools
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import tenacity

T = TypeVar("T")
MAX_REPLY = 2**26
"""Bytes of a reply that are read."""
LONGEST_WAIT_S = 60.0
"""Before a retry, whatever the server asks for."""
TRICKLE = 10
"""A reply may take this many times the time-out in all: one that trickles must end, too."""


class HttpError(Exception):
    """No usable answer."""

    attempts = 1
    """How often it was asked for."""


class NoAnswer(HttpError):
    """No connection, one that broke, or silence beyond the time-out; the text is the reason."""


class BadStatus(HttpError):
    """An answer with another status than 2xx; the text is the start of its body, in one line."""

    def __init__(self, code: int, reason: str, text: str, retry_after_s: float):
        super().__init__(text)
        self.code, self.reason, self.retry_after_s = code, reason, retry_after_s


def is_url(text: str) -> bool:
    """Whether ``text`` is an address of a server: http or https, a host, a valid port, no spaces."""
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and (parts.port or 1) > 0
            and text.isprintable()
            and " " not in text
        )
    except ValueError:
        return False


def is_key(text: str) -> bool:
    """Whether ``text`` can stand in a header; libraries put one that cannot into their messages."""
    return text.isascii() and text.isprintable() and " " not in text


def one_line(text: str, key: str = "", limit: int = 200) -> str:
    """``text`` on one short line, without the key."""
    text = text.replace(key, "***") if key else text
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


def send(
    url: str, body: Mapping[str, Any] | None = None, *, timeout_s: float, key: str = "", max_reply: int = MAX_REPLY
) -> bytes:
    """POST ``body`` as JSON (None: GET) and return the reply's bytes, at most ``max_reply``; NoAnswer or BadStatus.

    ``timeout_s``: seconds that the connection may be silent.
    """
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "verl-entropy"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    content = None if body is None else json.dumps(body).encode("ascii")
    deadline = time.monotonic() + TRICKLE * timeout_s
    method, found = "GET" if body is None else "POST", b""
    try:
        with _client().stream(method, url, content=content, headers=headers, timeout=timeout_s) as reply:
            for part in reply.iter_bytes():
                found += part
                if len(found) >= max_reply:
                    break
                if time.monotonic() > deadline:
                    raise NoAnswer("the reply did not end")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoAnswer(one_line(str(error) or type(error).__name__, key)) from error
    if not reply.is_success:
        text = one_line(found[:2000].decode("utf-8", errors="replace"), key, 300)
        raise BadStatus(reply.status_code, reply.reason_phrase, text, _retry_after_s(reply.headers.get("Retry-After")))
    return found[:max_reply]


def again(
    call: Callable[[], T],
    *,
    retries: int,
    first_wait_s: float,
    passes: Callable[[BaseException], bool],
    jitter: float = 0.0,
    stop: threading.Event | None = None,
) -> T:
    """``call()``, up to ``retries`` times more after an error that ``passes``; the last error is raised with ``attempts`` set.

    The wait is ``first_wait_s`` and doubles each time, or what the server's Retry-After says where that is longer.
    ``jitter``: share by which it is drawn shorter or longer, so that clients do not come back all at once. ``stop`` ends a wait.
    """

    def wait(state: tenacity.RetryCallState) -> float:
        seconds = min(first_wait_s * 2.0 ** (state.attempt_number - 1), LONGEST_WAIT_S) * random.uniform(1 - jitter, 1 + jitter)
        error = state.outcome.exception()
        return max(seconds, error.retry_after_s) if isinstance(error, BadStatus) else seconds

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        stop=tenacity.stop_after_attempt(retries + 1),
        wait=wait,
        sleep=tenacity.sleep if stop is None else tenacity.sleep_using_event(stop),
        reraise=True,
    )
    try:
        return retrying(call)
    except HttpError as error:
        error.attempts = retrying.statistics["attempt_number"]
        raise


@functools.cache
def _client() -> httpx.Client:
    """One for all threads of a process: making one reads the certificates of the system, some 30 ms."""
    return httpx.Client(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


os.register_at_fork(after_in_child=_client.cache_clear)


def _retry_after_s(value: str | None) -> float:
    """Seconds of a Retry-After header (a number or a date), at most LONGEST_WAIT_S; 0 without a readable one."""
    try:
        seconds = float(value or 0)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_WAIT_S) if seconds == seconds else 0.0
