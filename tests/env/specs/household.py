# SPDX-License-Identifier: Apache-2.0
"""The embedded household."""

from conformance import Spec

SPEC = Spec(
    name="household",
    kwargs={"difficulty": "easy"},
    wrong=(({"split": "mars"}, "split"), ({"difficulty": "mad"}, "difficulty"), ({"max_turns": 0}, "max_turns")),
    expert_rows=12,
    episodes="unbounded",
)
