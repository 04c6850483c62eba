# SPDX-License-Identifier: Apache-2.0
"""Cut the SEAL head out of one of verl's FSDP checkpoints, so that stock verl (and from_pretrained) can load it.

The source is never changed: the result is written to a new folder, which appears only when it is complete.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from verl_entropy.files import new_folder

HEAD = "seal_head."
STATE_FILE = "verl_entropy.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be stripped; the message says why."""


def _load(path: Path) -> Any:
    import torch

    # verl's own shards hold DTensors or ShardedTensors, which need a full unpickle: strip only checkpoints you wrote.
    return torch.load(path, map_location="cpu", weights_only=False)


def _head_sizes(state: dict[str, Any]) -> list[int]:
    return [value.numel() for key, value in state.items() if HEAD in key]


def _strip_optimizer(optimizer: dict[str, Any], count: int, path: Path) -> dict[str, Any]:
    """Remove the last ``count`` parameters: the head is the last child of the root module."""
    if "param_groups" not in optimizer or len(optimizer["param_groups"]) != 1:
        raise CheckpointError(f"{path}: expected one parameter group, as verl's optimisers have.")
    group = optimizer["param_groups"][0]
    indices = sorted(group["params"])
    cut = set(indices[-count:])
    kept = [i for i in group["params"] if i not in cut]
    return {
        **optimizer,
        "state": {k: v for k, v in optimizer["state"].items() if k not in cut},
        "param_groups": [{**group, "params": kept}],
    }


def strip_weights(folder: Path) -> None:
    """Remove the head from a Hugging Face export (safetensors), if there is one; a file appears only when it is complete."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    for file in files:
        with safe_open(file, framework="pt") as handle:
            metadata, keys = handle.metadata(), list(handle.keys())
        if any(HEAD in key for key in keys):
            partial = file.with_suffix(".partial")
            save_file({k: v for k, v in load_file(file).items() if HEAD not in k}, partial, metadata=metadata)
            partial.replace(file)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["weight_map"] = {k: v for k, v in content["weight_map"].items() if HEAD not in k}
        for file in {file.name for file in files} - set(content["weight_map"].values()):
            (folder / file).unlink()  # held the head alone
        content.setdefault("metadata", {})["total_size"] = sum(
            _tensor_bytes(folder / f) for f in set(content["weight_map"].values())
        )
        index.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _tensor_bytes(file: Path) -> int:
    """Bytes of a safetensors file's tensors: what follows the header, whose length the first 8 bytes hold."""
    with file.open("rb") as opened:
        return file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")


def _check_optimizer(shard: Path) -> None:
    """FSDP1 keeps a unit as one flat parameter: where a wrap policy left the head in the root's, it cannot be cut out here."""
    actor, path = shard.parent, _optimizer_of(shard)
    config = json.loads((actor / "fsdp_config.json").read_text(encoding="utf-8"))
    if config["FSDP_version"] != 1 or not path.is_file():
        return
    total = sum(math.prod(value.size()) for key, value in _load(shard).items() if HEAD in key)
    optimizer = _load(path)
    last = max(optimizer["param_groups"][0]["params"])
    sizes = [math.prod(value.size()) for value in optimizer["state"].get(last, {}).values()]  # moments, and the count of steps
    expected = -(-total // config["world_size"])
    if total and optimizer["state"] and max(sizes, default=0) != expected:
        found = max(sizes, default=0)
        raise CheckpointError(
            f"{path}: its last parameter has {found} values, and this rank's part of the head {expected}: the head is not an FSDP unit of its "
            "own (fsdp_config.wrap_policy or use_orig_params), so its optimiser state cannot be told from the model's. Nothing was "
            "written. Strip a copy without the optim_*.pt files (load it with actor.checkpoint.load_contents=[model,extra]; the optimiser "
            "starts afresh), or train without wrap_policy, or with SealHead in wrap_policy.transformer_layer_cls_to_wrap."
        )


def _shards(actor: Path) -> list[Path]:
    shards = sorted(actor.glob("model_world_size_*_rank_*.pt"))
    if not shards:
        raise CheckpointError(f"{actor}: no model_world_size_*_rank_*.pt here. Give the global_step_<n> folder of a run on FSDP.")
    return shards


def _optimizer_of(shard: Path) -> Path:
    return shard.with_name(shard.name.replace("model_", "optim_", 1))


def _strip_actor(shards: list[Path], target: Path) -> int:
    """Write the shards and their optimisers to ``target`` without the head; returns the number of head tensors."""
    import torch

    config = json.loads((target / "fsdp_config.json").read_text(encoding="utf-8"))
    found = 0
    for shard in shards:
        state = _load(shard)
        sizes = _head_sizes(state)
        if not sizes:
            raise CheckpointError(f"{shard}: has no SEAL head; nothing to strip.")
        found = len(sizes)
        torch.save({k: v for k, v in state.items() if HEAD not in k}, target / shard.name)
        optimizer_path = _optimizer_of(shard)
        if optimizer_path.is_file():
            # FSDP1 keeps the head as one flat parameter (it is its own unit), FSDP2 one entry per tensor.
            count = 1 if config["FSDP_version"] == 1 else found
            optimizer = _strip_optimizer(_load(optimizer_path), count, optimizer_path)
            torch.save(optimizer, target / optimizer_path.name)
    strip_weights(target / "huggingface")
    return found


def strip_head(source: str | Path, target: str | Path) -> int:
    """Copy ``source`` (a ``global_step_<n>`` folder) to ``target`` without the head; returns the number of tensors removed."""
    source, target = Path(source), Path(target)
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such folder.")
    if target.exists():
        raise CheckpointError(f"{target}: exists already; choose a new folder, nothing is overwritten.")
    shards = _shards(source / "actor")
    _check_optimizer(shards[0])
    rewritten = {path.name for shard in shards for path in (shard, _optimizer_of(shard))}
    with new_folder(target) as partial:
        shutil.copytree(source, partial, ignore=lambda folder, _: rewritten if Path(folder) == source / "actor" else ())
        found = _strip_actor(shards, partial / "actor")
        state_path = partial / STATE_FILE
        if state_path.is_file():
            content = json.loads(state_path.read_text(encoding="utf-8"))
            content["head"] = None
            state_path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return found
