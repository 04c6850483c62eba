# SPDX-License-Identifier: Apache-2.0
"""The shop: pages and grammar, the reward rule, splits without a shared goal, and an expert that always succeeds."""

import dataclasses

import pytest

pytest.importorskip("bm25s")

from verl_entropy.envs.webshop_rules import parse_action, task_score
from verl_entropy.envs.worlds.webshop_like import PER_PAGE, WebShopLikeEnv, score
from verl_entropy.envs.worlds.webshop_like_catalogue import DEPARTMENTS, SPLITS, catalogue

SHOP = catalogue(1000, 0)


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[red shoes]", ("search", "red shoes")),
        (" Click [ Buy Now ] ", ("click", "Buy Now")),
        ("click[size [eu] 42]", ("click", "size [eu] 42")),
        ("click", ("", "")),
        ("buy[x]", ("", "")),
        ("search[a] click[b]", ("search", "a] click[b")),
    ],
)
def test_action_grammar(action, parsed):
    assert parse_action(action) == parsed


def test_reward_rule_by_hand():
    # 1 of 2 attributes, 1 of 1 option, price kept: (1 + 1 + 1) / (2 + 1 + 1).
    assert task_score(1.0, 1, 1, True, (2, 1)) == 0.75
    assert task_score(0.5, 2, 1, True, (2, 1)) == 0.5
    assert task_score(1.0, 2, 1, False, (2, 1)) == 0.75


def test_score_falls_with_every_unmet_wish():
    goal = SHOP.goals["train"][0]
    fits = [p for p in SHOP.products if score(p, goal.options, goal) == 1.0]
    assert fits and all(set(goal.attributes) <= set(p.attributes) and p.price <= goal.price for p in fits)
    total = len(goal.attributes) + len(goal.options) + 1
    assert score(fits[0], {}, goal) == pytest.approx((total - len(goal.options)) / total)
    assert score(dataclasses.replace(fits[0], price=goal.price + 1), goal.options, goal) == pytest.approx((total - 1) / total)
    wrong = dict.fromkeys(goal.options, "nothing on offer")
    assert score(fits[0], wrong, goal) == score(fits[0], {}, goal)
    others = {level: [] for level in ("category", "department", "none")}
    for product in SHOP.products:
        if product.department != goal.department:
            others["none"].append(score(product, goal.options, goal))
        elif product.category != goal.category:
            others["department"].append(score(product, goal.options, goal))
        elif product.kind != goal.kind:
            others["category"].append(score(product, goal.options, goal))
    assert max(others["none"]) == 0.0 and 0 < max(others["department"]) <= 0.1 and 0.1 < max(others["category"]) <= 0.5


def test_expert_buys_the_right_thing_for_every_goal():
    env = WebShopLikeEnv()
    for split in SPLITS:
        for number in range(len(SHOP.goals[split])):
            _, info = env.reset(options={"split": split, "task": number})
            actions = env.expert_actions()
            for action in actions:
                assert action in info.get("admissible_actions", [action])
                *_, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated, info["won"], info["score"]) == (10.0, True, False, True, 1.0)


def test_no_goal_is_in_two_splits_and_options_are_told_apart():
    wishes = {split: {(g.kind, g.attributes, tuple(g.options.items())) for g in SHOP.goals[split]} for split in SPLITS}
    assert not wishes["train"] & wishes["test"] and not wishes["train"] & wishes["dev"] and not wishes["dev"] & wishes["test"]
    for categories in DEPARTMENTS.values():
        for _, _, options, _ in categories.values():
            values = [value for group in options.values() for value in group]
            assert len(set(values)) == len(values)  # a click on a value names its option


def test_pages_hold_ten_products_and_lead_back():
    env = WebShopLikeEnv()
    env.reset(seed=0)
    first, *_, info = env.step("search[running shoes]")
    shown = [a for a in info["admissible_actions"] if a.startswith("click[w0")]
    assert len(shown) == PER_PAGE and "click[next >]" in info["admissible_actions"]
    second = env.step("click[Next >]")[0]
    assert second != first and env.step("click[< prev]")[0] == first
    item = env.step(shown[0])[0]
    assert env.step("click[features]")[0] != item and env.step("click[< prev]")[0] == item
    assert env.step("click[< prev]")[0] == first
    assert "Search" in env.step("click[back to search]")[0]


@pytest.mark.parametrize("action", ["click[buy now]", "click[search]", "search[]", "fly", "search[\u2603\u2603]"])
def test_what_is_impossible_changes_nothing(action):
    env = WebShopLikeEnv(max_turns=2)
    env.reset(seed=4)
    observation, reward, terminated, truncated, _ = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "not possible" in observation or "Total results: 0" in observation
    assert env.step(action)[3]  # truncated
    with pytest.raises(RuntimeError, match="reset"):
        env.step(action)


def test_score_as_reward_pays_a_partial_purchase():
    env = WebShopLikeEnv(reward="score")
    env.reset(seed=1)
    *search, buy = [a for a in env.expert_actions() if not any(a == f"click[{v}]" for v in env._goal.options.values())]
    for action in search:
        env.step(action)
    _, reward, terminated, _, info = env.step(buy)
    assert terminated and 0 < reward < 1 and reward == info["score"] and not info["won"]


def test_seeds_tasks_and_counts_are_checked():
    env = WebShopLikeEnv()
    with pytest.raises(ValueError, match=r"options\['task'\]=100000"):
        env.reset(options={"task": 100000})
    with pytest.raises(ValueError, match="choose from split, task"):
        env.reset(options={"goal": 1})
    with pytest.raises(ValueError, match="count=101: split 'dev' has 100"):
        WebShopLikeEnv.episodes("dev", count=101)
    assert len(WebShopLikeEnv.episodes("dev")) == 100
    assert catalogue(1000, 1).products != SHOP.products
