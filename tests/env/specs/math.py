# SPDX-License-Identifier: Apache-2.0
"""The generated school problems, checked by math-verify."""

import importlib.util

from conformance import Spec

SPEC = Spec(
    name="math",
    missing=lambda: "" if importlib.util.find_spec("math_verify") else "math_verify is not installed",
    wrong=(({"split": "mars"}, "split"), ({"verify_timeout_s": 0}, "verify_timeout_s"), ({"problems": "/no/file"}, "problems")),
    episodes="240 / 40 / 80 generated problems",
)
