# SPDX-License-Identifier: Apache-2.0
"""TextWorldExpress: folds, difficulty, and both rewards."""

import pytest
from conformance import package_and_java

from verl_entropy import envs

reason = package_and_java("textworld_express")
pytestmark = pytest.mark.skipif(bool(reason), reason=f"textworld_express: {reason}")


@pytest.fixture(scope="module")
def easy():
    found = envs.make("textworld_express", difficulty="easy")
    yield found
    found.close()


def test_folds_share_no_game():
    cls = envs.resolve("textworld_express")
    seeds = {split: {r["options"]["game_seed"] for r in cls.episodes(split)} for split in cls.SPLITS}
    assert {split: (min(s), max(s), len(s)) for split, s in seeds.items()} == {
        "train": (0, 999, 1000),
        "dev": (10_000, 10_999, 1000),
        "test": (20_000, 20_999, 1000),
    }


def test_seeds_of_a_split_are_of_its_fold(easy):
    for split, first in (("train", 0), ("test", 20_000)):
        easy.split = split
        for seed in range(20):
            easy.reset(seed=seed)
            assert first <= easy._number < first + 1000 and easy._fold() == split


def test_a_split_in_the_options_is_that_episodes(easy):
    easy.split = "test"
    drawn = easy.reset(seed=3)[0], easy._number
    easy.split = "train"
    assert (easy.reset(seed=3, options={"split": "test"})[0], easy._number) == drawn and easy._fold() == "test"
    easy.reset(seed=3)
    assert easy._fold() == "train"
    with pytest.raises(ValueError, match=r"options\['split'\]='attic'"):
        easy.reset(seed=3, options={"split": "attic"})
    with pytest.raises(ValueError, match="is of split 'train', not of 'test'"):
        easy.reset(seed=3, options={"game": "coin", "game_seed": 3, "split": "test"})


def test_easy_is_easier_and_solved(easy):
    lengths = {}
    for game in ("coin", "twc", "cookingworld", "mapreader", "simonsays"):
        found = []
        for _ in range(5):  # the simulator's own way to the goal is drawn anew each time, with detours
            easy.reset(seed=0, options={"game": game, "game_seed": 3})
            found.append(len(easy.expert_actions()))
        lengths[game] = min(found)
    assert max(lengths.values()) <= 15, lengths


def test_dense_reward_sums_to_the_sparse_one(easy):
    totals = {}
    for easy.reward in ("sparse", "dense"):
        easy.reset(seed=0, options={"game": "sorting", "game_seed": 5})
        rewards = [easy.step(action)[1] for action in easy.expert_actions()]
        totals[easy.reward] = (round(sum(rewards), 6), sum(r > 0 for r in rewards))
    assert totals["sparse"] == (10.0, 1) and totals["dense"][0] == 10.0 and totals["dense"][1] > 1


def test_asking_for_the_gold_path_in_the_middle_changes_nothing(easy):
    for game in ("sorting", "coin"):
        _, info = easy.reset(seed=0, options={"game": game, "game_seed": 482})
        actions = easy.expert_actions()
        for action in actions:
            again = easy.expert_actions()
            assert again == actions or (game == "coin" and again[-1] == actions[-1])  # coin's search is drawn anew
            *_, info = easy.step(action)
        assert info["won"], game


def test_a_wrong_move_of_a_failing_game_ends_it(easy):
    easy.reward = "sparse"
    _, info = easy.reset(seed=0, options={"game": "simonsays", "game_seed": 1})
    wrong = next(a for a in info["admissible_actions"] if a != easy.expert_actions()[0])
    _, reward, terminated, _, info = easy.step(wrong)
    assert terminated and reward == 0.0 and not info["won"]
