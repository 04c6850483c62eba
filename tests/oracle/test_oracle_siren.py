# SPDX-License-Identifier: Apache-2.0
"""Known numbers of SIREN on the fixture of two rows."""

from __future__ import annotations

import json
import math

import pytest
import torch
from math_batches import fixture_f
from torch.testing import assert_close

from verl_entropy.methods.regularizers.siren import (
    SirenAnchor,
    masked_row_mean,
    nucleus_entropy,
    peak_mask,
    siren_loss,
    siren_surrogate,
)

STANDARD = [[0.582203, 1.074368, 0], [0.582203, 1.386294, 0]]
RELEASED = [[0, 0.693147, 0], [0, 1.098612, 0]]


@pytest.mark.parametrize(("crossing", "expected"), [("include", STANDARD), ("exclude", RELEASED)])
def test_nucleus_entropy(crossing, expected):
    f = fixture_f()
    entropy = torch.where(f.mask_RT, nucleus_entropy(f.logits_RTV, 0.8, crossing=crossing), 0.0)
    assert_close(entropy, torch.tensor(expected), atol=1e-6, rtol=0.0)


def test_peaks_their_mean_and_the_loss():
    f = fixture_f()
    entropy = nucleus_entropy(f.logits_RTV, 0.8).double().requires_grad_()
    peaks = peak_mask(entropy, f.mask_RT, 0.5)
    assert peaks.int().tolist() == [[0, 1, 0], [0, 1, 0]]
    hbar = masked_row_mean(entropy, peaks)
    assert float(hbar) == pytest.approx(1.230331, abs=1e-6)
    loss = siren_loss(hbar, 1.0, 0.005)
    assert float(loss) == pytest.approx(0.000265, abs=1e-6)
    (slope,) = torch.autograd.grad(loss, hbar)
    assert float(slope) == pytest.approx(0.002303, abs=1e-6)


def test_surrogate_carries_the_same_slope():
    f = fixture_f()
    entropy = nucleus_entropy(f.logits_RTV, 0.8).requires_grad_()
    peaks = peak_mask(entropy, f.mask_RT, 0.5)
    siren_surrogate(entropy, peaks, hbar_global=1.230331, anchor=1.0).sum().backward()
    assert_close(entropy.grad, 0.00230331 * peaks.float(), atol=1e-7, rtol=0.0)


@pytest.mark.parametrize(
    ("row", "mask", "tau", "expected"),
    [
        ([3.0, 1.0, 2.0, 9.0], [1, 1, 1, 0], 0.5, [1, 0, 0, 0]),
        ([5.0, 5.0, 5.0, 5.0], [1, 1, 1, 1], 0.8, [0, 0, 0, 0]),
        ([5.0, 1.0, 2.0, 3.0], [1, 0, 0, 0], 0.8, [0, 0, 0, 0]),
        ([5.0, 1.0, 2.0, 3.0], [0, 0, 0, 0], 0.8, [0, 0, 0, 0]),
        ([5.0, 1.0, 2.0, 3.0], [1, 1, 1, 1], None, [1, 1, 1, 1]),
        ([1.0, 2.0, 3.0, math.nan], [1, 1, 1, 0], 0.0, [0, 1, 1, 0]),
    ],
)
def test_peak_mask_rows(row, mask, tau, expected):
    assert peak_mask(torch.tensor([row]), torch.tensor([mask]).bool(), tau).int().tolist() == [expected]


def test_anchor_is_the_first_usable_value_and_survives_a_checkpoint():
    anchor = SirenAnchor()
    assert math.isnan(anchor.update(math.nan)) and anchor.update(0.0) == 0.0
    assert anchor.update(1.2) == 1.2 and anchor.update(0.7) == 1.2
    resumed = SirenAnchor()
    resumed.load_state_dict(json.loads(json.dumps(anchor.state_dict())))
    assert resumed.update(0.3) == 1.2
    with pytest.raises(ValueError, match="state"):
        resumed.load_state_dict({})


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: nucleus_entropy(torch.zeros(1, 2), 0.0), "top_p"),
        (lambda: nucleus_entropy(torch.zeros(1, 2), 0.5, crossing="maybe"), "crossing"),
        (lambda: peak_mask(torch.zeros(1, 2), torch.ones(1, 2).bool(), 1.0), "tau"),
        (lambda: SirenAnchor(math.inf), "anchor"),
    ],
)
def test_wrong_settings_are_refused(call, word):
    with pytest.raises(ValueError, match=word):
        call()
