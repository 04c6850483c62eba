# SPDX-License-Identifier: Apache-2.0
"""The household world: every task can be solved, the same seed gives the same episode, inadmissible actions change nothing."""

import pytest

from verl_entropy import envs
from verl_entropy.envs.worlds.household import DIFFICULTIES, SPLITS, TASK_TYPES, HouseholdEnv, HouseholdExpert
from verl_entropy.envs.worlds.household_world import possible_tasks

CASES = [(d, s, t) for d in DIFFICULTIES for s in SPLITS for t in possible_tasks(d)]


def play(env, seed, policy=None):
    observation, info = env.reset(seed=seed)
    expert, trace = HouseholdExpert(info["task"]), [(observation, tuple(info["admissible_actions"]))]
    done = False
    while not done:
        action = expert.act(observation, info["admissible_actions"]) if policy is None else policy(info)
        assert policy is not None or action in info["admissible_actions"]
        observation, reward, terminated, truncated, info = env.step(action)
        trace.append((observation, reward, tuple(info["admissible_actions"])))
        done = terminated or truncated
    return trace, reward, info


@pytest.mark.parametrize(("difficulty", "split", "task_type"), CASES)
def test_the_expert_solves_every_task(difficulty, split, task_type):
    env = HouseholdEnv(split=split, difficulty=difficulty, task_types=[task_type])
    for seed in range(25):
        trace, reward, info = play(env, seed)
        assert reward == 10.0 and info["won"] and info["task_type"] == task_type
        assert len(trace) - 1 <= env.max_turns
        assert sum(step[1] for step in trace[1:]) == 10.0  # nothing before the end


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_same_seed_same_episode_and_members_of_a_group_are_equal(difficulty):
    a, b = HouseholdEnv(difficulty=difficulty), HouseholdEnv(difficulty=difficulty)
    for seed in range(40):
        assert play(a, seed)[0] == play(b, seed)[0]
        b.reset(seed=seed + 999)  # what was played before does not matter


def test_inadmissible_actions_cost_a_turn_and_change_nothing():
    env = HouseholdEnv(difficulty="easy")
    for seed in range(20):
        _, before = env.reset(seed=seed)
        for nonsense in ("", "fly to the moon", "take sun 1 from sky 1", "go to", "\u2603" * 500):
            _, reward, terminated, _, info = env.step(nonsense)
            assert info["admissible_actions"] == before["admissible_actions"]
            assert reward == 0.0 and not terminated


def test_every_admissible_action_is_accepted():
    env = HouseholdEnv(difficulty="easy")
    for seed in range(15):
        _, info = env.reset(seed=seed)
        for action in info["admissible_actions"]:
            env.reset(seed=seed)
            observation, *_ = env.step(action)
            assert not observation.startswith("That does not work"), action


def test_doing_nothing_is_cut_at_the_limit():
    env = HouseholdEnv(max_turns=7)
    trace, reward, info = play(env, 3, policy=lambda info: "wait")
    assert len(trace) - 1 == 7 and reward == 0.0 and not info["won"]


def test_splits_share_no_episode_and_unseen_no_layout():
    def layouts(split):
        env, found = HouseholdEnv(split=split, difficulty="easy"), set()
        for seed in range(150):
            env.reset(seed=seed)
            found.add(env._episode.layout.signature)
        return found

    assert not layouts("train") & layouts("unseen")
    assert layouts("seen") <= layouts("train")
    a, b = HouseholdEnv(split="train"), HouseholdEnv(split="seen")
    assert all(
        a.reset(seed=s)[0] + a.reset(seed=s)[1]["task"] != b.reset(seed=s)[0] + b.reset(seed=s)[1]["task"] for s in range(30)
    )


def test_a_task_that_a_difficulty_does_not_have_is_refused():
    assert "look_at_obj_in_light" not in possible_tasks("tiny") and possible_tasks("full") == TASK_TYPES
    with pytest.raises(ValueError, match="task_types"):
        HouseholdEnv(difficulty="tiny", task_types=["look_at_obj_in_light"])


def test_options_choose_family_and_split_for_one_episode():
    env = HouseholdEnv(split="train")
    _, info = env.reset(seed=1, options={"task_type": TASK_TYPES[1], "split": "unseen"})
    other = HouseholdEnv(split="unseen").reset(seed=1, options={"task_type": TASK_TYPES[1]})[1]
    assert info["task"] == other["task"] and env.split == "train"
    with pytest.raises(ValueError, match="split"):
        env.reset(seed=1, options={"split": "mars"})


def test_listed_places_are_the_receptacles_and_the_expert_still_solves():
    env = HouseholdEnv(difficulty="easy", list_places=True)
    for seed in range(30):
        _, info = env.reset(seed=seed)
        assert all(place in info["task"] for place in env._room_of)
        assert play(env, seed)[1] == 10.0


@pytest.mark.parametrize(
    ("name", "says"), [("atlantis", "not known"), ("no.such.module:X", "does not import"), ("json:X", "no 'X'")]
)
def test_make_says_what_is_wrong(name, says):
    with pytest.raises(ValueError, match=says):
        envs.make(name)


def test_make_builds_by_name_and_by_path():
    assert isinstance(envs.make("household", difficulty="easy"), HouseholdEnv)
    assert isinstance(envs.make("verl_entropy.envs.worlds.household:HouseholdEnv"), HouseholdEnv)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_expert_actions_solve_from_any_state_and_change_nothing(difficulty):
    env = HouseholdEnv(difficulty=difficulty)
    for seed in range(8):
        _, info = env.reset(seed=seed)
        before, actions = env._describe(), env.expert_actions()
        assert env._describe() == before and actions == env.expert_actions()
        for action in actions:
            *_, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["won"]) == (10.0, True, True)
        assert env.expert_actions() is None  # over


def test_expert_actions_are_none_without_enough_turns():
    env = HouseholdEnv(difficulty="easy", max_turns=1)
    env.reset(seed=0)
    assert env.expert_actions() is None


def test_episodes_name_split_and_task():
    rows = HouseholdEnv.episodes("unseen", count=5, difficulty="easy")
    assert rows == HouseholdEnv.episodes("unseen", count=9, difficulty="easy")[:5]
    assert not {row["seed"] for row in rows} & {row["seed"] for row in HouseholdEnv.episodes("unseen", count=5, seed=1)}
    env = HouseholdEnv(split="train", difficulty="easy")
    for row in rows:
        _, info = env.reset(seed=row["seed"], options=row["options"])
        assert (info["task"], info["task_type"]) == (row["prompt"], row["task_type"])
    assert len(HouseholdEnv.episodes("seen", difficulty="tiny")) == 128
    with pytest.raises(ValueError, match="count=0"):
        HouseholdEnv.episodes("train", count=0)
