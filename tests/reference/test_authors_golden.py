# SPDX-License-Identifier: Apache-2.0
"""Against numbers that the authors' own code gave; the data names repository, commit and function."""

import json
from pathlib import Path

import pytest
import torch

from verl_entropy.batch.turns import build_turns
from verl_entropy.methods.estimators.gigpo import anchor_groups, gigpo, step_returns
from verl_entropy.methods.regularizers.epo import epo_indicator, epo_released_weight

GOLDEN = json.loads((Path(__file__).parent / "authors_golden.json").read_text())
CASES = [(case, result) for case in GOLDEN["gigpo"]["cases"] for result in case["results"]]


def turns_of(rows, penalty):
    fields = [
        [{"reward": reward, "penalty": 0.0 if valid else penalty, "anchor": anchor}]
        for reward, valid, anchor in zip(rows["reward"], rows["valid"], rows["anchor"], strict=True)
    ]
    count = len(fields)
    return build_turns(
        torch.ones(count, 1),
        rows["group"],
        rows["trajectory"],
        rows["index"],
        [False] * count,
        torch.tensor(rows["score"]),
        turn_fields=fields,
    )


def partition(ids) -> set[frozenset]:
    return {frozenset(k for k, other in enumerate(ids) if other == i) for i in set(ids)}


@pytest.mark.parametrize("case, result", CASES)
def test_gigpo(case, result):
    settings = GOLDEN["gigpo"]["settings"]
    turns = turns_of(case["rows"], settings["penalty"])
    groups = anchor_groups(turns, result["similarity"]).tolist()
    assert partition(groups) == partition(result["anchor_groups"])
    advantages, _ = gigpo(
        turns,
        gamma=settings["gamma"],
        omega=settings["omega"],
        norm=result["norm"],
        statistics=result["statistics"],
        similarity=result["similarity"],
        singleton="raw",
    )
    torch.testing.assert_close(advantages, torch.tensor(result["advantages"]), atol=2e-5, rtol=2e-6)


@pytest.mark.parametrize("case", GOLDEN["gigpo"]["cases"])
def test_gigpo_returns(case):
    returns = step_returns(turns_of(case["rows"], 0.0), GOLDEN["gigpo"]["settings"]["gamma"])
    torch.testing.assert_close(returns.float(), torch.tensor(case["returns"]), atol=1e-6, rtol=1e-6)


def test_epo_indicator_and_weight():
    golden = GOLDEN["epo"]
    settings = golden["settings"]
    hbar = torch.tensor(settings["history"])[settings["rollout_step"]][:, None]
    penalty = epo_indicator(
        torch.tensor(golden["entropy"]),
        hbar,
        smooth_coeff=settings["out_range_penalty"],
        kappa_low=settings["min_ratio"],
        kappa_high=settings["max_ratio"],
    )
    torch.testing.assert_close(penalty, torch.tensor(golden["penalty"]))
    for k, weight in golden["weight"].items():
        assert epo_released_weight(int(k), settings["max_epochs"]) == pytest.approx(weight, abs=1e-11)
