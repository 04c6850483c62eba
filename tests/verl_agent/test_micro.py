# SPDX-License-Identifier: Apache-2.0
"""Loss terms on padded micro-batches do not depend on how a mini-batch is split; the head keeps its own state."""

from __future__ import annotations

import pytest
import torch
from agent_config import agent_config

from verl_entropy.config.plan import Choice
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.common import loss_side
from verl_entropy.hosts.verl_agent import micro, settings
from verl_entropy.hosts.verl_agent.head import FILE, OutsideHead
from verl_entropy.methods.heads.seal import SEAL, Seal

ROWS, WIDTH = 8, 5


def mini_batch():
    g = torch.Generator().manual_seed(3)
    mask = torch.arange(WIDTH)[None] < torch.randint(1, WIDTH + 1, (ROWS, 1), generator=g)
    columns = {
        "responses": torch.zeros(ROWS, WIDTH),
        "advantages": torch.randn(ROWS, WIDTH, generator=g),
        "verl_entropy_label": (torch.rand(ROWS, generator=g) > 0.5).float(),
        "verl_entropy_token_weight": torch.rand(ROWS, WIDTH, generator=g) * mask,
        "verl_entropy_turn": torch.randint(3, (ROWS, WIDTH), generator=g).float(),
        "verl_entropy_peak": (torch.rand(ROWS, WIDTH, generator=g) > 0.5).float() * mask,
    }
    ours = {name: columns[f"verl_entropy_{name}"] for name in ("token_weight", "turn", "peak")}
    columns.update(micro.count_columns(mask, ours, ROWS, lambda x: x))
    values = {name: torch.rand(ROWS, WIDTH, generator=g) for name in ("entropy", "nucleus", "seal")}
    return columns, mask, values


INFO = {
    "epo": {"hbar": 0.4, "beta": 1.5, "decay": 1.0},
    "entropy_bonus": {"coef": 1e-3},
    "siren": {"hbar": 0.5, "anchor": 0.3},
}


def gradient(presets, overrides, parts):
    """Summed value of the terms, and their gradients, for a mini-batch cut into ``parts``."""
    chosen = settings.prepare(agent_config(presets, overrides))
    columns, mask, values = mini_batch()
    leaves = {name: v.clone().requires_grad_() for name, v in values.items()}
    total = torch.zeros(())
    for rows in parts:
        cut = {k: v[rows] for k, v in columns.items()}
        part_mask = mask[rows]
        outputs = micro.model_output(leaves["seal"][rows][part_mask], part_mask)
        logits = {"nucleus_entropy": leaves["nucleus"][rows]}
        ctx = micro.context(chosen, cut, part_mask, leaves["entropy"][rows], outputs, logits, INFO, dp_size=1)
        total = total + sum(loss_side.extra_terms(ctx))
    total.backward()
    return total.detach(), {k: v.grad for k, v in leaves.items() if v.grad is not None}


@pytest.mark.parametrize(
    ("presets", "overrides"),
    [
        (["seal"], []),
        (["seal"], ["actor_rollout_ref.actor.seal.label=advantage"]),
        (["epo"], []),
        (["epo"], ["actor_rollout_ref.actor.policy_loss.epo.aggregation=seq-mean-token-mean"]),
        (["entropy_bonus"], []),
        (["siren"], []),
        (["seal", "epo"], []),
    ],
)
def test_terms_do_not_depend_on_the_split(presets, overrides):
    whole, grads = gradient(presets, overrides, [torch.arange(ROWS)])
    split, others = gradient(presets, overrides, [torch.tensor([6, 1, 3]), torch.tensor([0, 7]), torch.tensor([2, 4, 5])])
    assert grads and set(grads) == set(others)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-7)
    for name in grads:
        assert bool(grads[name].abs().sum() > 0)
        torch.testing.assert_close(others[name], grads[name], rtol=1e-5, atol=1e-8)


def test_counts_are_those_of_the_rows_own_mini_batch():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0]])
    columns = micro.count_columns(mask, {"peak": mask * 2.0}, 2, lambda x: 10 * x)
    assert columns[micro.NUM_TOKENS].tolist() == [40, 40, 20, 20, 10]
    assert columns[micro.NUM_ROWS].tolist() == [20, 20, 10, 10, 10]
    assert columns[micro.SUM_OF + "peak"].tolist() == [80, 80, 40, 40, 20]
    assert columns[micro.ROWS_OF + "peak"].tolist() == [20, 20, 10, 10, 10]


def head(layers=3, lr=1e-2):
    return OutsideHead(4, Choice(SEAL, Seal(layers=layers, dropout=0.0)), {"lr": lr}, "cpu", lambda x: x)


def train(head, steps, seed=0):
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        head.logits(torch.randn(6, 4, generator=g)).square().mean().backward()
        head.step(1e-2, finite=True)
    return [p.detach().clone() for p in head.module.parameters()]


def test_head_resumes_bit_equal_and_refuses_another_shape(tmp_path):
    first = head()
    train(first, 3)
    first.save(tmp_path)
    second = head()
    second.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(train(first, 3, 1), train(second, 3, 1), strict=True))
    with pytest.raises(ConfigError, match="layers"):
        head(layers=2).load(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(ConfigError, match="without the head"):
        head().load(tmp_path)


def test_head_skips_the_step_that_the_actor_skips():
    one = head()
    before = [p.detach().clone() for p in one.module.parameters()]
    one.logits(torch.randn(6, 4)).sum().backward()
    one.step(1e-2, finite=False)
    assert all(torch.equal(a, b) for a, b in zip(before, one.module.parameters(), strict=True))
    assert one.skipped == 1 and all(p.grad is None for p in one.module.parameters())
