# SPDX-License-Identifier: Apache-2.0
"""The shop with invented products."""

import importlib.util

from conformance import Spec

SPEC = Spec(
    name="webshop_like",
    missing=lambda: "" if importlib.util.find_spec("bm25s") else "bm25s is not installed",
    wrong=(({"split": "mars"}, "split"), ({"products": 5}, "products"), ({"reward": "gold"}, "reward")),
    turns=5,
    episodes="1,526 / 100 / 200 goals, 1,000 products",
)
