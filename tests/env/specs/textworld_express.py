# SPDX-License-Identifier: Apache-2.0
"""All eight games of TextWorldExpress."""

from conformance import Spec, package_and_java

SPEC = Spec(
    name="textworld_express",
    missing=lambda: package_and_java("textworld_express"),
    wrong=(
        ({"split": "mars"}, "split"),
        ({"games": ["chess"]}, "games"),
        ({"difficulty": "mad"}, "difficulty"),
        ({"reward": "generous"}, "reward"),
        ({"params": {"coin": {"numRooms": 3}}}, "params"),
        ({"max_turns": 0}, "max_turns"),
    ),
    expert_rows=16,
    distinct=8,
    open_at_once=2,
    step_timeout_s=5.0,
    package="textworld-express",
    episodes="8,000 / 8,000 / 8,000",
)
