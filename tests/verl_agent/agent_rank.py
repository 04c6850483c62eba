# SPDX-License-Identifier: Apache-2.0
"""One of two ranks: its half of a mini-batch, the terms of the loss, and the head's step, over gloo."""

from __future__ import annotations

import sys

import torch
from test_micro import INFO, mini_batch

from verl_entropy.config.plan import Choice
from verl_entropy.hosts.common import loss_side
from verl_entropy.hosts.verl_agent import micro, ranks, settings
from verl_entropy.hosts.verl_agent.head import OutsideHead
from verl_entropy.methods.heads.seal import SEAL, Seal

OVERRIDES = ["actor_rollout_ref.actor.seal.dropout=0.0"]


def outcome(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Value and gradients, averaged over the ranks as FSDP does, and the head after a step, for a rank that holds ``rows``."""
    from agent_config import agent_config

    chosen = settings.prepare(agent_config(["seal", "epo"], OVERRIDES))
    columns, mask, values = mini_batch()
    cut = {k: v[rows] for k, v in columns.items() if not k.startswith("verl_entropy_num")}
    cut.update(micro.count_columns(mask[rows], {}, len(rows), ranks.total))
    entropy = values["entropy"][rows].clone().requires_grad_()
    hidden = torch.sin(torch.arange(4.0) + 10 * values["seal"].unsqueeze(-1))[rows][mask[rows]].requires_grad_()
    head = OutsideHead(4, Choice(SEAL, Seal(dropout=0.0)), {"lr": 1e-2}, "cpu", ranks.average)
    outputs = micro.model_output(head.logits(hidden), mask[rows])
    ctx = micro.context(chosen, cut, mask[rows], entropy, outputs, {}, INFO, ranks.world_size())
    value = sum(loss_side.extra_terms(ctx))
    value.backward()
    gradients = [ranks.average(p.grad.clone()) for p in head.module.parameters()]
    means = micro.Means()
    means.add(ctx)
    head.step(1e-2, finite=True)
    return {
        "value": ranks.average(value.detach().clone()),
        "entropy": entropy.grad / ranks.world_size(),
        "head_gradient": torch.cat([g.reshape(-1) for g in gradients]),
        "head": torch.cat([p.detach().reshape(-1) for p in head.module.parameters()]),
        "metric": torch.tensor(means.result(1, ranks.average)["verl_entropy/seal/loss"]),
    }


def main() -> None:
    rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.save(outcome(torch.arange(4) + 4 * rank), f"{out}.{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
