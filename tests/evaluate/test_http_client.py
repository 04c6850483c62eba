# SPDX-License-Identifier: Apache-2.0
"""What the judge, evaluation, the retriever and the sandbox share: one connection a request, retries, bounds of a reply."""

from __future__ import annotations

import http.server
import threading
import time

import pytest

from verl_entropy import http_client
from verl_entropy.http_client import BadStatus, NoAnswer


@pytest.fixture
def serve():
    """Answers with (status, headers, body) of a script, the last of it for ever."""
    servers = []

    def start(*script):
        seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                seen.append((time.monotonic(), self.rfile.read(int(self.headers["Content-Length"]))))
                status, headers, body = script[min(len(seen), len(script)) - 1]
                self.send_response(status)
                for name, value in {"Content-Length": len(body), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/x", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(url, **settings):
    given = {"retries": 2, "first_wait_s": 0.01, "passes": lambda error: isinstance(error, BadStatus) and error.code == 503}
    return http_client.again(lambda: http_client.send(url, {"a": "\ud800"}, timeout_s=20.0), **{**given, **settings})


def test_a_wait_is_as_long_as_the_server_asks_for_and_attempts_are_counted(serve):
    url, seen = serve((503, {"Retry-After": "0.4"}, b""), (200, {}, b"done"))
    assert ask(url) == b"done" and seen[1][0] - seen[0][0] >= 0.4
    assert seen[0][1] == b'{"a": "\\ud800"}'  # a lone surrogate is sent as its escape
    url, seen = serve((503, {}, b"busy\nnow"))
    with pytest.raises(BadStatus, match="busy now") as caught:
        ask(url)
    assert (caught.value.code, caught.value.attempts, len(seen)) == (503, 3, 3)
    url, seen = serve((404, {}, b""))
    with pytest.raises(BadStatus) as caught:
        ask(url)
    assert (caught.value.attempts, len(seen)) == (1, 1)


def test_a_stop_ends_a_wait(serve):
    url, _ = serve((503, {"Retry-After": "50"}, b""))
    stop, start = threading.Event(), time.monotonic()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(BadStatus):
        ask(url, retries=1, stop=stop)
    assert time.monotonic() - start < 40.0


def test_a_long_reply_is_cut(serve):
    url, _ = serve((200, {}, b"x" * 100_000))
    assert len(http_client.send(url, {}, timeout_s=20.0, max_reply=1000)) == 1000


def test_a_dead_server_is_no_answer_and_the_key_is_in_no_text(serve):
    with pytest.raises(NoAnswer, match=r"refused|failed"):
        http_client.send("http://127.0.0.1:1/x", {}, timeout_s=20.0)
    url, _ = serve((500, {}, b"your key sk-1234 is odd"))
    with pytest.raises(BadStatus, match=r"your key \*\*\* is odd"):
        http_client.send(url, {}, timeout_s=20.0, key="sk-1234")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("https://h/v1", True),
        ("http://[::1]:8", True),
        ("h/v1", False),
        ("http://", False),
        ("http://h:x", False),
        ("http://h h", False),
    ],
)
def test_addresses(text, valid):
    assert http_client.is_url(text) is valid
