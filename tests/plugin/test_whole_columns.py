# SPDX-License-Identifier: Apache-2.0
"""Mini- and micro-batches of marked batches: verl's own function, wrapped, against the same function on an unmarked batch."""

import gc

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

pytest.importorskip("verl")

LENGTHS = [3, 1, 4, 2, 5]


def nested(width: int | None = None, dtype=torch.int64) -> torch.Tensor:
    shape = () if width is None else (width,)
    return torch.nested.as_nested_tensor(
        [torch.arange(n * (width or 1)).reshape(n, *shape).to(dtype) for n in LENGTHS], layout=torch.jagged
    )


def batch(marked: bool) -> TensorDict:
    from verl_entropy.upstream.rows import MARK

    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(20.0), torch.arange(0, 24, 4), lengths=torch.tensor(LENGTHS).clamp(max=4)
    )
    columns = {
        "ids": nested(),
        "log_probs": nested(dtype=torch.float32),
        "experts": nested(2),
        "holes": holes,
        "label": torch.arange(5.0),
        "objects": NonTensorStack(*[{"row": i} for i in range(5)]),
        "temperature": NonTensorData(0.5),
    }
    return TensorDict(columns | ({MARK: NonTensorData(True)} if marked else {}), batch_size=5)


def rows(column) -> list:
    return [row.tolist() for row in column.unbind()] if isinstance(column, torch.Tensor) else column


@pytest.mark.parametrize("index", [[0], [4, 0, 2], torch.tensor([1, 1, 3])])
def test_a_marked_batch_is_cut_as_verl_cuts_it(index):
    from verl.utils import tensordict_utils as tu

    from verl_entropy.hosts.install import activate
    from verl_entropy.upstream.rows import MARK

    activate.install()

    ours, theirs = (tu.index_select_tensor_dict(batch(marked), index) for marked in (True, False))
    assert set(ours.keys()) == {*theirs.keys(), MARK} and ours.batch_size == theirs.batch_size
    for name in theirs.keys():
        assert type(ours.get(name)) is type(theirs.get(name)), name
        if isinstance(theirs[name], torch.Tensor):
            assert rows(ours[name]) == rows(theirs[name]) and ours[name].dtype == theirs[name].dtype, name
    assert ours["objects"] == theirs["objects"] and ours["temperature"] == theirs["temperature"]
    for name in ("ids", "log_probs"):
        assert torch.equal(ours[name].offsets(), theirs[name].offsets())
    padded = [cut.select("ids", "log_probs", "label").to_padded_tensor() for cut in (ours, theirs)]
    assert torch.equal(padded[0]["ids"], padded[1]["ids"])
    assert torch.equal(padded[0]["log_probs"], padded[1]["log_probs"])


def test_only_marked_batches_are_cut_in_whole_columns(monkeypatch):
    from verl.utils import tensordict_utils as tu

    from verl_entropy.upstream import rows as module

    cut = []
    monkeypatch.setattr(module, "select_rows", lambda column, index: cut.append(1) or column)
    tu.index_select_tensor_dict(batch(False), [0, 1, 2, 3, 4])
    assert not cut
    tu.index_select_tensor_dict(batch(True), [0, 1, 2, 3, 4])
    assert len(cut) == 2  # ids and log_probs; experts and holes go verl's way


def test_the_collector_is_spared_what_is_loaded_once_per_process():
    from verl.utils import tensordict_utils as tu

    from verl_entropy.upstream import rows as module

    gc.unfreeze()
    module.settle.cache_clear()
    tu.index_select_tensor_dict(batch(False), [0])
    assert gc.get_freeze_count() == 0
    tu.index_select_tensor_dict(batch(True), [0])
    frozen = gc.get_freeze_count()
    later = [[] for _ in range(1000)]
    tu.index_select_tensor_dict(batch(True), [0])
    assert frozen > 10_000 and gc.get_freeze_count() <= frozen and len(later) == 1000
    gc.unfreeze()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_rows_are_padded_as_torch_pads_them(dtype):
    from verl_entropy.upstream.rows import pad_rows

    offsets = torch.tensor([0, 3, 3, 4, 7])  # an empty row too
    column = torch.nested.nested_tensor_from_jagged(torch.arange(1, 8).to(dtype), offsets)
    for width in (3, 5):
        theirs = torch.nested.to_padded_tensor(column, padding=0, output_size=(4, width))
        assert torch.equal(pad_rows(column, width), theirs) and pad_rows(column, width).dtype == dtype
    with pytest.raises(ValueError, match="a row of 3 values does not fit into 2"):
        pad_rows(column, 2)
    strided = torch.nested.nested_tensor([row.clone() for row in column.unbind()])
    assert torch.equal(pad_rows(strided, 5), pad_rows(column, 5))
