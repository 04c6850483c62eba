# SPDX-License-Identifier: Apache-2.0
"""Requests and rows that come together travel together: ``client`` and ``puts``."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace

import pytest
import torch

from verl_entropy.cpu import client, puts


class Handle:
    """Of a server that says the request id back and fails for one of them; counts its calls."""

    def __init__(self):
        self.calls = []
        self.generate_many = SimpleNamespace(remote=self._many)

    async def _many(self, requests):
        self.calls.append([request["request_id"] for request in requests])
        return [ValueError("bad") if request["request_id"] == "bad" else request["request_id"] for request in requests]


def test_requests_that_come_together_are_one_call_and_each_gets_its_own_answer():
    async def ask():
        server = client.BatchedServer(handle)
        first = await asyncio.gather(*(server.generate.remote(request_id=i) for i in ("a", "bad", "c")), return_exceptions=True)
        return first, await server.generate.remote(request_id="later")

    handle = Handle()
    (a, bad, c), later = asyncio.run(ask())
    assert handle.calls == [["a", "bad", "c"], ["later"]]
    assert (a, c, later) == ("a", "c", "later") and isinstance(bad, ValueError)


def test_a_server_that_died_fails_every_request_of_its_call():
    async def many(requests):
        raise RuntimeError("died")

    async def ask():
        server = client.BatchedServer(SimpleNamespace(generate_many=SimpleNamespace(remote=many)))
        return await asyncio.gather(*(server.generate.remote(request_id=i) for i in "ab"), return_exceptions=True)

    assert [str(error) for error in asyncio.run(ask())] == ["died", "died"]


def test_all_turns_of_an_episode_go_to_one_server_in_every_process():
    servers = client.Servers({f"hf-{i}": f"handle {i}" for i in range(3)})
    found = {i: servers.find(f"episode {i}")[0] for i in range(300)}
    assert found == {i: pickle.loads(pickle.dumps(servers)).find(f"episode {i}")[0] for i in found}
    assert all(60 < list(found.values()).count(name) < 140 for name in ("hf-0", "hf-1", "hf-2"))


@pytest.mark.parametrize("given", [("hf-0",), ("hf-0", "episode 1")], ids=["verl 0.9.0", "verl 0.9.1"])
def test_a_load_balancer_of_verls_hears_of_the_end_of_a_request_as_each_verl_says_it(given):
    """verl 0.9.0's method takes the server's name alone; handed more, every episode failed there."""
    heard = []

    class Client:
        _load_balancer = None

        async def _acquire_server(self, request_id):
            return "hf-0", None

        def _release_server(self, server_id, *request_id):
            assert (server_id, *request_id) == given
            heard.append(server_id)

    class Manager:
        async def _init_global_load_balancer(self):
            return None

    module = SimpleNamespace(LLMServerManager=Manager, LLMServerClient=Client)
    client.patch(module)
    Client()._release_server(*given)
    assert heard == ["hf-0"]


@pytest.fixture
def queue():
    """A queue that keeps what is put."""

    async def async_kv_batch_put(keys, partition_id, fields=None, tags=None):
        kept.append((keys, partition_id, fields, tags))

    kept = []
    module = SimpleNamespace(async_kv_batch_put=async_kv_batch_put, kept=kept)
    puts.patch_queue(module)
    return module


def row(i: int) -> dict:
    return {"prompts": torch.arange(i + 1), "extra_fields": {"turns": [i]}, "uid": f"u{i}"}


def test_rows_of_several_sessions_are_one_put_of_the_same_rows(queue):
    async def sessions():
        await asyncio.gather(
            *(
                queue.async_kv_batch_put(keys=[f"k{i}"], partition_id="train", fields=puts.Rows([row(i)]), tags=[{"n": i}])
                for i in range(4)
            ),
            queue.async_kv_batch_put(keys=["v"], partition_id="val", fields=puts.Rows([row(9)]), tags=[{"n": 9}]),
        )

    asyncio.run(sessions())
    assert [(keys, partition) for keys, partition, _, _ in queue.kept] == [(["k0", "k1", "k2", "k3"], "train"), (["v"], "val")]
    _, _, fields, tags = queue.kept[0]
    assert tags == [{"n": i} for i in range(4)]
    assert [part.tolist() for part in fields["prompts"].unbind()] == [list(range(i + 1)) for i in range(4)]
    assert [fields[i]["extra_fields"] for i in range(4)] == [{"turns": [i]} for i in range(4)]
    assert [fields[i]["uid"] for i in range(4)] == [f"u{i}" for i in range(4)]


def test_a_failed_put_fails_every_session_and_what_is_no_rows_passes_at_once(queue):
    async def refuse(keys, partition_id, fields=None, tags=None):
        raise RuntimeError("full")

    refusing = SimpleNamespace(async_kv_batch_put=refuse)
    puts.patch_queue(refusing)

    async def sessions():
        return await asyncio.gather(
            *(refusing.async_kv_batch_put(["k"], "train", puts.Rows([row(0)]), [{}]) for _ in range(2)), return_exceptions=True
        )

    assert [str(error) for error in asyncio.run(sessions())] == ["full", "full"]
    asyncio.run(queue.async_kv_batch_put(["k"], "train", "fields", [{}]))
    assert queue.kept == [(["k"], "train", "fields", [{}])]
