# SPDX-License-Identifier: Apache-2.0
"""One rank that saves a checkpoint after two updates, or resumes one, and makes the third: reshard_rank.py MODEL OUT SCENARIO...

A scenario is ``<strategy>-save`` or ``<strategy>-resume``; the checkpoint is global_step_2 in the strategy's folder beside OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from engine_rank import FULL, actor_config, build, main, update


def weights(engine) -> dict[str, torch.Tensor]:
    """Model and head, whole."""
    from torch.distributed.fsdp import ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType
    from verl.utils.fsdp_utils import get_fsdp_state_ctx

    kind = StateDictType.SHARDED_STATE_DICT
    with get_fsdp_state_ctx(engine.module, kind, ShardedStateDictConfig(), ShardedOptimStateDictConfig()):
        state = engine.module.state_dict()
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).cpu().clone() for k, v in state.items()}


def moments(engine) -> list[torch.Tensor]:
    """The optimiser's state, whole and without the padding of flat parameters."""
    found = []
    for parameter in engine.optimizer.param_groups[0]["params"]:
        for name, value in sorted(engine.optimizer.state[parameter].items()):
            if hasattr(value, "full_tensor"):
                value = value.full_tensor()
            elif name != "step":
                parts = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size())]
                torch.distributed.all_gather(parts, value)
                numel = parameter._unpadded_unsharded_size.numel()
                value = (torch.cat(parts) if parameter._sharded_size.numel() < numel else value)[:numel]
            found.append(value.cpu().clone())
    return found


def scenario(name: str, model: str, folder: Path) -> dict:
    strategy, kind = name.split("-")
    actor = actor_config(strategy, FULL, "chunked")
    engine = build(model, actor)
    checkpoint = str(folder / strategy / "global_step_2" / "actor")
    if kind == "resume":
        engine.load_checkpoint(checkpoint, del_local_after_load=False)
    else:
        for _ in range(2):
            update(engine, actor, False, 1000)
            engine.lr_scheduler_step()
        engine.save_checkpoint(checkpoint, global_step=2)
    result = {"weights": weights(engine), "moments": moments(engine), "schedule": engine.lr_scheduler.state_dict()}
    return result | {"third": update(engine, actor, False, 1000) | {"weights": weights(engine)}}


if __name__ == "__main__":
    main(scenario, *sys.argv[1:])
