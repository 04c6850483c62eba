# SPDX-License-Identifier: Apache-2.0
"""``tool_agent_branching``: verl's own ``tool_agent`` under a rollout method; without one it is ``tool_agent``, call for call."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop

from verl_entropy.agent.branching import ROLLOUT, Seat, Ticket, Tree, forked, seated
from verl_entropy.agent.loop import _scheme, repeatable_id
from verl_entropy.config.settings import ConfigError

_OWN = ("metrics", "tools_kwargs", "_active_tools", "_active_tool_schemas")
"""What a session keeps of its own when it goes on from another one's turn."""


def check_tools(tools: dict[str, Any]) -> None:
    """Raise ConfigError if a tool says that its world cannot be gone back to (``SNAPSHOT = "none"``)."""
    stuck = sorted(name for name, tool in tools.items() if getattr(tool, "SNAPSHOT", "clone") == "none")
    if stuck:
        raise ConfigError(
            f"{ROLLOUT}: the tool {stuck[0]} says SNAPSHOT='none': what its calls change cannot be gone back to, so no rollout can branch "
            "there. Leave the rollout method out, or the tool."
        )


class _Session:
    """A trajectory of the tool loop in its tree: the records of its turns, and what a ticket from here needs."""

    def __init__(self, seat: Seat, own_id: str | None):
        """``own_id``: of its requests, before and after a branch; None: verl's, and after a branch its parent's."""
        self.seat, self._own_id = seat, own_id
        self.records: list[dict[str, Any]] = []
        self._copied = 0
        self._here: AgentData | None = None

    async def start(self, data: AgentData) -> None:
        """Wait for a ticket, and go on from it where there is one."""
        ticket = await self.seat.start()
        if ticket is not None:
            self._go_on(data, ticket)
        if self._own_id is not None:
            data.request_id = self._own_id

    def _go_on(self, data: AgentData, ticket: Ticket) -> None:
        for name, value in vars(_fork(ticket.policy)).items():
            if name not in _OWN:
                setattr(data, name, value)
        self.records = [record | {"copied": True} for record in ticket.turns]
        self._copied = len(self.records)

    async def before(self, data: AgentData) -> None:
        """Before a turn: keep the state, and branch if the rule asks for the turn before."""
        self._here = _fork(data)
        if self.seat.tree.scheme.late and len(self.records) > self._copied:
            await self._offer(self.records[-1]["entropy"])

    async def after(self, data: AgentData) -> None:
        """After an answer, before its tools run: branch from the state that it answered, and record the turn."""
        known = len(self._here.response_mask)
        sampled = zip(data.response_mask[known:], data.response_logprobs[known:], strict=False)
        log_probs = [log_prob for trained, log_prob in sampled if trained]
        if not log_probs:
            if any(data.response_mask[known:]):
                raise RuntimeError(
                    "the rollout server gave no log-probs of its tokens, from which a rollout method reads entropy. "
                    "Set actor_rollout_ref.rollout.calculate_log_probs=True."
                )
            return
        entropy = self.seat.tree.scheme.entropy(log_probs, None)
        if not self.seat.tree.scheme.late and len(self.records) > self._copied:
            await self._offer(entropy)
        self.records.append({"entropy": entropy, "origin": f"{self.seat.session}.0", "copied": False})

    async def _offer(self, entropy: float) -> None:
        if await self.seat.decide(entropy, self.records[0]["entropy"], f"0/{len(self.records)}"):
            self.seat.give(Ticket(tuple(self.records), (), (), None, self._here, None, self.seat.streak, "", ""))


def _fork(data: AgentData) -> AgentData:
    """A copy of a trajectory's state that goes its own way."""
    other = forked(data)
    other.extra_fields, other.metrics = copy.deepcopy(data.extra_fields), {}
    return other


_session: ContextVar[_Session | None] = ContextVar("verl_entropy_session", default=None)
"""Of the trajectory whose task this is."""


@register("tool_agent_branching")
class BranchingToolAgentLoop(ToolAgentLoop):
    """verl's tool loop whose sessions may go on from one another's turns; a turn is an answer with the tools that it called.

    Nothing of a tool is copied: verl makes and releases one for each call, and what a tool keeps in ``agent_data.extra_fields`` goes with
    the trajectory. A tool whose calls change a world outside says ``SNAPSHOT = "none"``, and is refused here.
    """

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        """One trajectory; under a rollout method its row also says of each turn who sampled it."""
        if kwargs.get(ROLLOUT) is None:
            return await super().run(sampling_params, priority, **kwargs)
        check_tools(self.tools)
        n, scheme = _scheme(OmegaConf.to_yaml(self.config.algorithm, resolve=True), kwargs[ROLLOUT])
        index, number = (kwargs.get("extra_info") or {}).get("index", kwargs["uid"]), int(kwargs.get("session_id", 0))
        # verl's own id is one for all sessions of a step (V1), so with full_determinism the order of arrival would decide who gets what
        own_id = repeatable_id(priority, index, number) if self.rollout_config.full_determinism else None
        with seated(kwargs["uid"], number, f"{index}/{kwargs.get('global_steps')}", lambda: Tree(scheme, n)) as seat:
            session = _Session(seat, own_id)
            mark = _session.set(session)
            try:
                output = await super().run(sampling_params, priority, **kwargs)
            finally:
                _session.reset(mark)
            output.extra_fields["turns"] = session.records
            return output

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        state = await super()._handle_pending_state(agent_data, sampling_params)
        session = _session.get()
        if session is not None:
            await session.start(agent_data)
        return state

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        session = _session.get()
        if session is None:
            return await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        await session.before(agent_data)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        await session.after(agent_data)
        return state
