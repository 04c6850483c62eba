# SPDX-License-Identifier: Apache-2.0
"""An in-memory BM25 index on ``bm25s`` (MIT licence, numpy only), with a stable order of equal scores."""

from __future__ import annotations

import numpy as np

from verl_entropy.envs.tasks import need

STOP_WORDS = "a an and are as at by for from has have in is it of on or that the this to was were which who with".split()
"""Function words only; everything else may tell two products or passages apart."""


class BM25Index:
    """Texts ranked by BM25 (Lucene's variant, k1 = 1.5 and b = 0.75: the library's defaults)."""

    def __init__(self, texts: list[str], environment: str) -> None:
        self._library = need("bm25s", environment, f"pip install 'verl-entropy[{environment}]' (or bm25s)")
        self._model = self._library.BM25(backend="numpy", csc_backend="numpy")
        tokens = self._library.tokenize(texts, stopwords=STOP_WORDS, show_progress=False)
        self._vocabulary = tokens.vocab
        self._model.index(tokens, show_progress=False)

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """(number of the text, score) of the best ``top``, the best first; texts without a word of the query are left out."""
        words = self._library.tokenize([query], stopwords=STOP_WORDS, show_progress=False, return_ids=False)[0]
        known = [word for word in words if word in self._vocabulary]
        if not known:
            return []
        scores = np.asarray(self._model.get_scores(known))
        order = np.argsort(-scores, kind="stable")[:top]
        return [(int(number), float(scores[number])) for number in order if scores[number] > 0.0]
