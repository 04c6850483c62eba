# SPDX-License-Identifier: Apache-2.0
"""``stepwise_env``: each turn is a row with its own prompt (verl-agent's form), short in long episodes."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register

from verl_entropy.agent.episode import Episode, Said, TurnRecord, TurnState
from verl_entropy.agent.loop import Response, TextEnvAgentLoop, metrics


class StepwisePolicy:
    """Asks for every turn with a fresh prompt and keeps (prompt as sent, response as sampled)."""

    def __init__(self, loop: StepwiseAgentLoop, sampling_params: dict[str, Any], request_id: str):
        self._loop, self._sampling_params, self._request_id = loop, sampling_params, request_id
        self.rows: list[tuple[list[int], Response]] = []

    async def act(self, state: TurnState) -> Said:
        prompt = await self._loop.fitted_prompt(state)
        budget = self._loop.response_length
        response = await self._loop.sample(prompt.token_ids, self._sampling_params, budget, self._request_id)
        self.rows.append((prompt.token_ids, response))
        return response.said(prompt.dropped_words > 0, len(prompt.token_ids))


@register("stepwise_env")
class StepwiseAgentLoop(TextEnvAgentLoop):
    """An episode as a list of rows, one per turn; the last row carries the score."""

    def make_policy(self, sampling_params: dict[str, Any], request_id: str) -> StepwisePolicy:
        """A policy for one attempt at an episode."""
        return StepwisePolicy(self, sampling_params, request_id)

    def outputs(self, episode: Episode, policy: StepwisePolicy) -> list[AgentLoopOutput]:
        """One row per turn, each with the episode's score (verl copies the last row's to the others)."""
        if not len(policy.rows) == len(episode.turns) == len(episode.seconds):
            raise RuntimeError(f"{len(policy.rows)} responses for {len(episode.turns)} turns")
        rows = zip(policy.rows, episode.turns, episode.seconds, strict=True)
        return [self._row(episode, prompt, response, turn, s) for (prompt, response), turn, s in rows]

    def _row(
        self, episode: Episode, prompt_ids: list[int], response: Response, turn: TurnRecord, env_s: float
    ) -> AgentLoopOutput:
        optional = {}
        if response.output.routed_experts is not None:
            optional["routed_experts"] = response.output.routed_experts[: len(prompt_ids) + len(response.token_ids)]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response.token_ids,
            response_mask=[1] * len(response.token_ids),
            response_logprobs=response.log_probs,
            reward_score=episode.score(self.settings.penalty_in_score),
            num_turns=2 * len(episode.turns),  # verl counts messages: an observation and a response per turn
            metrics=metrics(response.seconds, env_s, response.output.num_preempted),
            extra_fields={
                **response.output.extra_fields,
                **self.episode_fields(episode),
                "turns": [turn.as_dict()],
            },
            **optional,
        )
