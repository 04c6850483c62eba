# SPDX-License-Identifier: Apache-2.0
"""Every method of the registry keeps the contract, and each check finds what it is for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from verl_entropy.methods import contract, registry
from verl_entropy.methods.method import Metric, setting
from verl_entropy.methods.result import TransformResult

METHODS = registry.methods()


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.kind}-{m.name}")
def test_every_method_keeps_the_contract(method):
    failed = [r for r in contract.check(method) if r.verdict == "FAIL"]
    assert not failed, failed


@dataclasses.dataclass(frozen=True)
class Nothing:
    """No settings."""

    alpha: float = setting(2.0, "a factor", ge=0.0)


def planted(apply, **changes):
    """A transform with a fault."""
    ea = next(m for m in METHODS if m.name == "ea")
    given = {"settings": Nothing, "neutral": None, "metrics": {}, "state": None, **changes}
    return dataclasses.replace(ea, name="planted", apply=apply, **given)


def scaled(ctx, advantages, s):
    return TransformResult(torch.where(ctx.mask_RT, advantages * s.alpha, 0.0))


class Forgetful:
    """A state that resumes from nothing."""

    of_each_batch = False

    def __init__(self, settings):
        self.steps = 0

    def step(self, ctx):
        self.steps += 1
        return {"steps": self.steps}

    def state_dict(self):
        return {"steps": 0}

    def load_state_dict(self, values):
        self.steps = values["steps"]


FAULTS = {
    "an effect (with the settings of ``example``)": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a, 0.0))),
    "description complete": planted(scaled, summary=" "),
    "neutral settings change nothing": planted(scaled, neutral={"alpha": 0.5}),
    "order of rows and names of groups": planted(
        lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a * torch.arange(len(a))[:, None], 0.0))
    ),
    "masked positions are not read": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a - a.mean(), 0.0))),
    "padding": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a * a.shape[1], 0.0))),
    "fp32 under bf16 autocast": planted(
        lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a @ torch.eye(a.shape[1], device=a.device), 0.0))
    ),
    "tensors made on the batch's device": planted(
        lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a, 0.0) * torch.ones(a.shape))
    ),
    "edges: finite value and gradient": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a / a.abs(), 0.0))),
    "inputs stay as they are": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a.mul_(2.0), 0.0))),
    "state to JSON and back": planted(scaled, state=Forgetful),
    "metrics documented": planted(lambda ctx, a, s: TransformResult(torch.where(ctx.mask_RT, a, 0.0), metrics={"x": 1.0})),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_check_finds_its_fault(name):
    assert {r.check: r.verdict for r in contract.check(FAULTS[name])}[name] == "FAIL"


def test_a_loss_that_depends_on_the_split_is_found():
    bonus = next(m for m in METHODS if m.name == "entropy_bonus")

    def apply(ctx, s):
        return -torch.where(ctx.mask_RT, ctx.entropy_RT, 0.0).sum() / ctx.mask_RT.sum()

    faulty = dataclasses.replace(bonus, apply=apply, neutral=None)
    assert {r.check: r.verdict for r in contract.check(faulty)}["micro-batches and ranks"] == "FAIL"


def test_a_clean_method_of_ones_own_passes():
    method = planted(scaled, neutral={"alpha": 1.0}, metrics={"y": Metric("nothing", "number")})
    assert {r.verdict for r in contract.check(method)} <= {"ok", "-"}


def test_every_check_has_a_planted_fault():
    assert set(contract.CHECKS) - set(FAULTS) == {"micro-batches and ranks", "cuda"}
