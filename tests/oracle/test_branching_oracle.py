# SPDX-License-Identifier: Apache-2.0
"""Branching rollouts: both rules on numbers worked by hand, and decision by decision on recorded entropies."""

from __future__ import annotations

import math

import pytest
import torch
import yaml

from verl_entropy.batch.turns import build_turns
from verl_entropy.config import presets
from verl_entropy.methods.context import AdvantageContext
from verl_entropy.methods.rollouts import branching
from verl_entropy.methods.rollouts.branching import BRANCHING, Branching, once
from verl_entropy.methods.scheme import Moment


def test_roots_of_the_paper_and_of_the_released_code():
    assert branching.paper_roots(12, 0.10, 0.25) == pytest.approx(5.775105, abs=1e-6)
    assert branching.paper_roots(12, 0.10, 0.25, beta=5.0) == pytest.approx(3.849856, abs=1e-6)
    assert branching.released_roots(12, 0.10, 0.25) == 6
    assert branching.released_roots(12, 0.10, 0.10) == 7  # n / 2 + 1: rounding down, then one more
    assert branching.released_roots(12, 99.0, 0.0) == 12 and branching.released_roots(12, -99.0, 0.0) == 1


@pytest.mark.parametrize(
    ("settings", "told", "wanted"),
    [
        (Branching(), {}, 6),  # nothing measured: half of 12
        (Branching(), {"root": 0.10, "tool": 0.25, "first": 0.1}, 6),
        (Branching(beta=5.0), {"root": 0.10, "tool": 0.25, "first": 0.1}, 4),
        (Branching(beta=5.0), {"root": 9.0, "tool": 0.0, "first": 0.1}, 12),
        (Branching(beta=5.0), {"root": 0.0, "tool": 9.0, "first": 0.1}, 1),  # at least one
        (Branching(beta=5.0), {"root": 0.3, "tool": None, "first": 0.1}, 6),  # no turn follows a tool result
        (Branching(rule="released"), {"root": 0.10, "tool": 0.25, "first": 0.1}, 6),
        (Branching(roots=8), {"root": 0.10, "tool": 0.25, "first": 0.1}, 8),
        (Branching(roots=99), {}, 12),
    ],
)
def test_roots_as_an_agent_loop_asks_for_them(settings, told, wanted):
    assert BRANCHING.apply(settings, told).roots(12) == wanted


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_half_of_the_leaves_of_arpo_are_roots_whatever_n_is(n):
    """Its paper: 8 of 16. A number in the preset would leave nothing to branch where n is 8."""
    ours = {}
    for part in presets.chain("arpo"):
        ours |= yaml.safe_load(presets.text(part))["algorithm"]["entropy"]["branching"]
    for told in ({}, {"root": 0.1, "tool": 3.0}):
        assert BRANCHING.apply(Branching(**ours), told).roots(n) == n // 2


def test_probability_of_the_paper():
    given = {"alpha": 0.5, "gamma": 0.2, "penalty": 0.2}
    assert branching.paper_probability(0.5, 0.2, 2, **given) == pytest.approx(0.336)
    assert branching.paper_probability(0.5, 0.2, 0, **given) == pytest.approx(0.56)
    assert branching.paper_probability(0.5, 0.2, 6, **given) == 0.0  # P(l) is at most 1


def test_score_of_the_released_code():
    assert branching.released_score(0.6, 0.5, 0.2, 2, gamma=0.2) == pytest.approx(0.594)
    assert branching.released_score(0.9, 3.0, 0.0, 0, gamma=0.2) == 1.0
    assert branching.released_score(0.1, 0.0, 3.0, 0, gamma=0.2) == 0.0
    assert branching.released_score(0.9, 0.0, 0.0, 20, gamma=0.2) == 0.0


# A chain's recorded entropies (nats) after its first turn of 0.40, and the draws of the released rule.
RECORDED = (0.55, 1.40, 1.40, 0.30, 0.41, 2.90)
DRAWS = (0.30, 0.47, 0.52, 0.99, 0.45, 0.10)


def decisions(settings, told=None):
    scheme, streak, found = BRANCHING.apply(settings, told or {}), 0, []
    for entropy, draw in zip(RECORDED, DRAWS, strict=True):
        found.append(scheme.branches(Moment(entropy=entropy, first=0.40, streak=streak, draw=draw)))
        streak = streak + 1 if found[-1] else 0
    return found


def test_the_papers_decisions_on_recorded_entropies():
    # (.5 + .2 (H - .4)) (1 - .2 l) > .5:  .53 yes; .70 x .8 = .56 yes; .70 x .6 = .42 no; .48 no; .502 yes; 1.0 x .8 = .80 yes
    assert decisions(Branching()) == [True, True, False, False, True, True]
    # ARPO, no penalty: every rise above .4 branches
    assert decisions(Branching(penalty=0.0)) == [True, True, True, False, True, True]


def test_the_released_decisions_on_recorded_entropies():
    # (u + .2 (H - .4)) (1 - .05 l) >= .5:  .33 no; .67 yes; .72 x .95 = .684 yes; .97 x .9 = .873 yes; .452 x .85 = .384 no; .60 yes
    assert decisions(Branching(rule="released")) == [False, True, True, True, False, True]
    # without a weight, chance alone decides
    assert decisions(Branching(rule="released", gamma=0.0)) == [False, False, True, True, False, False]


def test_what_tells_the_rules_apart_besides():
    told = {"root": 0.2, "tool": 0.3, "first": 0.7}
    paper, released = (BRANCHING.apply(Branching(rule=rule), told) for rule in branching.RULES)
    assert (paper.late, paper.streak_of_prompt, paper.refill_one, paper.first) == (False, False, False, None)
    assert (released.late, released.streak_of_prompt, released.refill_one, released.first) == (True, True, True, 0.7)


def test_entropy_of_a_turn():
    assert branching.sampled_entropy([-1.0, -2.0, -6.0], 2) == 1.5
    assert branching.sampled_entropy([-1.0], 20) == 1.0 and branching.sampled_entropy([], 20) == 0.0
    # two words of one half each: ln 2 a token, summed over 2 of 3 tokens, over ln 4: one
    half = [math.log(0.5)] * 2
    assert branching.top_entropy([half, half, half], 4, 2) == pytest.approx(1.0)
    # only the 10 most likely words count
    assert branching.top_entropy([[math.log(1 / 16)] * 16], 16) == pytest.approx(10 / 16)


def test_the_estimate_is_the_entropy_on_average():
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0])
    log_p = logits.log_softmax(-1)
    drawn = torch.multinomial(log_p.exp(), 20000, replacement=True, generator=torch.Generator().manual_seed(0))
    wanted = float(-(log_p.exp() * log_p).sum())
    assert branching.sampled_entropy(log_p[drawn].tolist(), 20000) == pytest.approx(wanted, abs=0.02)


def context():
    """One prompt, three leaves of two turns; leaf 1 took leaf 0's first turn over, leaf 2 is a root. Rows in another order."""
    turn = {
        (0, 0): {"origin": "0.0", "copied": False, "entropy": 1.0},
        (0, 1): {"origin": "0.0", "copied": False, "entropy": 2.0},
        (1, 0): {"origin": "0.0", "copied": True, "entropy": 1.0},
        (1, 1): {"origin": "1.0", "copied": False, "entropy": 4.0},
        (2, 0): {"origin": "2.0", "copied": False, "entropy": 3.0},
        (2, 1): {"origin": "2.0", "copied": False, "entropy": 6.0},
    }
    order = [(2, 1), (0, 0), (1, 0), (1, 1), (2, 0), (0, 1)]
    length = {(0, 0): 3, (1, 0): 3, (0, 1): 2, (1, 1): 1, (2, 0): 3, (2, 1): 2}
    mask_RT = torch.arange(4)[None] < torch.tensor([length[key] for key in order])[:, None]
    turns = build_turns(
        mask_RT,
        group_R=["u"] * 6,
        trajectory_R=[f"u_{s}" for s, _ in order],
        position_R=[k for _, k in order],
        padding_R=[False] * 6,
        score_R=torch.zeros(6),
    )
    return AdvantageContext(
        plan=None,
        step=1,
        total_steps=2,
        turns=turns,
        mask_RT=turns.mask_RT,
        entropy_RT=None,
        old_log_probs_RT=None,
        fields={"extra_fields": [{"turns": [turn[key]]} for key in order]},
    ), order


def test_a_shared_turn_is_trained_once_with_the_mean_of_its_leaves():
    ctx, order = context()
    advantage = {0: 1.0, 1: -0.4, 2: 0.25}
    given_RT = torch.tensor([advantage[s] for s, _ in order])[:, None].expand(6, 4).contiguous()
    result = BRANCHING.share(ctx, given_RT, Branching(shared="mean"))
    kept = {key: result.mask_RT[row].sum().item() for row, key in enumerate(order)}
    assert kept == {(0, 0): 3, (0, 1): 2, (1, 0): 0, (1, 1): 1, (2, 0): 3, (2, 1): 2}
    row = {key: result.advantages_RT[r, 0].item() for r, key in enumerate(order)}
    assert row[0, 0] == pytest.approx(0.3)  # (1 - .4) / 2
    assert (row[0, 1], row[1, 1], row[2, 0]) == (1.0, pytest.approx(-0.4), 0.25)
    assert result.metrics == {"copied_tokens": 3.0}
    assert torch.equal(given_RT[:, 0], torch.tensor([advantage[s] for s, _ in order]))  # left as it was
    each = BRANCHING.share(ctx, given_RT, Branching())
    assert each.advantages_RT is given_RT and each.mask_RT is None


def test_shared_turns_of_other_lengths_are_no_shared_turns():
    ctx, _ = context()
    with pytest.raises(RuntimeError, match="said to be equal"):
        once(ctx, torch.zeros(6, 4), ["a"] * 6)


def test_the_state_reads_each_sampled_turn_once_and_remembers_the_first_step():
    ctx, _ = context()
    state = BRANCHING.state(Branching())
    state.step(ctx)
    assert state.state_dict() == {"root": 2.0, "tool": 4.0, "first": 2.0}
    assert ctx.metrics["verl_entropy/branching/branched_leaves"] == pytest.approx(1 / 3)
    for row in ctx.fields["extra_fields"]:
        row["turns"][0]["entropy"] = 0.5
    state.step(ctx)
    assert state.state_dict() == {"root": 0.5, "tool": 0.5, "first": 2.0}
    other = BRANCHING.state(Branching())
    other.load_state_dict(state.state_dict())
    assert other.state_dict() == state.state_dict()
