# SPDX-License-Identifier: Apache-2.0
"""``prompt_template=verl_agent`` equals verl-agent's functions, text by text and answer by answer."""

import pytest


@pytest.mark.parametrize("name", ["alfworld", "webshop", "search", "appworld"])
def test_prompts_and_rules_are_verl_agents(results, name):
    found = results("agent_prompts.py")[name]
    assert not found["wrong"], "\n".join(found["wrong"])
    assert found["prompts"] >= 200 and 0 < found["valid"] < found["answers"] == 4000
