# SPDX-License-Identifier: Apache-2.0
"""The sample of trajectories: which, which tokens, and what the workers' collector makes of them under any split."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("verl")
from verl_entropy.diagnostics import sampling
from verl_entropy.diagnostics.interference import interference_gram
from verl_entropy.diagnostics.settings import Live
from verl_entropy.hosts.common.diagnostics_side import sample_columns


def rows(groups: int = 5, rollouts: int = 4, turns: int = 3) -> tuple[list[str], torch.Tensor]:
    keys = [f"uid{g}_{s}_{t}" for g in range(groups) for s in range(rollouts) for t in range(turns)]
    generator = torch.Generator().manual_seed(0)
    masks = [
        (torch.rand(int(n), generator=generator) < 0.8).long() for n in torch.randint(1, 9, (len(keys),), generator=generator)
    ]
    masks[3] = torch.zeros(3, dtype=torch.long)  # the first turn of a trajectory has no trained token
    return keys, torch.nested.as_nested_tensor(masks, layout=torch.jagged)


def test_whole_groups_within_the_limit():
    keys, _ = rows()
    sessions = [k.rsplit("_", 1)[0] for k in keys]
    chosen = sampling.choose(sessions, [s.rsplit("_", 1)[0] for s in sessions], 9)
    assert len(chosen) == 8 and sorted(chosen.values()) == list(range(8))
    assert len({s.split("_")[0] for s in chosen}) == 2
    assert len(sampling.choose(range(10), [0] * 10, 4)) == 4
    assert sampling.choose([], [], 4) == {}


def test_marks_only_trained_tokens_of_the_sample_and_leads_once():
    keys, mask = rows()
    padding = [k.startswith("uid4") for k in keys]
    settings = Live(sample_trajectories=8, sample_tokens=3)
    code_N, lead_R = sample_columns(mask, keys, padding, settings)
    codes = torch.nested.nested_tensor_from_jagged(torch.as_tensor(code_N), mask.offsets()).unbind()
    by_trajectory: dict[int, list[int]] = {}
    for key, code, trained in zip(keys, codes, mask.unbind(), strict=True):
        assert not code[trained == 0].any()
        numbers = set(code[code != 0].abs().tolist())
        assert len(numbers) <= 1 and not (numbers and key.startswith("uid4"))
        if numbers:
            assert (code != 0).sum() == trained.sum()
            by_trajectory.setdefault(numbers.pop(), []).extend((code < 0).tolist())
    assert sorted(by_trajectory) == list(range(1, 9)) == sorted(lead_R[lead_R > 0])
    assert all(sum(picked) == 3 for picked in by_trajectory.values())
    assert all(trained.any() for lead, trained in zip(lead_R, mask.unbind(), strict=True) if lead)


def _tokens(generator):
    hidden, logits = torch.randn(40, 6, generator=generator), torch.randn(40, 11, generator=generator)
    return hidden, logits, torch.randint(11, (40,), generator=generator), torch.randint(1, 6, (40,), generator=generator).int()


def test_a_split_does_not_matter_and_lengths_do_not():
    """Micro-batches add up to one pass; the gradient of a trajectory is the mean over its picked tokens."""
    hidden, logits, tokens, code = _tokens(torch.Generator().manual_seed(1))
    code[::2] *= -1
    results = []
    for step in (40, 7):
        collector = sampling.Collector(5)
        for i in range(0, 40, step):
            collector.add(*(x[i : i + step] for x in (hidden, logits, tokens, code)))
        results.append(collector.finish())
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    gram, mean = results[0]
    two = code.abs() == 2
    torch.testing.assert_close(mean[1], hidden[two].mean(0))
    picked = code < 0
    summed = interference_gram(logits[picked], tokens[picked], hidden[picked], code[picked].long().abs() - 1, 5)
    counts = torch.bincount(code[picked].abs().long() - 1, minlength=5)
    torch.testing.assert_close(gram, summed / (counts[:, None] * counts[None]))


def test_without_logits_only_the_states():
    hidden, _, tokens, code = _tokens(torch.Generator().manual_seed(1))
    collector = sampling.Collector(5)
    collector.add(hidden, None, tokens, -code)
    gram, mean = collector.finish()
    assert gram.isnan().all() and mean.isfinite().all()


def test_what_is_packed_by_row_is_unpacked_by_trajectory():
    gram, mean = torch.arange(9.0).view(3, 3), torch.arange(6.0).view(3, 2)
    lead = np.array([0, 3, 0, 1, 2, 0])
    packed = sampling.pack(gram, mean, torch.as_tensor(lead))
    assert [len(row) for row in packed] == [1, 5, 1, 5, 5, 1]
    back = sampling.unpack(packed, lead, 3)
    assert torch.equal(back[0], gram) and torch.equal(back[1], mean)


@pytest.mark.parametrize("margin", [5.0, 15.0, 25.0])
def test_gradients_of_a_sure_policy_keep_their_lengths_and_angles(margin):
    g = torch.Generator().manual_seed(4)
    tokens, hidden = torch.randint(0, 300, (24,), generator=g), torch.randn(24, 8, generator=g)
    logits = torch.randn(24, 300, generator=g)
    logits.scatter_add_(1, tokens[:, None], torch.full((24, 1), margin))
    trajectory = torch.arange(24) // 6
    gram = interference_gram(logits, tokens, hidden, trajectory, 4).double()
    q = -logits.double().softmax(-1)
    q.scatter_add_(1, tokens[:, None], torch.ones(24, 1, dtype=torch.float64))
    summed = torch.zeros(4, 300, 8, dtype=torch.float64).index_add(0, trajectory, q[:, :, None] * hidden.double()[:, None])
    exact = torch.einsum("ivd,jvd->ij", summed, summed)
    length = exact.diagonal().sqrt()
    torch.testing.assert_close(gram / (length[:, None] * length), exact / (length[:, None] * length), rtol=0, atol=1e-4)
