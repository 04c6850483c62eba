# SPDX-License-Identifier: Apache-2.0
"""What verl 0.9.1 gives an agent loop for the tokens of a growing chat, for the verl before it.

Text only; sampled tokens stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass
class Merged:
    """The stream after something was appended."""

    token_ids: list[int]
    removed_prefix_token_count: int = 0


class TokenBuilder:
    """Tokens of a chat by the model's chat template."""

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any]):
        self._tokenizer, self._kwargs = tokenizer, template_kwargs

    def build_initial_tokens(self, messages: list[dict[str, Any]], generation_prompt: bool = True) -> list[int]:
        """Tokens of ``messages``, with the beginning of an answer after them."""
        return list(
            self._tokenizer.apply_chat_template(
                messages, add_generation_prompt=generation_prompt, tokenize=True, return_dict=False, **self._kwargs
            )
        )

    def after_answer(self, messages: list[dict[str, Any]], end_id: int) -> list[int]:
        """What follows the answer's end token: the rest that the template puts there, ``messages``, the beginning of an answer."""
        before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        closed, whole = self.build_initial_tokens(before, False), self.build_initial_tokens([*before, *messages])
        if whole[: len(closed)] != closed:
            raise ValueError(
                "the chat template of this model changes earlier messages, so the tokens of a growing chat cannot be kept. "
                "Set actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env."
            )
        rest = closed[::-1].index(end_id) if end_id in closed else 0  # another end token than the template's: nothing follows it
        return whole[len(closed) - rest :]


async def ct_merge_context_msg(
    self, previous_messages, updated_messages, runtime_token_ids, response_mask, response_logprobs=None
):
    """Append messages of the environment; their tokens are not trained."""
    added = self.continuous_token_builder.after_answer(updated_messages[len(previous_messages) :], runtime_token_ids[-1])
    log_probs = None if response_logprobs is None else [*response_logprobs, *[0.0] * len(added)]
    return Merged([*runtime_token_ids, *added]), [*response_mask, *[0] * len(added)], log_probs


async def ct_merge_assistant_token(
    self, runtime_token_ids, assistant_token_ids, response_mask, response_logprobs=None, assistant_logprobs=None
):
    """Append an answer as it was sampled; its tokens are trained."""
    log_probs = None if response_logprobs is None else [*response_logprobs, *(assistant_logprobs or [])]
    return Merged([*runtime_token_ids, *assistant_token_ids]), [*response_mask, *[1] * len(assistant_token_ids)], log_probs


def wrap(_: ModuleType) -> None:
    """Give our agent loops the builder and the two merges of verl 0.9.1 (0.9.0 has others, and none unless it is asked for)."""
    from verl_entropy.agent.loop import TextEnvAgentLoop

    def builder(self) -> TokenBuilder:
        return TokenBuilder(self.tokenizer, dict(self.apply_chat_template_kwargs))

    TextEnvAgentLoop.continuous_token_builder = property(builder, lambda self, _: None)  # 0.9.0 sets it to None
    TextEnvAgentLoop.ct_merge_context_msg = ct_merge_context_msg
    TextEnvAgentLoop.ct_merge_assistant_token = ct_merge_assistant_token
