# SPDX-License-Identifier: Apache-2.0
"""verl's tool loop for a random model: whatever it answers is a call of one tool, which counts its calls."""

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from verl_entropy.agent.tools import BranchingToolAgentLoop


@ToolParser.register("every_answer")
class EveryAnswer(ToolParser):
    async def extract_tool_calls(self, responses_ids, tools=None):
        return self.tokenizer.decode(responses_ids), [FunctionCall(name="count", arguments="{}")]


class Count(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        kept = kwargs["agent_data"].extra_fields
        kept["calls"] = kept.get("calls", 0) + 1
        return ToolResponse(text=f"step {kept['calls']}"), 0.0, {}


class Loop(BranchingToolAgentLoop):
    """Short answers, and a score by the first token of the last one."""

    async def run(self, sampling_params, priority=0, **kwargs):
        output = await super().run({**sampling_params, "max_tokens": 5}, priority, **kwargs)
        output.reward_score = float(output.response_ids[-1] % 2)
        turns = output.extra_fields["turns"]  # beside environments, a turn says what theirs say
        turns[:] = [{**turn, "reward": 0.0, "penalty": 0.0, "valid": True, "anchor": "", "action": ""} for turn in turns]
        return output
