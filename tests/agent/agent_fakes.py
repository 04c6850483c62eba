# SPDX-License-Identifier: Apache-2.0
"""A word-level tokenizer and a rollout server that answers from a script; the rest is the real thing."""

from __future__ import annotations

import asyncio

from omegaconf import OmegaConf

WORDS = """height reach up two down crash hang exit old gym sleep go nowhere goal last now can think hard stop
iteration user assistant system continuous token synthetic 0 1 2 3 4 5 6 7 8 9 : , . - -> ..."""
TAGS = "<think> </think> <action> </action> <search> </search> <answer> </answer>"
TEMPLATE = (
    "{% for m in messages %}<im_start> {{ m['role'] }} {{ m['content'] }} <im_end> {% endfor %}"
    "{% if add_generation_prompt %}<im_start> assistant {% endif %}"
)


def tokenizer():
    from verl_entropy.quickstart.build import word_level

    words = ["<pad>", "<unk>", "<im_start>", "<im_end>", *TAGS.split(), *dict.fromkeys(WORDS.split())]
    return word_level(words, TEMPLATE, pad_token="<pad>", eos_token="<im_end>", additional_special_tokens=["<im_start>"])


class ScriptedServer:
    """verl's LLMServerClient interface: answers by ``script(call, prompt)`` and records what was asked."""

    def __init__(self, tokenizer, script, log_probs=True):
        self.tokenizer, self.script, self.log_probs = tokenizer, script, log_probs
        self.calls = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(0)
        number = len(self.calls)
        text = self.script(number, self.tokenizer.decode(prompt_ids))
        ids = self.tokenizer.encode(text, add_special_tokens=False)[: sampling_params.get("max_tokens")]
        self.calls.append((request_id, list(prompt_ids), dict(sampling_params), ids))
        prompt_ids.clear()  # a server may do what it likes with its argument
        log_probs = [-(number + 1) - i / 1000 for i in range(len(ids))] if self.log_probs else None
        if callable(self.log_probs):  # entropy of a turn by its prompt
            log_probs = [-self.log_probs(self.tokenizer.decode(self.calls[-1][1]))] * len(ids)
        extra = {"global_steps": number, "min_global_steps": number, "max_global_steps": number}
        if "top_logprobs" in sampling_params:
            extra["top_log_probs"] = [[log_probs[0]] * sampling_params["top_logprobs"]] * len(ids)
        return TokenOutput(token_ids=ids, log_probs=log_probs, extra_fields=extra, num_preempted=0)


def answer(action, thought="hard"):
    return f"<think> {thought} </think> <action> {action} </action> <im_end>"


def build(cls, env, script, *, prompt_length=64, response_length=24, rollout=None, algorithm=None, log_probs=True):
    """An agent loop of ``cls`` with ``data.env=env`` and a scripted server."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    words = tokenizer()
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": prompt_length,
                    "response_length": response_length,
                    "full_determinism": False,
                    "multi_turn": {"max_assistant_turns": None},
                    **(rollout or {}),
                }
            },
            "algorithm": algorithm or {},
            "data": {"env": {"prompt_template": "compact", **env}},
        }
    )
    server = ScriptedServer(words, script, log_probs)
    loop = cls(DictConfigWrap(config), server, words, None, None, DictConfigWrap(config.data), hf_model_type="llama")
    return loop, server


def play(cls, env, script, *, row=None, n=1, **kwargs):
    """Run ``n`` sessions of one row; returns (outputs per session, server)."""

    async def main():
        loop, server = build(cls, env, script, **kwargs)
        rows = {"uid": "u", "raw_prompt": [], "extra_info": {"seed": 0}, **(row or {})}
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
        sessions = [loop.run(params, session_id=i, **rows) for i in range(n)]
        return await asyncio.gather(*sessions, return_exceptions=True), server

    return asyncio.run(asyncio.wait_for(main(), 120))  # sessions that wait for one another fail, and do not hang
