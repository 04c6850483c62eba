# SPDX-License-Identifier: Apache-2.0
"""Two runs on a host, each with a Ray of its own, never share the socket of their weights; both ends of a run name the same one."""

import ast
import os
import types

import pytest

pytest.importorskip("verl")
import ray

from verl_entropy.hosts.install import compat
from verl_entropy.upstream import weights

PACKAGE = "verl.workers.rollout.vllm_rollout"


def find(module: str, owner: str, name: str) -> ast.FunctionDef:
    """A method in verl's source; importing these modules needs vLLM."""
    classes = [n for n in ast.parse(compat.source(f"{PACKAGE}.{module}")).body if isinstance(n, ast.ClassDef) and n.name == owner]
    return next(n for n in classes[0].body if isinstance(n, ast.FunctionDef) and n.name == name)


def adapter() -> type:
    """A class that names its socket as verl's ``ServerAdapter`` does."""
    lines = [
        node
        for node in ast.walk(find("vllm_rollout", "ServerAdapter", "__init__"))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("job_id", "self.zmq_handle")
    ]
    body = "\n    ".join(map(ast.unparse, sorted(lines, key=lambda node: node.lineno)))
    space = {"ray": ray}
    exec(f"def __init__(self, replica_rank, local_rank):\n    self.replica_rank = replica_rank\n    {body}", space)
    return type("ServerAdapter", (), {"__init__": space["__init__"]})


def server() -> type:
    class vLLMHttpServer:
        def __init__(self, replica_rank):
            os.environ["VERL_REPLICA_RANK"] = str(replica_rank)
            os.environ[weights.JOB] = ray.get_runtime_context().get_job_id()

    return vLLMHttpServer


def worker_handle(local_rank: int) -> str:
    method = find("utils", "vLLMColocateWorkerExtension", "_get_zmq_handle")
    space = {"os": os, "_resolve_vllm_weight_sync_local_rank": lambda rank, _: rank}
    exec(ast.unparse(method), space)
    return space["_get_zmq_handle"](types.SimpleNamespace(model_runner=None, local_rank=local_rank))


@pytest.fixture
def ends(monkeypatch):
    """Both ends of a run whose Ray has its head at an address."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    module = types.SimpleNamespace(ServerAdapter=adapter(), vLLMHttpServer=server())
    weights.wrap_sender(module)
    weights.wrap_server(module)

    def names(head: str, replica: int = 0, rank: int = 0) -> tuple[str, str]:
        context = types.SimpleNamespace(get_job_id=lambda: "01000000", gcs_address=head)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        module.vLLMHttpServer(replica)
        return module.ServerAdapter(replica, rank).zmq_handle, worker_handle(rank)

    return names


def test_both_ends_of_a_run_agree_and_runs_differ(ends):
    seen = set()
    for head in ("127.0.0.1:6379", "127.0.0.1:43219", "[fd12:3456:789a:bcde:0123:4567:89ab:cdef]:65535"):
        for replica, rank in ((0, 0), (0, 1), (11, 7)):
            sender, receiver = ends(head, replica, rank)
            assert sender == receiver and sender.startswith("ipc:///tmp/") and len(sender.removeprefix("ipc://")) < 100
            seen.add(sender)
    assert len(seen) == 9


def test_it_is_still_needed_as_verl_gives_two_runs_the_same_name(ends, monkeypatch):
    context = types.SimpleNamespace(get_job_id=lambda: "01000000")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert adapter()(0, 0).zmq_handle == adapter()(0, 0).zmq_handle
