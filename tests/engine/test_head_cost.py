# SPDX-License-Identifier: Apache-2.0
"""Where the head reads, and the script that measures its cost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from verl_entropy.hosts.common.loss_tools import trained_positions, trained_tokens
from verl_entropy.methods.heads.seal import seal_loss, seal_parts

GPU = Path(__file__).parents[1] / "gpu"


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shift", [-1, 0])
def test_trained_tokens_and_their_positions(packed, shift):
    """Observations between the turns, a row without a trained token, responses of unequal length."""
    prompts, masks = (3, 1, 4, 2), ([1, 1, 0, 0, 1], [0, 0], [0, 1, 1], [1])
    columns = {
        "prompts": jagged([torch.zeros(p) for p in prompts]),
        "responses": jagged([torch.zeros(len(m)) for m in masks]),
        "loss_mask": jagged([torch.tensor(m) for m in masks]),
    }
    width, starts = max(p + len(m) for p, m in zip(prompts, masks, strict=True)), [0]
    for p, m in zip(prompts, masks, strict=True):
        starts.append(starts[-1] + (p + len(m) if packed else width))
    expected, flat = [], 0
    for row, (p, m) in enumerate(zip(prompts, masks, strict=True)):
        for t, trained in enumerate(m):
            if trained:
                expected.append((flat + t, row, starts[row] + p + t + shift))
        flat += len(m)
    token_N, row_N = trained_tokens(columns)
    position_N = trained_positions(columns, packed, shift, token_N, row_N)
    assert list(zip(token_N.tolist(), row_N.tolist(), position_N.tolist(), strict=True)) == expected


def test_tokens_alone_have_the_loss_of_the_padded_layout():
    g = torch.Generator().manual_seed(0)
    mask, logits = torch.rand(5, 7, generator=g) > 0.6, torch.randn(5, 7, generator=g)
    label, weight = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5])
    rows = mask.nonzero()[:, 0]
    padded = seal_loss(logits, label, mask, row_weight_R=weight)
    assert torch.equal(seal_loss(logits[mask], label[rows], None, row_weight_R=weight[rows]), padded[mask])
    parts = seal_parts(logits, label, mask)
    for name, tokens in seal_parts(logits[mask], label[rows], None).items():
        assert torch.equal(tokens, parts[name][mask]) and bool((parts[name][~mask] == 0).all())


def test_overheads_measures_the_head_in_a_real_update(tmp_path):
    """On the CPU at small shapes: both updates run, the parts are there, and nothing failed."""
    pytest.importorskip("verl")
    command = [
        sys.executable,
        str(GPU / "overheads.py"),
        "--tiny",
        "--models",
        "Qwen2.5-1.5B",
        "--json",
        str(tmp_path / "o.json"),
    ]
    subprocess.run(command, check=True, timeout=300, cwd=tmp_path, capture_output=True)
    result = json.loads((tmp_path / "o.json").read_text())
    assert result["failed"] == [] and result["entropy"] == []
    (row,) = result["head"]
    assert row["pairs"] >= 5 and row["launches_with"] > row["launches_without"] > 0
    assert row["head_state_mb"] == pytest.approx(12e-6 * row["head_parameters"], rel=0.01)
    assert [part["part"] for part in row["parts"]] == ["gather", "forward", "loss", "metrics", "backward", "clip", "step"]
    assert all(part["launches"] > 0 and part["alone_ms"] > 0 for part in row["parts"])
