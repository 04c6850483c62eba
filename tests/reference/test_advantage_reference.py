# SPDX-License-Identifier: Apache-2.0
"""Vectorised advantages against slow plain Python on random ragged batches of both layouts."""

import math
from collections import defaultdict
from difflib import SequenceMatcher
from statistics import fmean, stdev

import pytest
import torch
from episodes import lay_out, make_episodes

from verl_entropy.methods.estimators.gigpo import anchor_groups, discounted_returns, gigpo
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.transforms.aem import aem

SEEDS = range(4)
LAYOUTS = ["step-wise", "one-row"]


def center(members: list[tuple], norm: str, singleton: str = "zero") -> dict:
    """(key, group, value) -> key: centred value."""
    groups = defaultdict(list)
    for _, group, value in members:
        groups[group].append(value)
    out = {}
    for key, group, value in members:
        values = groups[group]
        mean, std = fmean(values), stdev(values) if len(values) > 1 else 1.0
        if len(values) == 1 and singleton == "raw":
            mean = 0.0
        std = std + 1e-6 if norm == "mean_std" else 1.0
        out[key] = 0.0 if len(values) > 1 and len(set(values)) == 1 else (value - mean) / std
    return out


def slow_episode(episodes, norm, statistics, singleton="zero"):
    names = {(e.group, e.key): e for e in episodes}
    if statistics == "trajectory":
        by_trajectory = center([(n, n[0], e.score) for n, e in names.items()], norm, singleton)
        return {(*n, i): by_trajectory[n] for n, e in names.items() for i in range(len(e.tokens))}
    rows = [((*n, i), n[0], e.score) for n, e in names.items() for i in range(len(e.tokens))]
    return center(rows, norm, singleton)


def slow_returns(rewards, gamma):
    out, running = [], 0.0
    for reward in reversed(rewards):
        running = reward + gamma * running
        out.append(running)
    return out[::-1]


def slow_step(episodes, norm, gamma):
    members = []
    for e in episodes:
        for i, value in enumerate(slow_returns(e.reward, gamma)):
            members.append(((e.group, e.key, i), (e.group, e.anchor[i]), value - e.penalty[i]))
    return center(members, norm)


def assert_equal(actual: dict, expected: dict, atol=2e-5):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert actual[key] == pytest.approx(value, abs=atol, rel=1e-5), key


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("norm", ["mean", "mean_std"])
@pytest.mark.parametrize("statistics", ["trajectory", "row"])
def test_gigpo(seed, layout, norm, statistics):
    episodes = make_episodes(seed)
    batch = lay_out(episodes, layout, shuffle=seed, padding=2)
    turns = batch.turns()
    for singleton in ("zero", "raw"):
        actual, metrics = gigpo(turns, gamma=0.9, omega=0.7, norm=norm, statistics=statistics, singleton=singleton)
        episode = slow_episode(episodes, norm, statistics, singleton)
        step = slow_step(episodes, norm, 0.9)
        assert_equal(batch.by_turn(turns, actual), {k: episode[k] + 0.7 * step[k] for k in episode})
        assert metrics["anchor_groups"] == len({(e.group, a) for e in episodes for a in e.anchor})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_gigpo_without_turn_rewards_uses_the_score_at_the_end(seed, layout):
    episodes = make_episodes(seed)
    batch = lay_out(episodes, layout)
    fields = [[{"penalty": f["penalty"], "anchor": f["anchor"]} for f in row] for row in batch.rows["turn_fields"]]
    turns = batch.turns(turn_fields=fields)
    for e in episodes:
        e.reward = [0.0] * (len(e.tokens) - 1) + [e.score]
    episode, step = slow_episode(episodes, "mean", "trajectory"), slow_step(episodes, "mean", 0.95)
    actual, _ = gigpo(turns, norm="mean")
    assert_equal(batch.by_turn(turns, actual), {k: episode[k] + step[k] for k in episode})


@pytest.mark.parametrize("statistics", ["trajectory", "row"])
@pytest.mark.parametrize("seed", SEEDS)
def test_loop(seed, statistics):
    episodes = make_episodes(seed)
    batch = lay_out(episodes, "step-wise", shuffle=seed)
    turns = batch.turns()
    members = [((e.group, e.key, i), e) for e in episodes for i in range(len(e.tokens))]
    expected = {}
    for key, e in members:
        pool = episodes if statistics == "trajectory" else [other for _, other in members]
        scores = [o.score for o in pool if o.group == e.group]
        scores.remove(e.score)  # one member with this score is left out
        expected[key] = e.score - fmean(scores) if scores else 0.0
    assert_equal(batch.by_turn(turns, loop(turns, statistics=statistics)[0]), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_aem(seed, layout, temperature):
    episodes = make_episodes(seed)
    batch = lay_out(episodes, layout, shuffle=seed, padding=1)
    turns = batch.turns()
    shaped = aem(torch.ones_like(batch.entropy), turns, batch.garbage, temperature=temperature).advantages_RT
    expected = {}
    for group in {e.group for e in episodes}:
        own = [(e.group, e.key, i) for e in episodes if e.group == group for i in range(len(e.tokens))]
        mean = {(e.group, e.key, i): fmean(t) for e in episodes for i, t in enumerate(e.tokens)}
        low, high = min(mean[k] for k in own), max(mean[k] for k in own)
        weight = {k: math.exp(-temperature * (mean[k] - low) / (high - low)) if high > low else 1.0 for k in own}
        expected |= {k: weight[k] / fmean(weight.values()) for k in own}
    assert_equal(batch.by_turn(turns, turns.mean(shaped)), expected)


@pytest.mark.parametrize("gamma", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_discounted_returns(seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 70, (12,), generator=generator).tolist()
    rewards = [torch.randn(n, generator=generator).tolist() for n in lengths]
    trajectory = torch.arange(12).repeat_interleave(torch.tensor(lengths))
    flat = torch.tensor([r for own in rewards for r in own], dtype=torch.float64)
    expected = [value for own in rewards for value in slow_returns(own, gamma)]
    actual = discounted_returns(flat, trajectory, gamma)
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_similarity_groups_are_greedy_first_fit(seed, similarity):
    episodes = make_episodes(seed)
    for e in episodes:  # texts that differ by more than one number
        e.anchor = [f"{a} seen from {'the ' * (i % 3)}{e.key}" for i, a in enumerate(e.anchor)]
    batch = lay_out(episodes, "one-row")
    turns = batch.turns()
    founder = {}
    for group in dict.fromkeys(e.group for e in episodes):
        earliest = {}
        for e in (e for e in episodes if e.group == group):
            for i, text in enumerate(e.anchor):
                earliest[text] = min(i, earliest.get(text, i))
        founders = []
        for text in sorted(earliest, key=lambda t: (earliest[t], t)):
            fit = [f for f in founders if SequenceMatcher(None, text, f).ratio() >= similarity]
            founder[group, text] = fit[0] if fit else text
            founders += [] if fit else [text]
    ids = batch.by_turn(turns, anchor_groups(turns, similarity))
    seen = defaultdict(set)
    for e in episodes:
        for i, text in enumerate(e.anchor):
            seen[e.group, founder[e.group, text]].add(ids[e.group, e.key, i])
    assert all(len(group_ids) == 1 for group_ids in seen.values())
    assert len(set.union(*seen.values())) == len(seen)
