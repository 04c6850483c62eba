# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of one rank resumes on two and the other way round, by verl's own load, with the head, under FSDP1 and FSDP2."""

import json
import shutil

import pytest
import torch
from ranks import need_ranks, run_ranks

from verl_entropy import cli
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.common import state
from verl_entropy.tools.reshard import KINDS, ReshardError, reshard, shard_path

STRATEGIES = ("fsdp", "fsdp2")


@pytest.fixture(scope="session", params=[(1, 2), (2, 1)], ids=["1to2", "2to1"])
def resumed(request, model, tmp_path_factory):
    """Folder, and what the saving and the resuming ranks found."""
    need_ranks(2)
    before, after = request.param
    folder = tmp_path_factory.mktemp("reshard")
    saved = run_ranks(model, folder / "saved", [f"{s}-save" for s in STRATEGIES], before, "reshard_rank.py")
    for strategy in STRATEGIES:
        (folder / strategy / "global_step_2" / state.FILE).write_text("{}")
        assert cli.main(["reshard", str(folder / strategy / "global_step_2"), "--ranks", str(after)]) == 0
    found = run_ranks(model, folder / "resumed", [f"{s}-resume" for s in STRATEGIES], after, "reshard_rank.py")
    return folder, saved, found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resumes_on_another_number_of_ranks(resumed, strategy):
    """Weights, head, moments and schedule are the same bits; the next update is the one of the run that was not interrupted."""
    _, saved, found = resumed
    a, b = saved[0][f"{strategy}-save"], found[0][f"{strategy}-resume"]
    assert a["weights"].keys() == b["weights"].keys() and "seal_head.out.bias" in a["weights"]
    assert all(torch.equal(value, b["weights"][key]) for key, value in a["weights"].items())
    assert len(a["moments"]) == len(b["moments"]) > 0
    assert all(torch.equal(x, y) for x, y in zip(a["moments"], b["moments"], strict=True))
    assert a["schedule"]["last_epoch"] == b["schedule"]["last_epoch"] == 2
    third, again = a["third"], b["third"]
    assert third["loss"] == pytest.approx(again["loss"], abs=1e-6)
    assert third["grad_norm"] == pytest.approx(again["grad_norm"], rel=1e-5)
    for key, value in third["weights"].items():
        assert not torch.equal(value, a["weights"][key]), key  # the update moved it
        torch.testing.assert_close(value, again["weights"][key], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_uneven_shards_come_back_bit_equal(resumed, strategy, tmp_path):
    """By way of five ranks, more than some parameters have rows; --out copies the rest and leaves the source as it is."""
    source = resumed[0] / strategy / "global_step_2"
    former = json.loads((source / "actor" / "fsdp_config.json").read_text())["world_size"]
    before = sorted(p.name for p in source.rglob("*"))
    five, back = tmp_path / "five" / "global_step_2", tmp_path / "back" / "global_step_2"
    five.parent.mkdir()
    back.parent.mkdir()
    assert reshard(source, 5, five) == {"actor": former} and reshard(five, former, back) == {"actor": 5}
    assert (back / state.FILE).is_file() and (back / "actor" / "huggingface" / "config.json").is_file()
    assert {p.name for p in (back / "actor").glob("*.pt")} == {
        shard_path(back, kind, former, rank).name for kind in KINDS for rank in range(former)
    }
    for kind in ("model", "optim"):
        for rank in range(former):
            a, b = (torch.load(shard_path(p / "actor", kind, former, rank), weights_only=False) for p in (source, back))
            leaves = [torch.utils._pytree.tree_leaves(x) for x in (a, b)]
            for x, y in zip(*leaves, strict=True):
                assert type(x) is type(y)
                assert x == y if not isinstance(x, torch.Tensor) else torch.equal(_local(x), _local(y)) and x.shape == y.shape
    assert sorted(p.name for p in source.rglob("*")) == before


def _local(tensor):
    """On the host: verl saves where the model is, reshard on the CPU."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).cpu()


def test_a_resume_on_other_ranks_names_the_command(resumed):
    folder = resumed[0] / "fsdp2" / "global_step_2"
    trainer = {"resume_mode": "resume_path", "resume_from_path": str(folder), "nnodes": 1, "n_gpus_per_node": 4}
    with pytest.raises(
        ConfigError, match=r"saved by 1 or 2 rank\(s\), and this run has 4 .* `verl-entropy reshard .* --ranks 4`"
    ):
        state.resume_folder(trainer)
    assert state.resume_folder(trainer | {"n_gpus_per_node": 2}) == folder


def test_says_what_cannot_be_resharded(resumed, tmp_path):
    source = resumed[0] / "fsdp" / "global_step_2"
    former = json.loads((source / "actor" / "fsdp_config.json").read_text())["world_size"]
    with pytest.raises(ReshardError, match="has shards for 2 ranks already"):
        reshard(source, 2)
    with pytest.raises(ReshardError, match="must be >= 1"):
        reshard(source, 0)
    with pytest.raises(ReshardError, match=r"no \*/fsdp_config.json"):
        reshard(tmp_path, 2)
    with pytest.raises(ReshardError, match="exists already"):
        reshard(source, 4, source)
    with pytest.raises(ReshardError, match="must be named global_step_<n>"):
        reshard(source, 4, tmp_path / "other")
    broken = tmp_path / "global_step_2"
    shutil.copytree(source, broken)
    shard_path(broken / "actor", "model", former, former - 1).unlink()
    with pytest.raises(ReshardError, match=r"not there\. All"):
        reshard(broken, 4, tmp_path / "a" / "global_step_2")
    config = broken / "actor" / "huggingface" / "config.json"
    shutil.copytree(source, broken, dirs_exist_ok=True)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(ReshardError, match=r"flat parameter 0 has .* not wrapped by layers"):
        reshard(broken, 4, tmp_path / "a" / "global_step_2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "global_step_2"] and list((tmp_path / "a").iterdir()) == []
