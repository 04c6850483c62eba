# SPDX-License-Identifier: Apache-2.0
"""verl's own tool loop under a rollout method: its sessions go on from one another's turns; without a method it is verl's, call for call."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from agent_fakes import ScriptedServer, tokenizer
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from verl_entropy.agent import branching
from verl_entropy.agent.branching import ROLLOUT
from verl_entropy.agent.tools import BranchingToolAgentLoop
from verl_entropy.config.settings import ConfigError

SCHEMA = {
    "type": "function",
    "function": {"name": "climb", "description": "up", "parameters": {"type": "object", "properties": {}, "required": []}},
}
UP = "<action> up </action> <im_end>"


@ToolParser.register("words")
class WordsParser(ToolParser):
    """A call of climb for every <action> up </action>."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids)
        return text, [FunctionCall(name="climb", arguments="{}")] if "<action> up </action>" in text else []


class Climb(BaseTool):
    """Keeps its height with the trajectory, as verl lets a tool do."""

    async def execute(self, instance_id, parameters, **kwargs):
        kept = kwargs["agent_data"].extra_fields
        kept["height"] = kept.get("height", 0) + 1
        return ToolResponse(text=f"height {kept['height']}"), float(kept["height"]), {}


class Outside(Climb):
    """Changes what is outside the trajectory, and says so."""

    SNAPSHOT = "none"


def play(
    cls, n, *, turns=4, tool=Climb, log_probs=lambda prompt: 1.0, script=lambda number, prompt: UP, rollout=None, **settings
):
    """``n`` sessions of one prompt, each in an agent loop of its own, as verl makes them; the outputs and the server."""
    words = tokenizer()
    multi_turn = {"max_assistant_turns": turns, "max_user_turns": None, "max_parallel_calls": 1}
    multi_turn |= {"max_tool_response_length": 64, "tool_response_truncate_side": "left", "format": "words"}
    section = {
        "prompt_length": 100,
        "response_length": 200,
        "full_determinism": False,
        "multi_turn": multi_turn,
        **(rollout or {}),
    }
    algorithm = {"entropy": {"rollout": "branching", "branching": settings}} if settings else {}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": section}, "algorithm": algorithm, "data": {}})
    server = ScriptedServer(words, script, log_probs)
    schema = OpenAIFunctionToolSchema.model_validate(SCHEMA)
    row = {"uid": "u", "raw_prompt": [{"role": "user", "content": "go"}], "extra_info": {"index": 0}, "global_steps": 1}
    if settings:
        row[ROLLOUT] = json.dumps({"n": n, "state": {}})

    async def main():
        loops = [
            cls(
                DictConfigWrap(config),
                server,
                words,
                None,
                None,
                DictConfigWrap(config.data),
                hf_model_type="llama",
                tools=ToolListWrap([tool({}, schema)]),
            )
            for _ in range(n)
        ]
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
        return await asyncio.gather(*(x.run(params, session_id=i, **row) for i, x in enumerate(loops)), return_exceptions=True)

    outputs = asyncio.run(asyncio.wait_for(main(), 120))
    assert not branching._trees
    return outputs, server


def unsure(height):
    """Entropy 3 where the tool has just said this height, else 1."""
    return lambda prompt: 3.0 if prompt.rpartition("height ")[2].startswith(str(height)) else 1.0


def origins(outputs):
    return [[turn["origin"] for turn in output.extra_fields["turns"]] for output in outputs]


def test_without_a_method_it_is_verls_loop_call_for_call():
    ours, asked = play(BranchingToolAgentLoop, 2)
    theirs, told = play(ToolAgentLoop, 2)
    assert sorted(str(call[1:]) for call in asked.calls) == sorted(str(call[1:]) for call in told.calls)
    for mine, verls in zip(ours, theirs, strict=True):
        for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "num_turns"):
            assert getattr(mine, name) == getattr(verls, name)
        assert (
            mine.extra_fields.keys() == verls.extra_fields.keys() and mine.extra_fields["height"] == verls.extra_fields["height"]
        )


def test_leaves_go_on_from_where_the_policy_was_unsure():
    """Two roots of four; at height 2 both are unsure, so the others go on from there, with the tool's height of there."""
    leaves, server = play(BranchingToolAgentLoop, 4, log_probs=unsure(2), roots=2)
    assert origins(leaves) == [["0.0"] * 4, ["1.0"] * 4, ["0.0"] * 2 + ["2.0"] * 2, ["1.0"] * 2 + ["3.0"] * 2]
    assert len(server.calls) == 2 * 4 + 2 * 2  # 12 answers for 16 turns
    for leaf, parent in ((2, 0), (3, 1)):
        mine, theirs = leaves[leaf], leaves[parent]
        assert [turn["copied"] for turn in mine.extra_fields["turns"]] == [True, True, False, False]
        assert mine.prompt_ids == theirs.prompt_ids and mine.response_mask == theirs.response_mask
        assert mine.response_ids == theirs.response_ids  # the same words are sampled, and the same heights seen
        assert mine.extra_fields["tool_rewards"] == theirs.extra_fields["tool_rewards"] == [1.0, 2.0, 3.0]
        assert mine.extra_fields["height"] == theirs.extra_fields["height"] == 3
        assert mine.num_turns == theirs.num_turns
    spans = [
        sum(m and not before for m, before in zip(leaf.response_mask, [0, *leaf.response_mask], strict=False)) for leaf in leaves
    ]
    assert spans == [len(leaf.extra_fields["turns"]) for leaf in leaves]  # a record for each turn that the trainer finds


def test_the_released_rule_branches_a_turn_late():
    leaves, _ = play(BranchingToolAgentLoop, 2, log_probs=unsure(1), roots=1)
    assert origins(leaves)[1] == ["0.0"] + ["1.0"] * 3
    leaves, _ = play(BranchingToolAgentLoop, 2, log_probs=unsure(1), roots=1, rule="released", gamma=10.0, tau=-1.0)
    assert origins(leaves)[1][0] == "0.0" and origins(leaves)[1].count("0.0") >= 1


def test_a_branch_keeps_the_request_id_of_its_server_and_an_own_one_where_ids_decide_what_is_drawn():
    _, server = play(BranchingToolAgentLoop, 2, log_probs=unsure(2), roots=1)
    assert len({call[0] for call in server.calls}) == 1
    _, server = play(BranchingToolAgentLoop, 2, log_probs=unsure(2), roots=1, rollout={"full_determinism": True})
    assert Counter(call[0] for call in server.calls) == {"det-0-0-0": 4, "det-0-0-1": 2}  # verl's is det-0 for every session


def test_a_session_that_dies_costs_no_other_its_place():
    """The server fails once, at the fourth answer: the others are whole, and the one that waited starts afresh."""
    failed = []

    def script(number, prompt):
        if number == 3 and not failed:
            failed.append(number)
            raise RuntimeError("the server died")
        return UP

    leaves, _ = play(BranchingToolAgentLoop, 3, script=script, roots=2, tau=0.99)
    dead = [leaf for leaf in leaves if isinstance(leaf, BaseException)]
    assert len(dead) == 1 and "the server died" in str(dead[0])
    assert [len(leaf.extra_fields["turns"]) for leaf in leaves if not isinstance(leaf, BaseException)] == [4, 4]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"tool": Outside}, ConfigError, "the tool climb says SNAPSHOT='none'"),
        ({"log_probs": False}, RuntimeError, "Set actor_rollout_ref.rollout.calculate_log_probs=True"),
    ],
)
def test_what_cannot_branch_stops_with_the_reason(changes, error, words):
    leaves, _ = play(BranchingToolAgentLoop, 2, roots=1, **changes)
    assert all(isinstance(leaf, error) and words in str(leaf) for leaf in leaves)
