# SPDX-License-Identifier: Apache-2.0
"""A local OpenAI-compatible endpoint whose answers a test scripts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}


def completion(content, usage=USAGE) -> tuple[int, dict, bytes]:
    """Status, headers and body of a chat completion."""
    return 200, {}, json.dumps({"choices": [{"message": {"content": content}}], "usage": usage}).encode()


def scored(score, reason="fine") -> tuple[int, dict, bytes]:
    return completion(json.dumps({"score": score, "reason": reason}))


class Server:
    """Answers requests with ``script(number, request)``: (status, headers, body), or None to say nothing for a while."""

    def __init__(self, script: Callable):
        self.script, self.requests, self.times = script, [], []
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with lock:
                    number = len(outer.requests)
                    outer.requests.append({"path": self.path, "headers": dict(self.headers), "body": json.loads(body)})
                    outer.times.append(time.monotonic())
                answer = outer.script(number, outer.requests[number])
                if answer is None:
                    time.sleep(1.0)
                    return
                status, headers, data = answer
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(data))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
