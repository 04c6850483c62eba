# SPDX-License-Identifier: Apache-2.0
"""ScienceWorld in Java: short tasks, so that the suite stays quick."""

from conformance import Spec, package_and_java

SPEC = Spec(
    name="scienceworld",
    kwargs={"tasks": ["find-non-living-thing", "find-plant", "lifespan-longest-lived", "power-component"]},
    missing=lambda: package_and_java("scienceworld"),
    wrong=(
        ({"split": "mars"}, "split"),
        ({"tasks": ["cook-dinner"]}, "tasks"),
        ({"simplifications": "veryEasy"}, "simplifications"),
        ({"reward": "generous"}, "reward"),
        ({"max_turns": 0}, "max_turns"),
        ({"memory_mb": 1}, "memory_mb"),
    ),
    expert_rows=4,
    distinct=4,
    open_at_once=2,
    step_timeout_s=10.0,
    package="scienceworld",
    episodes="3,592 / 1,796 / 1,819",
)
