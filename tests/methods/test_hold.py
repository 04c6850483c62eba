# SPDX-License-Identifier: Apache-2.0
"""An entropy that the user names is held: by a simulated policy here, by verl's trainer in tests/real and in the bench."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch

from verl_entropy.batch.turns import build_turns
from verl_entropy.config import checks, plan
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.common.state import Run
from verl_entropy.methods.common.controllers import TargetEntropyController
from verl_entropy.methods.common.hold import EntropyHold, scheduled
from verl_entropy.methods.context import AdvantageContext

UNIT = 0.01


def entropies(
    update, target, *, effect, drift, start, noise=0.02, seed=0, steps=120, lag=0.0, reach=lambda step: True, jumps=0.0
):
    """Entropy over its target at every step of a policy whose ln H moves by a drift of its own and ``effect`` per unit.

    ``lag``: weight of the steps before in the push that a step feels. ``jumps``: share of the steps that throw ln H up by .25 to .5, of which
    .4 is gone each step, whatever the push.
    """
    draw, log_h, seen, felt, thrown = random.Random(seed), math.log(start * target), [], 0.0, 0.0
    for step in range(steps):
        entropy = math.exp(log_h + thrown + draw.gauss(0.0, noise))
        thrown = 0.6 * thrown + (draw.uniform(0.25, 0.5) if jumps and draw.random() < jumps else 0.0)
        push = update(entropy, target) / UNIT
        seen.append(entropy / target)
        works = effect * (1.0 + 0.2 * draw.gauss(0.0, 1.0)) if reach(step) else 0.0
        felt = lag * felt + (1.0 - lag) * push
        log_h += drift * (1.0 + 0.5 * math.sin(step / 15)) + works * felt
    return seen


def held(ratios) -> float:
    """Share of the steps after the first 20 within 10 % of the target."""
    return sum(abs(r - 1.0) <= 0.1 for r in ratios[20:]) / len(ratios[20:])


@pytest.mark.parametrize("target", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("effect", [5e-4, 3e-3, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("drift", [-0.05, -0.01, 0.02])
def test_a_policy_of_any_gain_is_held(effect, drift, target):
    """Coefficients that do a thousandth or a half of the same work, from below, at and above the target, over five draws of the noise."""
    for start in (0.4, 1.0, 3.0):
        for seed in range(5):
            hold = EntropyHold(1e-3, UNIT, -10.0, 10.0)
            assert held(entropies(hold.update, target, effect=effect, drift=drift, start=start, seed=seed)) >= 0.8


def test_a_push_that_is_felt_late_does_not_wind_up():
    """As in training, where Adam's moments lag: over gains, drifts and starts most steps are within 10 % of the target, and few runs erupt."""
    shares, highest = [], []
    for effect in (5e-4, 3e-3, 0.02, 0.1):
        for drift in (-0.05, -0.01, 0.02):
            for start, seed in ((0.6, 0), (1.0, 1), (1.0, 2)):
                update = EntropyHold(1e-3, UNIT, -10.0, 10.0).update
                ratios = entropies(update, 0.3, effect=effect, drift=drift, start=start, seed=seed, lag=0.8)
                shares.append(held(ratios))
                highest.append(max(ratios[5:]))
    assert sum(shares) / len(shares) > 0.8 and sum(h > 1.5 for h in highest) <= 2


def test_jumps_that_the_push_did_not_make_leave_it_no_weaker():
    """As in the bench's frozen lake: after a step that threw the policy entropy stayed a fifth too low for twenty steps."""
    shares, low = [], []
    for effect in (3e-3, 0.02, 0.1):
        for drift in (-0.05, -0.01, 0.02):
            for seed in range(10):
                update = EntropyHold(1e-3, UNIT, -10.0, 10.0).update
                ratios = entropies(update, 0.3, effect=effect, drift=drift, start=1.0, seed=seed, lag=0.6, jumps=0.07)
                shares.append(held(ratios))
                low.append(sum(r < 0.9 for r in ratios[20:]) / len(ratios[20:]))
    assert sum(shares) / len(shares) > 0.62 and sum(low) / len(low) < 0.15


def test_doubling_and_halving_does_not_hold_it():
    """The measure tells the controllers apart."""
    doubling = TargetEntropyController(1e-3, 1e-3, 10.0, target=0.3)
    assert held(entropies(lambda h, _: doubling.update(h), 0.3, effect=0.02, drift=-0.05, start=1.0)) < 0.7


def test_a_coefficient_without_effect_does_not_wind_up():
    """Forty steps at a bound in which nothing works; ten steps after it works again, entropy is back."""
    hold = EntropyHold(1e-3, UNIT, -0.1, 0.1)
    ratios = entropies(hold.update, 0.3, effect=0.05, drift=-0.01, start=1.0, reach=lambda step: not 30 <= step < 70)
    assert min(ratios[60:70]) < 0.85
    assert max(ratios[70:]) < 1.3 and all(abs(r - 1.0) < 0.15 for r in ratios[85:])


def test_the_coefficient_stays_in_its_bounds():
    hold = EntropyHold(0.28, UNIT, 0.2, 0.3, origin=0.28)
    low = [hold.update(1.0, 0.1) for _ in range(30)]
    high = [hold.update(0.01, 0.1) for _ in range(60)]
    assert min(low) == pytest.approx(0.2, rel=1e-12) and max(high) == pytest.approx(0.3, rel=1e-12)


def test_lost_success_takes_the_push_back():
    """More than the guard below its best: the coefficient goes to its origin; success back: it holds again; no guard: it goes on."""
    for guard in (0.2, None):
        hold = EntropyHold(1e-3, UNIT, -10.0, 10.0, guard=guard)
        for _ in range(20):
            hold.update(0.2, 0.4, success=0.6)
        pushed = hold.value
        assert pushed > 0.05 and not hold.guarded
        for _ in range(12):
            hold.update(0.2, 0.4, success=0.1)
        assert hold.guarded == (guard is not None)
        assert hold.value < 0.05 * pushed if guard else hold.value >= pushed
        for _ in range(30):
            hold.update(0.2, 0.4, success=0.6)
        assert not hold.guarded and hold.value > 0.05


def test_success_that_stays_lost_without_the_push_is_not_its_fault():
    """The guard takes the push back once; success stays away, so after some thirty steps entropy is held again."""
    hold, guarded = EntropyHold(1e-3, UNIT, -10.0, 10.0), []
    for step in range(100):
        hold.update(0.2, 0.4, success=0.6 if step < 20 else 0.01)
        guarded.append(hold.guarded)
    assert any(guarded[20:40]) and not any(guarded[75:]) and hold.value > 0.05


def test_no_success_yet_is_none_lost():
    hold = EntropyHold(1e-3, UNIT, -10.0, 10.0)
    for success in (0.03, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        hold.update(0.2, 0.4, success=success)
    assert not hold.guarded


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_an_odd_entropy_changes_nothing(odd):
    hold = EntropyHold(1e-3, UNIT, -10.0, 10.0)
    before = [hold.update(h, 0.4) for h in (0.3, 0.29, 0.31)][-1]
    assert hold.update(odd, 0.4) == before
    assert math.isfinite(hold.update(0.3, 0.4))


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_resume_through_json_is_bit_equal(cut):
    draw = random.Random(3)
    seen = [(0.3 * math.exp(draw.gauss(0, 0.2)), 0.25, draw.random()) for _ in range(12)]
    whole, first, second = (EntropyHold(1e-3, UNIT, -0.1, 0.1) for _ in range(3))
    expected = [whole.update(*values) for values in seen]
    head = [first.update(*values) for values in seen[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [second.update(*values) for values in seen[cut:]] == expected


@pytest.mark.parametrize("change", [{"effect": math.nan}, {"push": None}, {"surplus": 1.0}])
def test_a_damaged_state_is_refused_and_changes_nothing(change):
    hold = EntropyHold(1e-3, UNIT, -0.1, 0.1)
    before = hold.state_dict()
    with pytest.raises(ValueError, match="state of the held entropy"):
        hold.load_state_dict(before | change)
    assert hold.state_dict() == before


def test_a_schedule_is_straight_between_its_points_and_level_outside():
    schedule = [[10, 0.5], [20, 0.3], [40, 0.4]]
    assert [scheduled(schedule, s) for s in (1, 10, 15, 20, 30, 40, 99)] == pytest.approx([0.5, 0.5, 0.4, 0.3, 0.35, 0.4, 0.4])
    assert scheduled(0.25, 7) == 0.25


# ----------------------------------------------------------------------------- in a run


def chosen(target, *, transforms=("repo_r",), regularizer=None, policy_loss=(), **further) -> plan.Plan:
    loss = {"loss_mode": "vanilla"} | ({"regularizer": regularizer} if regularizer else {}) | dict(policy_loss)
    entropy = {"transforms": list(transforms), "target": target, **further}
    return plan.read(
        {"algorithm": {"adv_estimator": "grpo", "entropy": entropy}, "actor_rollout_ref": {"actor": {"policy_loss": loss}}}
    )


def batch(step: int, entropy: float, score: float = 1.0) -> AdvantageContext:
    mask_RT = torch.ones(2, 3, dtype=torch.bool)
    scores = torch.tensor([score, score])
    turns = build_turns(
        mask_RT, group_R=["a", "a"], trajectory_R=["0", "1"], position_R=[0, 0], padding_R=[False, False], score_R=scores
    )
    return AdvantageContext(None, step, 99, turns, mask_RT, torch.full((2, 3), entropy), torch.full((2, 3), -entropy), {})


@pytest.mark.parametrize(
    ("method", "kind", "name"),
    [("repo_r", "transforms", "zeta"), ("entropic", "transforms", "alpha"), ("entropy_bonus", "regularizer", "coef")],
)
def test_the_coefficient_of_a_run_follows_the_target(method, kind, name):
    """Up below the target and under 0 above it; what the workers get is what is logged; a checkpoint goes on bit for bit."""
    words = {"transforms": (method,)} if kind == "transforms" else {"transforms": (), "regularizer": method}
    settings = chosen([[0, 0.4], [50, 0.4]], **words)
    run, values = Run(settings), {}
    for entropy in (0.1, 1.5):
        for step in range(1, 30):
            ctx = batch(step + (100 if entropy > 1 else 0), entropy)
            run.advance(ctx)
        values[entropy] = ctx.info[method][name]
        assert ctx.metrics[f"verl_entropy/{method}/{name}"] == values[entropy]
        assert ctx.metrics["verl_entropy/entropy_target"] == 0.4 and ctx.metrics["verl_entropy/hold/guarded"] == 0.0
    assert values[0.1] > 0.0 > values[1.5]
    again = Run(settings)
    again.methods[method].load_state_dict(json.loads(json.dumps(run.state_dict()[method])))
    for each in (run, again):
        ctx = batch(200, 0.7)
        each.advance(ctx)
        values[id(each)] = ctx.info[method][name]
    assert values[id(run)] == values[id(again)]


def test_a_bonus_without_effect_stays_within_one():
    """Seen in the bench's bandit: it went on to 2, and then entropy jumped. Within its own bound if that is smaller."""
    for further, most in (({}, 1.0), ({"coef_max": 0.2}, 0.2)):
        run = Run(chosen(0.5, transforms=(), regularizer="entropy_bonus", policy_loss={"entropy_bonus": further}))
        for step in range(1, 60):
            ctx = batch(step, 0.4)
            run.advance(ctx)
        assert ctx.info["entropy_bonus"]["coef"] == pytest.approx(most, rel=1e-12)


def test_without_a_target_nothing_of_it_happens():
    run = Run(chosen(None))
    ctx = batch(1, 0.3)
    run.advance(ctx)
    assert ctx.info["repo_r"]["zeta"] == 1e-3 and not any("hold" in key or "target" in key for key in ctx.metrics)
    assert set(run.state_dict()["repo_r"]) == {"value", "target"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"target": 0.3, "transforms": ("aem",)}, "no chosen method can follow it. One of .*entropy_bonus"),
        ({"target": 0.3, "transforms": ("repo_r", "entropic")}, "repo_r, entropic would pull at once"),
        ({"target": 0.3, "repo_r": {"target": 0.2}}, r"algorithm.entropy.repo_r.target=0.2 is another target"),
        ({"target": [[5, 0.3], [5, 0.2]]}, "must rise"),
        ({"target": [[0, 0.3], 7]}, "list of"),
        ({"target": [[0, -0.3]]}, "nats > 0"),
        ({"target": []}, "list of"),
        ({"target": -1.0}, "target=-1.0: must be > 0"),
        ({"target": "high"}, "expected float"),
        ({"target": 0.3, "target_guard": 1.5}, "target_guard=1.5: must be > 0.0 and < 1.0"),
    ],
)
def test_what_cannot_be_held_is_refused(told, words):
    with pytest.raises(ConfigError, match=words):
        checks.check(chosen(**told), {})
