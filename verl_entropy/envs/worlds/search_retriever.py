# SPDX-License-Identifier: Apache-2.0
"""Where search results come from: a retrieval server over HTTP (Search-R1's protocol) or an embedded BM25 index."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from verl_entropy import http_client
from verl_entropy.envs.tasks import read_rows, text_of
from verl_entropy.envs.worlds.search_corpus import Passage, world
from verl_entropy.envs.worlds.search_index import BM25Index
from verl_entropy.http_client import BadStatus, NoAnswer

logger = logging.getLogger(__name__)
FIRST_WAIT_S = 0.5  # doubled at every retry: a restart of a server's worker takes seconds, not minutes


class RetrieverError(ValueError):
    """The retriever gave no usable answer."""


class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, query: str, top: int) -> list[Passage]:
        """The best ``top`` passages, the best first."""
        ...


class EmbeddedRetriever:
    """BM25 over passages in memory."""

    def __init__(self, passages: tuple[Passage, ...]) -> None:
        self._passages = passages
        self._index = BM25Index([f"{passage.title} {passage.text}" for passage in passages], "search")

    def search(self, query: str, top: int) -> list[Passage]:
        return [self._passages[number] for number, _ in self._index.search(query, top)]


class HttpRetriever:
    """``POST {"queries": [...], "topk": k, "return_scores": true}`` -> ``{"result": [[{"document": ..., "score": ...}]]}``."""

    def __init__(self, url: str, timeout_s: float, retries: int) -> None:
        if not http_client.is_url(url):
            raise ValueError(f"retriever={url!r}: must be 'embedded' or a URL such as http://127.0.0.1:8000/retrieve")
        parts = urlsplit(url)
        self.url = url if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/retrieve"
        self._timeout_s, self._retries = timeout_s, retries
        self.skipped = 0
        """Passages without text so far."""

    def search(self, query: str, top: int) -> list[Passage]:
        """Ask the server, again after a failure of the connection or of the server itself; RetrieverError in the end."""
        body = {"queries": [query], "topk": top, "return_scores": True}

        def send() -> bytes:
            return http_client.send(self.url, body, timeout_s=self._timeout_s)

        try:
            text = http_client.again(send, retries=self._retries, first_wait_s=FIRST_WAIT_S, passes=_passes)
        except (BadStatus, NoAnswer) as error:
            problem = f"answered {error.code} {error.reason}" if isinstance(error, BadStatus) else f"does not answer ({error})"
            raise self._failed(f"{problem}, {error.attempts} attempts of at most {self._timeout_s:g} s") from error
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise self._failed(f"answered something that is not JSON: {text[:80]!r}") from error
        return self._read(answer)[:top]

    def _read(self, answer: Any) -> list[Passage]:
        """The passages of the one query; with or without scores."""
        try:
            documents = [item.get("document", item) for item in answer["result"][0]]
            if not all(isinstance(document, Mapping) for document in documents):
                raise TypeError("a document is no object")
            return [passage for document in documents if (passage := self._usable(document)) is not None]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            shown = json.dumps(answer)[:120]
            raise self._failed(f"answered without result[0][i].document.contents: {shown}") from error

    def _usable(self, document: Mapping[str, Any]) -> Passage | None:
        """The passage, or None for one without text: it is left out, counted, and the first one named."""
        if "contents" not in document and "text" not in document:
            raise KeyError("contents")
        try:
            return _passage(document)
        except ValueError as error:
            if not self.skipped:
                logger.warning("retriever=%r: a passage is left out (%s); further ones are counted, not named", self.url, error)
            self.skipped += 1
            return None

    def _failed(self, problem: str) -> RetrieverError:
        return RetrieverError(
            f"retriever={self.url!r} {problem}. Start the retrieval server and check the URL, raise retriever_timeout_s, "
            "or set retriever=embedded"
        )


def _passes(error: BaseException) -> bool:
    """Whether another attempt may succeed: a failure of the connection or of the server itself."""
    return isinstance(error, NoAnswer) or (isinstance(error, BadStatus) and error.code >= 500)


def _passage(document: Mapping[str, Any]) -> Passage:
    """A document as Search-R1's corpora have it: ``contents`` is the title in quotes, a line break, the text."""
    if "contents" not in document:
        return Passage(str(document.get("title") or "").strip('"'), text_of(document, "text"))
    title, _, text = text_of(document, "contents").partition("\n")
    return Passage(title.strip().strip('"'), text.strip()) if text else Passage("", title)


_building = threading.Lock()
_alive: set[str] = set()


def embedded(corpus: str | None) -> EmbeddedRetriever:
    """The index over the bundled corpus, or over the user's file; one per process."""
    with _building:
        return _embedded(corpus)


@lru_cache(maxsize=4)
def _embedded(corpus: str | None) -> EmbeddedRetriever:
    if corpus is None:
        return EmbeddedRetriever(world().passages)
    path = Path(corpus).expanduser()
    if not path.is_file():
        raise ValueError(f"corpus={corpus!r}: no such file; give a .jsonl or .parquet of 'contents' (or 'title' and 'text')")
    return EmbeddedRetriever(tuple(read_rows("corpus", path, _passage)))


def over_http(url: str, timeout_s: float, retries: int) -> HttpRetriever:
    """The client of a server, which is asked once per process whether it lives."""
    client = HttpRetriever(url, timeout_s, retries)
    with _building:
        if client.url not in _alive:
            client.search("test", 1)
            _alive.add(client.url)
    return client
