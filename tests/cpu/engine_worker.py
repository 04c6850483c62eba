# SPDX-License-Identifier: Apache-2.0
"""One rank of a gloo group that builds verl's engines for device ``cpu`` and writes down what they compute.

Run as a process: importing verl's engines sets up global state (platform, registries, process group).
"""

from __future__ import annotations

import os
import socket
import sys

STRATEGIES = ("fsdp", "fsdp2")
LENGTHS = (5, 9, 7, 12, 6, 11, 8, 10)  # tokens of the 8 sequences of the batch


def main(model_path: str, out: str) -> None:
    import torch
    import verl

    known = set(sys.modules)
    from verl_entropy.cpu import engine, wiring

    wiring.install()
    loaded = sorted(set(sys.modules) - known)
    import verl.utils.distributed as distributed
    import verl.workers.engine  # noqa: F401  imports the FSDP engines

    engine.register_engines()
    rank = int(os.environ["RANK"])
    torch.save(loaded, f"{out}.wiring.rank{rank}")
    distributed.initialize_global_process_group_ray()
    torch.save(_results(model_path, f"{out}.checkpoint"), f"{out}.world2.rank{rank}")
    distributed.destroy_global_process_group()
    if rank == 0:  # the same batch on one rank, in a group made the way torchrun programs do
        os.environ.update(WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        del os.environ["DIST_INIT_METHOD"]
        assert distributed.initialize_global_process_group() == (0, 0, 1)
        torch.save(_results(model_path, f"{out}.checkpoint1"), f"{out}.world1.rank0")
        distributed.destroy_global_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _results(model_path: str, checkpoint: str) -> dict:
    import torch

    # Random parts of a model differ between ranks unless they are made equal.
    torch.manual_seed(100 + torch.distributed.get_rank())
    return {
        strategy: {
            "actor": _actor(model_path, strategy, f"{checkpoint}.{strategy}"),
            "reference": _reference(model_path, strategy),
            "critic": _critic(model_path, strategy),
        }
        for strategy in STRATEGIES
    }


def _engine(model_path: str, strategy: str, model_type: str, forward_only: bool = False):
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    model_config = HFModelConfig(
        path=model_path,
        model_type=model_type,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    engine_config = FSDPEngineConfig(
        strategy=strategy,
        forward_only=forward_only,
        use_torch_compile=False,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    engine = EngineRegistry.new(
        model_type=model_type,
        backend=strategy,
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=FSDPOptimizerConfig(lr=1e-2, clip_grad=1.0, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def _batch():
    """This rank's share of 8 sequences: interleaved, so that each rank has other lengths."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(6, 64, (n,), generator=generator) for n in LENGTHS]
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    rows = rows[rank::world]

    def jagged(values):
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    # The last half of a sequence is its response.
    masks = [(torch.arange(len(row)) >= len(row) // 2).long() for row in rows]
    fields = {
        "input_ids": jagged(rows),
        "position_ids": jagged([torch.arange(len(row)) for row in rows]),
        "loss_mask": jagged(masks),
    }
    data = TensorDict(fields, batch_size=[len(rows)])
    tu.assign_non_tensor(
        data,
        use_remove_padding=False,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=24,
        temperature=1.0,
        global_batch_size=8,
    )
    return data


def _weights(engine) -> dict:
    generator, _ = engine.get_per_tensor_param()
    return {name: tensor.detach().clone() for name, tensor in generator}


def _actor(model_path: str, strategy: str, checkpoint: str) -> dict:
    """One optimizer step, a checkpoint, a second step, and back to the checkpoint."""
    from verl.workers.utils.losses import sft_loss

    engine = _engine(model_path, strategy, "language_model")
    before = _weights(engine)

    def step() -> dict:
        with engine.train_mode():
            return engine.train_batch(_batch(), loss_function=lambda **kwargs: sft_loss(config=None, **kwargs))

    output = step()
    after = _weights(engine)
    engine.save_checkpoint(checkpoint)
    step()
    second = _weights(engine)
    engine.load_checkpoint(checkpoint, del_local_after_load=False)
    restored = _weights(engine)
    step()
    return {
        "class": type(engine).__name__,
        "weights": {
            "before": before,
            "after": after,
            "second": second,
            "restored": restored,
            "again": _weights(engine),
        },
        "loss": sum(output["loss"]),
        "grad_norm": output["metrics"]["grad_norm"],
        "micro_batches": len(output["loss"]),
    }


def _reference(model_path: str, strategy: str) -> dict:
    engine = _engine(model_path, strategy, "language_model", forward_only=True)
    with engine.eval_mode():
        output = engine.infer_batch(_batch())
    log_probs = [row[:-1].clone() for row in output["model_output"]["log_probs"].unbind()]  # the last has no next token
    return {"log_probs": log_probs, "rows": [row.clone() for row in _batch()["input_ids"].unbind()]}


def _critic(model_path: str, strategy: str) -> dict:
    engine = _engine(model_path, strategy, "value_model")
    with engine.eval_mode():
        output = engine.infer_batch(_batch())
    values = [row.clone() for row in output["model_output"]["values"].unbind()]
    return {"class": type(engine).__name__, "weights": _weights(engine), "values": values}


if __name__ == "__main__":
    main(*sys.argv[1:])
