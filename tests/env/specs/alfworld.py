# SPDX-License-Identifier: Apache-2.0
"""ALFWorld on games that the package's own material makes; all six task types."""

import importlib.util

from conformance import Spec


def missing():
    absent = [name for name in ("alfworld", "textworld", "fast_downward") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


SPEC = Spec(
    name="alfworld",
    kwargs={"source": "generated"},
    missing=missing,
    wrong=(
        ({"split": "mars"}, "split"),
        ({"task_types": ["dance"]}, "task_types"),
        ({"source": "stolen"}, "source"),
        ({"data": "/nowhere", "source": "downloaded"}, "data"),
        ({"max_turns": 0}, "max_turns"),
    ),
    expert_rows=6,
    distinct=2,
    turns=1,
    open_at_once=2,
    step_timeout_s=5.0,
    package="alfworld",
    licence="MIT (brings GPL-3)",
    episodes="1,200 / 120 / 120 generated; 3,553 / 140 / 134 downloaded",
)
