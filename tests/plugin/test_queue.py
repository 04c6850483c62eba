# SPDX-License-Identifier: Apache-2.0
"""What travels with verl's calls of the queue, and columns that are taken apart once: TransferQueue's own code, wrapped."""

import asyncio
import types

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

pytest.importorskip("verl")

KEYS = ["a_0_0", "a_0_1", "a_1_0"]
LENGTHS = [3, 1, 2]


def nested(width: int | None = None) -> torch.Tensor:
    rows = [torch.rand(n) if width is None else torch.rand(n, width) for n in LENGTHS]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Store:
    """The two calls, with a dictionary behind them; counts them."""

    def __init__(self, **fields):
        self.fields, self.calls = fields, []

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        self.calls.append(("get", list(select_fields)))
        return TensorDict({k: self.fields[k] for k in select_fields if k in self.fields}, batch_size=len(keys))

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        self.calls.append(("put", list(fields.keys())))
        self.fields.update(fields.items())


def wrapped(**fields) -> tuple[Store, types.SimpleNamespace]:
    from verl_entropy.upstream import queue

    store = Store(**fields)
    module = types.SimpleNamespace(kv_batch_get=store.kv_batch_get, kv_batch_put=store.kv_batch_put)
    queue.wrap_calls(module)
    return store, module


def test_one_read_and_one_write_serve_both():
    from verl_entropy.upstream import queue

    store, tq = wrapped(
        uid=NonTensorStack("a", "a", "b"), mask=nested(), extra=NonTensorStack({}, {}, {"x": 1}), entropy=nested()
    )
    verls, ours = nested(), nested()
    with queue.riding(queue.Ride(KEYS, ["extra", "mask", "entropy", "absent"])) as ride:
        data = tq.kv_batch_get(keys=KEYS, partition_id="train", select_fields=["uid", "mask", "values"])
        assert tq.kv_batch_get(keys=KEYS, partition_id="train", select_fields=["uid"]).keys() == {"uid"}
        ride.write = {"weight": ours}
        put = TensorDict({"advantages": verls}, batch_size=3)
        for _ in range(2):
            tq.kv_batch_put(keys=KEYS, partition_id="train", fields=put)
    assert list(data.keys()) == ["uid", "mask"] and list(put.keys()) == ["advantages"]
    assert set(ride.rows.keys()) == {"extra", "mask", "entropy"} and ride.rows["mask"] is data["mask"]
    assert list(ride.rows["extra"]) == [{}, {}, {"x": 1}] and data.get("uid").tolist() == ["a", "a", "b"]
    assert store.fields["weight"] is ours and store.fields["advantages"] is verls
    first, second, *puts = store.calls
    assert first == ("get", ["uid", "mask", "values", "extra", "entropy", "absent"]) and second == ("get", ["uid"])
    assert puts == [("put", ["advantages", "weight"]), ("put", ["advantages"])] and ride.written


@pytest.mark.parametrize("keys", [KEYS, KEYS[:2]])
def test_calls_for_other_rows_and_outside_are_verls(keys):
    from verl_entropy.upstream import queue

    store, tq = wrapped(mask=torch.ones(len(keys)))
    ride = queue.Ride(["another"], ["entropy"], write={"weight": nested()})
    with queue.riding(ride):
        tq.kv_batch_get(keys, "train", ["mask"])
        tq.kv_batch_put(keys, "train", TensorDict({"mask": torch.ones(len(keys))}, batch_size=len(keys)))
    tq.kv_batch_get(keys, "train", select_fields=["mask"])
    assert store.calls == [("get", ["mask"]), ("put", ["mask"]), ("get", ["mask"])]
    assert ride.rows is None and not ride.written


class Unbinds(torch.overrides.TorchFunctionMode):
    """Counts how often a tensor is taken apart by torch."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.Tensor.unbind
        return func(*args, **(kwargs or {}))


def holes() -> torch.Tensor:
    lengths = torch.tensor(LENGTHS)
    return torch.nested.nested_tensor_from_jagged(torch.rand(12), torch.arange(0, 16, 4), lengths=lengths)


@pytest.mark.parametrize(("make", "times"), [(nested, 0), (lambda: nested(4), 1), (holes, 1)])
def test_a_column_is_taken_apart_once_and_the_same_is_stored(make, times):
    from transfer_queue.metadata import extract_field_schema
    from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

    from verl_entropy.upstream import queue

    column = make()
    data = TensorDict({"column": column, "dense": torch.arange(3.0)}, batch_size=3)

    def stored():
        parts = [AsyncSimpleStorageManager._select_by_positions(data["column"], [r]) for r in range(3)]
        return extract_field_schema(data), [part.tolist() for rows in parts for part in rows]

    with Unbinds() as plain:
        expected = stored()
    with Unbinds() as seen, queue.unbound_once(data):
        assert stored() == expected
    assert plain.count > 1 and seen.count == times
    assert "unbind" not in vars(column) and len(column.unbind()) == 3


def test_every_put_of_the_queue_goes_through_it():
    from transfer_queue.client import AsyncTransferQueueClient, TransferQueueClient

    from verl_entropy.hosts.install import activate

    activate.install()

    column, seen = nested(), []

    class Manager:
        async def put_data(self, data, metadata, data_parser=None):
            seen.append("unbind" in vars(data["column"]))
            raise OSError("the network is down")

    client = object.__new__(AsyncTransferQueueClient)
    client.client_id, client.storage_manager = "c", Manager()
    put = client.async_put(TensorDict({"column": column}, batch_size=3), types.SimpleNamespace(size=3))
    with pytest.raises(OSError, match="network"):
        asyncio.run(put)
    assert seen == [True] and "unbind" not in vars(column)
    assert TransferQueueClient.async_put is AsyncTransferQueueClient.async_put
