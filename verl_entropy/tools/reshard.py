# SPDX-License-Identifier: Apache-2.0
"""Write the shards of one of verl's FSDP checkpoints again for another number of ranks, on the CPU.

verl 0.9 saves a file per rank and loads only files of its own world size. Values are not changed: what was sharded is joined and
split as FSDP splits it, the rest is the same on all ranks. Pickles are loaded in full: reshard only checkpoints you wrote.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor

from verl_entropy.files import new_folder, replacing

KINDS = ("extra_state", "optim", "model")
"""In the order of writing: with its model a rank is complete."""
HOST_RNG = {"cpu", "numpy", "random"}
"""Random states of the host in verl's extra_state; the remaining key is the accelerator's name."""
UNIT = re.compile(r"(?:.*?\.\d+|seal_head)\.")
"""Prefix of a parameter that FSDP1 wraps apart from the root: a layer's, or the head's."""


class ReshardError(ValueError):
    """A checkpoint that cannot be resharded; the message says why."""


def shard_path(folder: Path, kind: str, world: int, rank: int) -> Path:
    """verl's name of a shard."""
    return folder / f"{kind}_world_size_{world}_rank_{rank}.pt"


@contextmanager
def _as_rank(rank: int, world: int) -> Iterator[DeviceMesh]:
    """The mesh that worker ``rank`` of verl has, without the other workers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    finally:
        dist.destroy_process_group()


def _placement(key: str, tensor: DTensor) -> Placement:
    if tensor.device_mesh.ndim != 1 or type(tensor.placements[0]) is not Shard:
        names, placements = tensor.device_mesh.mesh_dim_names, tensor.placements
        raise ReshardError(f"{key}: sharded as {placements} over {names}; only full sharding (fsdp_size=-1) can be resharded.")
    return tensor.placements[0]


def _full(key: str, parts: list[Tensor]) -> Tensor:
    """The whole of a tensor of which each former rank has a part or a copy."""
    if isinstance(parts[0], DTensor):
        return torch.cat([part.to_local() for part in parts], dim=_placement(key, parts[0]).dim)
    if not all(torch.equal(parts[0], part) for part in parts):
        raise ReshardError(f"{key}: not sharded, and different from rank to rank.")
    return parts[0]


class _Role:
    """The shards of one model (actor, critic) under FSDP version ``version``, saved by ``former`` ranks."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "fsdp_config.json").read_text(encoding="utf-8"))
        self.folder, self.former, self.version = folder, int(config["world_size"]), int(config["FSDP_version"])

    def load(self, kind: str) -> list[Any]:
        """What each former rank saved, mapped from the disk; empty if that was not saved."""
        paths = [shard_path(self.folder, kind, self.former, rank) for rank in range(self.former)]
        missing = [path for path in paths if not path.is_file()]
        if len(missing) == len(paths) and kind != "model":
            return []
        if missing:
            raise ReshardError(f"{missing[0]}: not there. All {self.former} ranks' shards must be in one folder.")
        return [torch.load(path, map_location="cpu", mmap=True, weights_only=False) for path in paths]

    def device(self) -> str:
        """Type of the devices of the mesh. A single rank of FSDP1 saves plain tensors, but its random state has the name."""
        first = next(iter(self.load("model")[0].values()))
        if isinstance(first, DTensor):
            return first.device_mesh.device_type
        extra = self.load("extra_state")
        if not extra or "rng" not in extra[0]:
            raise ReshardError(
                f"{self.folder}: no random state in extra_state_*.pt (save_contents without extra?) to tell the device."
            )
        return next(iter(extra[0]["rng"].keys() - HOST_RNG), "cpu")

    def model(self, mesh: DeviceMesh) -> dict[str, Any]:
        """The new rank's model. FSDP1 has plain tensors on one rank, otherwise parameters alone are sharded, all of them by rows."""
        parts = self.load("model")
        result = copy.copy(parts[0])  # keeps its _metadata
        for key in result:
            values = [part[key] for part in parts]
            full, sharded = _full(key, values), isinstance(values[0], DTensor)
            if self.version == 1 and mesh.size() == 1:
                result[key] = full
            elif sharded or (self.version == 1 and self.former == 1):
                placement = _placement(key, values[0]) if sharded else Shard(0)
                result[key] = distribute_tensor(full, mesh, [placement], src_data_rank=None)
        return result

    def flat_numels(self) -> list[int]:
        """Sizes of FSDP1's flat parameters: the root's first, then those of its units."""
        config = json.loads((self.folder / "huggingface" / "config.json").read_text(encoding="utf-8"))
        units = {"": 0}
        for key, value in self.load("model")[0].items():
            if key == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue  # the embedding's
            unit = UNIT.match(key)
            name = unit.group() if unit else ""
            units[name] = units.get(name, 0) + value.numel()
        return list(units.values())

    def optim(self, mesh: DeviceMesh) -> dict[str, Any] | None:
        """The new rank's optimiser."""
        parts = self.load("optim")
        if not parts:
            return None
        numels = self.flat_numels() if self.version == 1 else []
        if self.version == 1 and (len(numels) != len(parts[0]["param_groups"][0]["params"])):
            raise ReshardError(
                f"{self.folder}: the optimiser is not that of FSDP1 with use_orig_params=False and a unit per layer."
            )

        def convert(index: int, name: str, values: list[Tensor]) -> Tensor:
            if self.version == 1 and values[0].dim() == 1:
                return self._flat(index, values, numels[index], mesh)
            full = _full(f"{name} of parameter {index}", values)
            if not isinstance(values[0], DTensor):
                return full
            return distribute_tensor(full, mesh, values[0].placements, src_data_rank=None)

        state = {
            index: {name: convert(index, name, [part["state"][index][name] for part in parts]) for name in entry}
            for index, entry in parts[0]["state"].items()
        }
        return {**parts[0], "state": state}

    def _flat(self, index: int, values: list[Tensor], numel: int, mesh: DeviceMesh) -> Tensor:
        """A moment of a flat parameter: equal parts, the last ones padded."""
        if any(value.numel() != math.ceil(numel / self.former) for value in values):
            raise ReshardError(
                f"{self.folder}: flat parameter {index} has {sum(v.numel() for v in values)} elements where the model's layers give "
                f"{numel}: not wrapped by layers. Use actor_rollout_ref.actor.strategy=fsdp2, whose checkpoints need no such guess."
            )
        whole = torch.cat(values)[:numel]
        return F.pad(whole, (0, -numel % mesh.size())).chunk(mesh.size())[mesh.get_rank()].clone()

    def extra_state(self, mesh: DeviceMesh) -> dict[str, Any] | None:
        """The schedule, equal on all ranks, and the former rank's random state; a rank without one keeps the state it starts with."""
        parts = self.load("extra_state")
        if not parts:
            return None
        rank = mesh.get_rank()
        return parts[rank] if rank < self.former else {k: v for k, v in parts[0].items() if k != "rng"}

    def write(self, target: Path, world: int) -> None:
        """The shards of all new ranks, each file complete before it has its name."""
        with _as_rank(0, self.former):
            device = self.device()
        for rank in range(world):
            with _as_rank(rank, world) as mesh:
                for kind in KINDS:
                    content = getattr(self, kind)(mesh)
                    if content is None:
                        continue
                    path = shard_path(target, kind, world, rank)
                    # Computed without the devices, loaded on them: verl compares the mesh, and moves the values itself.
                    mesh._device_type = device
                    with replacing(path, flush=False) as (partial,):
                        torch.save(content, partial)
                    mesh._device_type = "cpu"


def _complete(folder: Path, world: int) -> bool:
    return all(shard_path(folder, "model", world, rank).is_file() for rank in range(world))


def reshard(source: str | Path, ranks: int, out: str | Path | None = None) -> dict[str, int]:
    """Write shards for ``ranks`` ranks into ``source`` (a ``global_step_<n>`` folder), beside its own, or into a copy of the folder
    that has only those. Returns the former number of ranks of each model.
    """
    source = Path(source)
    if ranks < 1:
        raise ReshardError(
            f"--ranks {ranks}: must be >= 1, the trainer.nnodes * trainer.n_gpus_per_node of the run that resumes."
        )
    roles = [_Role(path.parent) for path in sorted(source.glob("*/fsdp_config.json"))]
    if not roles:
        raise ReshardError(f"{source}: no */fsdp_config.json here. Give the global_step_<n> folder of a run of verl 0.9 on FSDP.")
    if out is not None:
        _copy(source, Path(out), roles, ranks)
    else:
        roles = [role for role in roles if not _complete(role.folder, ranks)]
        if not roles:
            raise ReshardError(f"{source}: has shards for {ranks} ranks already.")
        for role in roles:
            role.write(role.folder, ranks)
    return {role.folder.name: role.former for role in roles}


def _copy(source: Path, target: Path, roles: list[_Role], ranks: int) -> None:
    """A new folder with the new shards and everything else of the old one; appears only when it is complete."""
    if target.exists():
        raise ReshardError(f"{target}: exists already; choose a new folder, nothing is overwritten.")
    if not re.fullmatch(r"global_step_\d+", target.name):  # verl takes the step from the name
        raise ReshardError(f"--out {target}: must be named global_step_<n>, such as {target / source.resolve().name}.")
    with new_folder(target) as partial:
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns("*_world_size_*_rank_*.*"))
        for role in roles:
            folder = partial / role.folder.name
            role.write(folder, ranks)
            config = {"FSDP_version": role.version, "world_size": ranks}
            (folder / "fsdp_config.json").write_text(json.dumps(config, indent=4), encoding="utf-8")
