# SPDX-License-Identifier: Apache-2.0
"""Question answering with the embedded index over the bundled corpus."""

import importlib.util

from conformance import Spec

SPEC = Spec(
    name="search",
    missing=lambda: "" if importlib.util.find_spec("bm25s") else "bm25s is not installed",
    wrong=(({"split": "mars"}, "split"), ({"topk": 0}, "topk"), ({"retriever": "google"}, "retriever")),
    episodes="410 / 47 / 143 questions",
)
