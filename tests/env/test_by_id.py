# SPDX-License-Identifier: Apache-2.0
"""Environments of other collections by their id: won by the package's own flag, the rules shown once, the same seed the same episode."""

import importlib.util

import pytest

from verl_entropy import cli, envs

EASY = {"is_slippery": False}


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def opened(name, seed=0, **settings):
    env = envs.make(name, **settings)
    observation, info = env.reset(seed=seed)
    return env, observation, info


def test_unknown_ids_are_named():
    with pytest.raises(ValueError, match=r"gem:ID, reasoning_gym:ID, textarena:ID, gymnasium:ID"):
        envs.resolve("gymnasiun:FrozenLake-v1")


@needs("gymnasium")
class TestGymnasium:
    def test_frozen_lake(self):
        env, observation, info = opened("frozenlake", **EASY)
        assert observation == "[S]FFF\nFHFH\nFFFH\nHFFG" and info["admissible_actions"] == ["left", "down", "right", "up"]
        assert observation not in info["task"] and "hole" in info["task"]
        assert env.step("jump")[0].startswith("That is no action; there are left")
        for action in ("down", "Down", "right", "right", "down", "right"):
            _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["won"]) == (1.0, True, False, True)

    def test_a_hole_is_no_success_and_the_time_limit_cuts(self):
        env, *_ = opened("frozenlake", **EASY)
        env.step("down")
        _, reward, terminated, _, info = env.step("right")
        assert (reward, terminated, info["won"]) == (0.0, True, False)
        env, *_ = opened("frozenlake", max_turns=1000, max_episode_steps=3, **EASY)
        assert [env.step("left")[2:4] for _ in range(3)][-1] == (False, True)

    @pytest.mark.parametrize("name", ["CliffWalking-v1", "Taxi-v4", "Blackjack-v1"])
    def test_other_toy_text(self, name):
        _, observation, info = opened(f"gymnasium:{name}", seed=3)
        assert observation and info["task"] and "\x1b" not in observation
        assert opened(f"gymnasium:{name}", seed=3)[1] == observation

    def test_a_positive_return_is_no_success(self):
        """Any environment with text spaces: its own flag decides."""
        import gymnasium

        class Echo(gymnasium.Env):
            observation_space = action_space = gymnasium.spaces.Text(100)

            def __init__(self, says=("is_success", False)):
                self.says = says

            def reset(self, *, seed=None, options=None):
                return "say x", {}

            def step(self, action):
                return "heard", 1.0, True, False, dict([self.says])

        gymnasium.register("Echo-v0", entry_point=Echo, disable_env_checker=True)
        try:
            for says, won in ((("is_success", False), False), (("success", True), True)):
                env, *_ = opened("gymnasium:Echo-v0", says=says)
                *_, info = env.step("x")
                assert info["won"] is won
            env, *_ = opened("gymnasium:Echo-v0", says=("other", 1))
            with pytest.raises(ValueError, match="key of info that says success"):
                env.step("x")
        finally:
            gymnasium.registry.pop("Echo-v0")

    def test_numbers_are_refused(self):
        with pytest.raises(ValueError, match=r"gymnasium:CartPole-v1.*no text"):
            envs.make("gymnasium:CartPole-v1")
        with pytest.raises(ValueError, match=r"gymnasium:Nothing-v0"):
            envs.make("gymnasium:Nothing-v0")

    def test_data_are_made_from_seeds(self, tmp_path):
        import pyarrow.parquet

        assert cli.main(["data", "frozenlake", "--split", "test", "--count", "3", "--out", str(tmp_path)]) == 0
        rows = pyarrow.parquet.read_table(tmp_path / "test.parquet").to_pylist()
        assert [row["extra_info"]["seed"] for row in rows] == [2_000_000, 2_000_001, 2_000_002]


@needs("gem")
class TestGem:
    def guess(self, seed, numbers):
        env, observation, info = opened("gem:game:GuessTheNumber-v0-easy", seed=seed)
        shown = [(observation, 0.0, False, False, info)]
        for number in numbers:
            shown.append(env.step(rf"\boxed{{{number}}}"))
            if shown[-1][2]:
                break
        return shown

    def test_won_only_by_the_packages_reward(self):
        numbers = [next(n for n in range(1, 11) if self.guess(seed, [n])[-1][4]["won"]) for seed in range(3)]
        for seed, number in enumerate(numbers):
            wrong = [n for n in range(1, 11) if n != number]
            *_, terminated, _, info = self.guess(seed, wrong)[-1]
            assert terminated and not info["won"]
            *_, terminated, _, info = self.guess(seed, [*wrong[:2], number])[-1]
            assert terminated and info["won"]

    def test_sokoban_shows_its_rules_once(self):
        env, observation, info = opened("sokoban", seed=3)
        assert "Sokoban" in info["task"] and "Sokoban" not in observation and "# # #" in observation
        assert opened("sokoban", seed=3)[1] == observation != opened("sokoban", seed=4)[1]
        assert "Sokoban" not in env.step(r"\boxed{up}")[0]
        _, reward, terminated, _, info = env.step("up")
        assert (reward, terminated, info["won"]) == (pytest.approx(-0.1), True, False)

    def test_an_unknown_id_lists_the_known_ones(self):
        with pytest.raises(ValueError, match=r"gem:game:Chess-v0.*Known: .*game:Sokoban-v0-easy"):
            envs.make("gem:game:Chess-v0")


@needs("reasoning_gym")
def test_reasoning_gym():
    env, observation, info = opened("reasoning_gym:leg_counting", seed=5)
    assert "legs" in info["task"] and "legs" not in observation and opened("reasoning_gym:leg_counting", seed=5)[2] == info
    assert env.step("no number")[1:3] == (0.0, True) and not env._info()["won"]
    env.reset(seed=5)
    (answer,) = env.expert_actions()
    _, reward, terminated, _, info = env.step(f" {answer} ")
    assert (reward, terminated, info["won"]) == (1.0, True, True)
    assert opened("reasoning_gym:leg_counting", seed=5, max_animals=3)[2]["task"] != info["task"]
    with pytest.raises(ValueError, match=r"reasoning_gym:nothing.*Known: .*leg_counting"):
        envs.make("reasoning_gym:nothing")


def way(board):
    """Actions from P to G around H, for TextArena's board."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in board.splitlines() if line.startswith("|")]
    (start,) = ((y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell == "P")
    todo, seen = [(start, [])], {start}
    for (y, x), path in todo:
        if rows[y][x] == "G":
            return path
        for name, dy, dx in (("up", -1, 0), ("down", 1, 0), ("left", 0, -1), ("right", 0, 1)):
            at = (y + dy, x + dx)
            if 0 <= at[0] < len(rows) and 0 <= at[1] < len(rows) and rows[at[0]][at[1]] != "H" and at not in seen:
                seen.add(at)
                todo.append((at, [*path, name]))
    raise AssertionError("no way")


@needs("textarena")
def test_textarena():
    env, observation, info = opened("textarena:FrozenLake-v0", seed=7)
    assert "Welcome to Frozen Lake" in info["task"] and "Welcome" not in observation and "| " in observation
    for action in way(observation):
        observation, reward, terminated, _, info = env.step(f"[{action}]")
        assert "Welcome" not in observation
    assert (reward, terminated, info["won"]) == (1.0, True, True)
    observation, _ = env.reset(seed=7)
    for action in way(observation)[:-1]:
        env.step(f"[{action}]")
    for _ in range(2):
        _, reward, terminated, _, info = env.step("nonsense")
    assert terminated and not info["won"] and reward > 0.0  # the package pays for progress of a lost game
    assert opened("textarena:FrozenLake-v0", seed=7)[1] == opened("textarena:FrozenLake-v0", seed=7)[1]
    with pytest.raises(ValueError, match=r"textarena:Nothing-v0.*no such game.*Known: .*FrozenLake"):
        envs.make("textarena:Nothing-v0")
    with pytest.raises(ValueError, match="not a game for one player"):
        opened("textarena:TicTacToe-v0")


@needs("gem")
@pytest.mark.slow
def test_an_episode_in_a_process_of_its_own():
    """As the agent loop plays it: the package seeds the global generators, so each environment has a process."""
    import asyncio

    from verl_entropy.agent.episode import EpisodeRunner
    from verl_entropy.agent.pool import pool_of
    from verl_entropy.agent.settings import AgentSettings

    s = AgentSettings.from_mappings({"name": "sokoban", "num_envs": 2, "max_turns": 2})

    class Up:
        def __init__(self):
            self.seen = []

        async def act(self, state):
            self.seen.append(state.observation)
            return r"<think>a</think><action>\boxed{up}</action>"

    async def twice(runner):
        return await asyncio.gather(*(runner.run(Up, seed=3) for _ in range(2)))

    pool = pool_of(s)
    try:
        (first, one), (second, two) = asyncio.run(twice(EpisodeRunner(s, pool)))
    finally:
        pool.close()
    assert one.seen == two.seen and len(one.seen) == 2 and "pushed" not in one.seen[0]
    assert first.turns[0].valid and first.task_type == "gem:game:Sokoban-v0-easy" and not first.success and not second.success
