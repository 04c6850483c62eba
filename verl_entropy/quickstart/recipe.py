# SPDX-License-Identifier: Apache-2.0
"""The numbers of the quickstart, in one place: what the warm start and the RL run must agree on, and what was tuned."""

from __future__ import annotations

from verl_entropy.agent.prompts import PromptBuilder
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.envs.household_world import PICK_TWO, TASK_TYPES

FAMILIES = tuple(t for t in TASK_TYPES if t != PICK_TWO)  # pick two needs more turns than MAX_TURNS
MAX_TURNS = 8  # little slack over the expert's 3 to 9 turns, so that a wasted turn shows in the outcome

# data.env.* of the run. The model is too small to gain from history or a list of actions (measured: more tokens, slower
# learning, no higher success); an observation says where one is, what is there and what one holds. "none" is a word of
# the vocabulary that is never admissible: the environment answers that it does not work.
ENV: dict = {
    "name": "household",
    "kwargs": {"difficulty": "easy", "task_types": list(FAMILIES), "max_turns": MAX_TURNS},
    "max_turns": MAX_TURNS,
    "history_length": 0,
    "show_admissible": False,
    "prompt_template": "compact",
    "invalid_action": "noop",
    "noop_action": "none",
}
PROMPT_LENGTH = 64  # longest prompt seen: 49 tokens
RESPONSE_LENGTH = 16  # a well-formed response has 8 to 13 tokens

# The model: wide and shallow learned faster per second than three or four narrow layers.
HIDDEN, LAYERS, HEADS, FEED_FORWARD = 96, 2, 4, 192

# RL, as tuned with plain GRPO.
STEPS, PROMPTS_PER_STEP, ROLLOUTS, MINI_BATCH_ROWS, LEARNING_RATE = 25, 8, 8, 64, 1.5e-4


def settings() -> AgentSettings:
    """The agent loop's settings of the quickstart."""
    return AgentSettings.from_mappings(ENV)


def prompt_builder() -> PromptBuilder:
    """The prompt builder that the agent loop makes from `settings()`."""
    s = settings()
    return PromptBuilder(
        s.history_length,
        s.show_admissible,
        s.prompt_template,
        s.action_format,
        think_tag=s.think_tag,
        action_tag=s.action_tag,
        require_think=s.require_think,
        system_prompt=s.system_prompt,
        overlong=s.overlong_prompt,
    )
