# SPDX-License-Identifier: Apache-2.0
"""The rollout server of ``rollout.name=hf`` without Ray: batching, random streams, weight updates, abort and
resume.
"""

from __future__ import annotations

import asyncio

import pytest
import tiny_llama as tiny
import torch
from transformers import LlamaForCausalLM
from verl.workers.config import HFModelConfig, RolloutConfig

from verl_entropy.cpu import server as server_module

LOOP = asyncio.new_event_loop()  # a server belongs to one event loop
run = LOOP.run_until_complete
PROMPTS = [[6 + (i * 7 + j) % 50 for j in range(3 + i)] for i in range(12)]


@pytest.fixture(scope="module", autouse=True)
def event_loop_ends():
    yield
    tasks = asyncio.all_tasks(LOOP)
    for task in tasks:
        task.cancel()
    run(asyncio.gather(*tasks, return_exceptions=True))
    LOOP.close()


@pytest.fixture(scope="module")
def model_config(model_path):
    return HFModelConfig(path=str(model_path), override_config={"attn_implementation": "sdpa"})


@pytest.fixture
def make(model_config):
    def make(replica_rank=0, hf=None, **rollout):
        defaults = {"name": "hf", "prompt_length": 32, "response_length": 8, "tensor_model_parallel_size": 1}
        hf = {"batch_window_ms": 1, **(hf or {})}
        config = RolloutConfig(**{**defaults, **rollout}, engine_kwargs={"hf": hf})
        return server_module.HFServer(config, model_config, replica_rank)

    return make


async def ask(server, prompts, ids=None, **params):
    """Send all requests together; outputs in the order of ``prompts``."""
    params = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        **params,
    }
    ids = ids or [f"id{i}" for i in range(len(prompts))]
    return await asyncio.gather(*[server.generate(p, dict(params), i) for p, i in zip(prompts, ids, strict=True)])


def tokens(outputs):
    return [output.token_ids for output in outputs]


def test_output_is_what_verl_expects(make):
    server = make()
    outputs = run(ask(server, PROMPTS))
    assert len({len(o.token_ids) for o in outputs}) > 1
    for output in outputs:
        assert 1 <= len(output.token_ids) <= 8 and len(output.log_probs) == len(output.token_ids)
        assert output.stop_reason == "completed" and output.extra_fields == {"global_steps": 0}
    assert run(server.stats())["requests"] == len(PROMPTS)
    assert all(o.log_probs is None for o in run(ask(make(), PROMPTS[:2], logprobs=False)))


def test_requests_that_come_together_share_a_batch(make):
    server = make(max_num_seqs=5, hf={"batch_window_ms": 20})
    run(ask(server, PROMPTS))
    assert run(server.stats())["batches"] == 3  # 5 + 5 + 2


def test_repeatable_request_ids_make_repeatable_tokens(make):
    """full_determinism: neither order nor batching matters; seed, weights version, id and replica do."""
    same = [PROMPTS[5]] * 6
    expected = tokens(run(ask(make(full_determinism=True), same)))
    assert len({tuple(t) for t in expected}) > 3  # sessions of one prompt differ
    order = [4, 0, 5, 2, 1, 3]
    server = make(full_determinism=True, max_num_seqs=2)
    found = tokens(run(ask(server, same, [f"id{i}" for i in order])))
    assert [found[order.index(i)] for i in range(6)] == expected
    run(server.set_global_steps(3))
    others = [make(full_determinism=True, seed=1), make(replica_rank=1, full_determinism=True), server]
    for other in others:
        assert tokens(run(ask(other, same))) != expected


def test_without_them_the_set_of_completions_of_a_prompt_repeats(make):
    """verl sends a fresh uuid with every request; a new weights version starts the count afresh."""
    same = [PROMPTS[5]] * 6
    server = make()
    first = tokens(run(ask(server, same, list("abcdef"))))
    again = tokens(run(ask(server, same, list("ghijkl"))))
    assert sorted(first) != sorted(again)
    run(server.set_global_steps(0))
    mixed = run(ask(server, [PROMPTS[1], *same, PROMPTS[2]], list("mnopqrst")))
    assert sorted(tokens(mixed)[1:-1]) == sorted(first)


def test_a_seed_in_the_request_wins(make):
    one, two = make(), make(seed=9, replica_rank=3)
    expected = tokens(run(ask(one, [PROMPTS[3]] * 2, seed=5)))
    assert expected[0] == expected[1] == tokens(run(ask(two, [PROMPTS[3]], seed=5)))[0]


def test_default_length_is_the_room_that_is_left(make):
    """As verl's other servers: response_length, less what a long prompt of a later turn has used up."""
    server = make(ignore_eos=True)
    outputs = run(ask(server, [[7] * 30, [7] * 37, [7] * 50]))
    assert [len(o.token_ids) for o in outputs] == [8, 3, 1]


@pytest.mark.parametrize(
    ("prompt", "params", "kwargs", "match"),
    [
        ([], {}, {}, "a prompt of 0 tokens"),
        ([7] * 256, {}, {}, "a prompt of 256 tokens.*max_model_len 256"),
        ([7], {"min_p": 0.1}, {}, "min_p=0.1"),
        ([7], {}, {"image_data": ["x"]}, "text only"),
    ],
)
def test_a_bad_request_fails_alone(make, prompt, params, kwargs, match):
    server = make()

    async def scenario():
        good = asyncio.ensure_future(server.generate([7, 8], {}, "good"))
        with pytest.raises(ValueError, match=match):
            await server.generate(prompt, params, "bad", **kwargs)
        return await good

    assert run(scenario()).stop_reason == "completed"


def test_a_failing_batch_fails_its_requests_and_not_the_server(make):
    server = make()

    async def scenario():
        with pytest.raises(IndexError):
            await server.generate([tiny.VOCABULARY + 3], {}, "no such token")
        return await server.generate([7, 8], {}, "good")

    assert run(scenario()).stop_reason == "completed"


def test_new_weights_are_used_in_any_number_of_buckets(make, model_path, tmp_path):
    other = LlamaForCausalLM.from_pretrained(tiny.save(tmp_path / "other", seed=1), dtype=torch.float32)
    weights = list(other.state_dict().items())
    server = make()

    async def scenario():
        before = tokens(await ask(server, PROMPTS, temperature=0))
        for i, (name, tensor) in enumerate(weights):
            await server.load_weights({name: tensor}, last=i == len(weights) - 1, global_steps=4)
        return before, await ask(server, PROMPTS, temperature=0)

    before, after = run(scenario())
    expected = [other.generate(torch.tensor([p]), max_new_tokens=8, do_sample=False)[0, len(p) :].tolist() for p in PROMPTS]
    assert tokens(after) == expected != before
    assert {o.extra_fields["global_steps"] for o in after} == {4}


def test_wrong_weights_are_refused_by_name(make):
    server = make()
    good = {name: tensor.clone() for name, tensor in server.runner.model.state_dict().items()}
    missing = {name: tensor for name, tensor in good.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"did not get 1 weight.*model\.norm\.weight"):
        run(server.load_weights(missing, last=True))
    with pytest.raises(ValueError, match=r"does not have 1 weight.*aux_head\.weight"):
        run(server.load_weights({**good, "aux_head.weight": torch.zeros(1)}, last=True))
    with pytest.raises(ValueError, match=r"lm_head.weight has shape \(2, 2\)"):
        run(server.load_weights({**good, "lm_head.weight": torch.zeros(2, 2)}, last=True))
    run(server.load_weights(good, last=True))


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_one_name_of_tied_weights_is_enough(model_config, tmp_path, name):
    path = tiny.save(tmp_path, tie=True)
    config = RolloutConfig(name="hf", prompt_length=32, response_length=8, tensor_model_parallel_size=1)
    tied = server_module.HFServer(config, HFModelConfig(path=str(path), override_config={"attn_implementation": "sdpa"}))
    weights = {key: torch.full_like(value, 0.5) for key, value in tied.runner.model.state_dict().items()}
    pair = {"lm_head.weight", "model.embed_tokens.weight"}
    run(tied.load_weights({k: v for k, v in weights.items() if k not in pair - {name}}, last=True))
    assert all((value == 0.5).all() for value in tied.runner.model.state_dict().values())


def test_abort_returns_partial_output_and_holds_new_requests(make):
    server = make(ignore_eos=True, response_length=200, max_num_seqs=2)

    async def scenario():
        running = [asyncio.ensure_future(server.generate([7, 8 + i], {"logprobs": True}, f"r{i}")) for i in range(4)]
        while not server._running:
            await asyncio.sleep(0.001)
        result = await server.abort_all_requests()
        aborted = [await r for r in running]
        late = asyncio.ensure_future(server.generate([7, 8], {}, "late"))
        await asyncio.sleep(0.02)
        held = not late.done()
        await server.resume_generation()
        return result, aborted, held, await late

    result, aborted, held, late = run(scenario())
    assert result["aborted_count"] == 4 and set(result["request_ids"]) == {"r0", "r1", "r2", "r3"}
    assert all(o.stop_reason == "aborted" and len(o.token_ids) == len(o.log_probs or []) < 200 for o in aborted[:2])
    assert all(o.token_ids == [] for o in aborted[2:])
    assert held and late.stop_reason == "completed" and len(late.token_ids) == 200


def test_a_rejecting_server_sends_requests_away(make):
    server = make()

    async def scenario():
        await server.abort_all_requests(reject_request=True)
        away = await server.generate([7], {}, "away")
        await server.resume_generation()
        return away, await server.generate([7], {}, "stay")

    away, stay = run(scenario())
    assert (away.stop_reason, away.token_ids) == ("aborted", [])
    assert stay.stop_reason == "completed"


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"hf": {"threads": 2}}, "engine_kwargs.hf.threads=2.*num_threads"),
        ({"hf": {"num_threads": 0}}, "engine_kwargs.hf.num_threads=0"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode='raw_logits'.*processed_logprobs"),
    ],
)
def test_bad_settings_are_refused_by_name(make, kwargs, match):
    with pytest.raises(ValueError, match=match):
        make(**kwargs)


@pytest.mark.parametrize(
    ("config", "flags", "match"),
    [
        ({"tensor_model_parallel_size": 2}, {}, "tensor_model_parallel_size=1"),
        ({"tensor_model_parallel_size": 1}, {"is_reward_model": True}, "cannot serve a reward"),
    ],
)
def test_a_replica_refuses_what_it_cannot_be(model_config, config, flags, match):
    replica = server_module.HFReplica(0, RolloutConfig(name="hf", **config), model_config, gpus_per_node=2, **flags)
    with pytest.raises(ValueError, match=match):
        run(replica.launch_servers())
