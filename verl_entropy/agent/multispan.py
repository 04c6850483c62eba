# SPDX-License-Identifier: Apache-2.0
"""``span_env``: an episode is one row, a growing chat with a response span per turn, the rest masked out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register

from verl_entropy.agent.episode import Episode, Said, SessionFailed, TurnState
from verl_entropy.agent.loop import Response, TextEnvAgentLoop, metrics
from verl_entropy.agent.settings import PATH
from verl_entropy.config.settings import ConfigError

# Counters of speculative decoding that add up over an episode; verl's tool loop adds the same ones.
_SUMMED = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")


class SpanPolicy:
    """Keeps the token stream: what the server saw and sampled, never a re-tokenised text."""

    def __init__(self, loop: SpanAgentLoop, sampling_params: dict[str, Any], request_id: str):
        self._loop, self._sampling_params, self._request_id = loop, sampling_params, request_id
        self._messages: list[dict[str, str]] = []
        self._forms: set[str] = set()
        self.prompt_ids: list[int] = []
        self.stream: list[int] = []
        """Prompt and everything after it."""
        self.mask: list[int] = []
        self.log_probs: list[float] | None = None
        self.spans: list[list[int]] = []
        """Sampled tokens, per turn."""
        self.responses: list[Response] = []

    async def act(self, state: TurnState) -> Said | None:
        dropped = 0
        if self.responses and self.responses[-1].cut:
            return None  # the next message would begin inside an unclosed one
        if not self.responses:
            fitted = await self._loop.fitted_prompt(state)
            dropped = fitted.dropped_words
            self._forms.update(state.forms)
            self._messages, self.prompt_ids, self.stream = (
                fitted.messages,
                fitted.token_ids,
                list(fitted.token_ids),
            )
        elif not await self._append_observation(state):
            return None
        budget, length = self._loop.response_length - len(self.mask), len(self.stream)
        response = await self._loop.sample(self.stream, self._sampling_params, budget, self._request_id)
        await self._append_response(response)
        return response.said(dropped > 0, length)

    async def _append_observation(self, state: TurnState) -> bool:
        """Add the observation as a user message; False, with nothing changed, if no response fits then."""
        forms = [form for form in state.forms if form not in self._forms]
        message = self._loop.prompts.followup(state.observation, state.admissible, state.step, forms)
        messages = [*self._messages, message]
        merged, mask, log_probs = await self._loop.ct_merge_context_msg(
            self._messages, messages, self.stream, self.mask, self.log_probs
        )
        needed = self._loop.settings.max_tokens_per_turn or 1
        if len(mask) + needed > self._loop.response_length:
            return False
        # Some chat formats end a turn with the token that begins the next one; verl hands it to the context.
        for _ in range(merged.removed_prefix_token_count):
            self.spans[-1].pop()
            if not self.spans[-1]:
                raise SessionFailed("a response consisted of nothing but the token that begins the next message")
        self._messages, self.stream, self.mask, self.log_probs = messages, merged.token_ids, mask, log_probs
        self._forms.update(forms)
        return True

    async def _append_response(self, response: Response) -> None:
        if not self.responses:
            self.log_probs = None if response.log_probs is None else []
        elif (self.log_probs is None) != (response.log_probs is None):
            raise RuntimeError("the rollout server returned log-probs for some turns only")
        merged, self.mask, self.log_probs = await self._loop.ct_merge_assistant_token(
            self.stream, response.token_ids, self.mask, self.log_probs, assistant_logprobs=response.log_probs
        )
        self.stream = merged.token_ids
        self._messages = [*self._messages, {"role": "assistant", "content": response.text}]
        self.spans.append(list(response.token_ids))
        self.responses.append(response)

    @property
    def response_ids(self) -> list[int]:
        """Everything after the prompt."""
        return self.stream[len(self.prompt_ids) :]


@register("span_env")
class SpanAgentLoop(TextEnvAgentLoop):
    """An episode as one row with a response span per turn."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.settings.prompt_template == "verl_agent":
            raise ConfigError(
                f"{PATH}.prompt_template=verl_agent: each of its prompts stands alone, span_env has one chat. Set "
                "actor_rollout_ref.rollout.agent.default_agent_loop=stepwise_env."
            )
        if self.settings.stop_at_action:
            raise ConfigError(
                f"{PATH}.stop_at_action=True: span_env needs the end-of-message token of every response, or "
                f"the chat is malformed. Set {PATH}.stop_at_action=False, or use agent_name stepwise_env."
            )

    def make_policy(self, sampling_params: dict[str, Any], request_id: str) -> SpanPolicy:
        """A policy for one attempt at an episode."""
        return SpanPolicy(self, sampling_params, request_id)

    def outputs(self, episode: Episode, policy: SpanPolicy) -> list[AgentLoopOutput]:
        """The one row of the episode."""
        _check_exact(policy, len(episode.turns))
        last = policy.responses[-1].output
        optional = {} if last.routed_experts is None else {"routed_experts": last.routed_experts[: len(policy.stream)]}
        turns = [turn.as_dict() for turn in episode.turns]
        output = AgentLoopOutput(
            prompt_ids=policy.prompt_ids,
            response_ids=policy.response_ids,
            response_mask=policy.mask,
            response_logprobs=policy.log_probs,
            reward_score=episode.score(self.settings.penalty_in_score),
            num_turns=2 * len(turns),
            metrics=metrics(sum(r.seconds for r in policy.responses), sum(episode.seconds), _preemptions(policy.responses)),
            extra_fields={**_server_fields(policy.responses), **self.episode_fields(episode), "turns": turns},
            **optional,
        )
        return [output]


def _check_exact(policy: SpanPolicy, turns: int) -> None:
    """Masked-in tokens are the sampled tokens, in as many runs as there were turns."""
    sampled = [token for span in policy.spans for token in span]
    trained = [token for token, keep in zip(policy.response_ids, policy.mask, strict=True) if keep]
    runs = sum(1 for before, now in pairwise([0, *policy.mask]) if now > before)
    if trained != sampled or runs != turns or policy.stream[: len(policy.prompt_ids)] != policy.prompt_ids:
        raise RuntimeError(f"the token stream is not what was sampled: {runs} spans for {turns} turns")


def _server_fields(responses: list[Response]) -> dict[str, Any]:
    """The server's extra fields: the first minimum and the last maximum of the versions, sums of counters."""
    first, last = responses[0].output.extra_fields, responses[-1].output.extra_fields
    fields = {**last, "min_global_steps": first.get("min_global_steps")}
    for key in _SUMMED:
        if all(key in r.output.extra_fields for r in responses):
            fields[key] = sum(int(r.output.extra_fields[key]) for r in responses)
    return fields


def _preemptions(responses: list[Response]) -> int | None:
    counts = [r.output.num_preempted for r in responses if r.output.num_preempted is not None]
    return sum(counts) if counts else None
