# SPDX-License-Identifier: Apache-2.0
"""ScienceWorld: the package's own splits, both rewards, failure, gold paths on disk, and what is said when something is missing."""

import asyncio
import functools
import json

import pytest
from conformance import leftovers, package_and_java, simulators

from verl_entropy import envs
from verl_entropy.agent.pool import EnvironmentFailure, EnvPool
from verl_entropy.envs import cache
from verl_entropy.envs.simulators import jvm

reason = package_and_java("scienceworld")
needs_scienceworld = pytest.mark.skipif(bool(reason), reason=f"scienceworld: {reason}")
FOCUS = {"task": "find-living-thing", "variation": 0}  # the wrong focus fails it


@pytest.fixture(scope="module")
def environment():
    before = {process.pid for process in simulators()}
    found = envs.make("scienceworld", tasks=["find-living-thing", "lifespan-longest-lived"], reward="dense")
    yield found
    found.close()
    assert leftovers(before) == []


@needs_scienceworld
def test_splits_are_the_packages_own():
    from verl_entropy.envs.simulators.scienceworld import ScienceWorldEnv, variations

    counts = {fold: sum(len(task[fold]) for task in variations().values()) for fold in ("train", "dev", "test")}
    assert counts == {"train": 3592, "dev": 1796, "test": 1819} and len(variations()) == 30

    def numbers(split):
        return {(r["options"]["task"], r["options"]["variation"]) for r in ScienceWorldEnv.episodes(split)}

    assert len(numbers("train")) == 3592
    assert not numbers("train") & numbers("test") and not numbers("train") & numbers("dev")
    assert numbers("iid") == numbers("train") and numbers("ood") == numbers("test")  # EPO: seen and unseen variants
    tasks = [r["task_type"] for r in ScienceWorldEnv.episodes("train", count=60)]
    assert {tasks.count(task) for task in set(tasks)} == {2}  # the tasks in turn, not by their number of variations


@needs_scienceworld
def test_a_split_in_the_options_is_that_episodes(environment):
    from verl_entropy.envs.simulators.scienceworld import variations

    for seed in range(3):
        _, info = environment.reset(seed=seed, options={"split": "ood"})
        assert info["variation"] in variations()[info["task_type"]]["test"]
        _, info = environment.reset(seed=seed)
        assert info["variation"] in variations()[info["task_type"]]["train"]


@needs_scienceworld
def test_dense_rewards_are_the_score_and_sparse_ones_its_end(environment):
    def rewards(kind):
        environment.reward = kind
        environment.reset(seed=0, options={"task": "lifespan-longest-lived", "variation": 0})
        played = []
        for action in environment.expert_actions():
            if not (played and played[-1][2]):  # the path may go on after the score is full
                played.append(environment.step(action))
        assert played[-1][4]["score"] == 100 and played[-1][2]
        return [p[1] for p in played]

    sparse, dense = rewards("sparse"), rewards("dense")
    assert sum(sparse) == sparse[-1] == 10.0
    # The first look around already earns a part, as in the package's own reset.
    assert sum(r > 0 for r in dense) > 1 and 7.0 < sum(dense) <= 10.0


@needs_scienceworld
def test_a_negative_score_fails_and_ends_the_episode(environment):
    environment.reward = "sparse"
    environment.reset(seed=0, options=FOCUS)
    _, reward, terminated, truncated, info = environment.step("focus on agent")
    if not terminated:  # the agent itself may count as living
        environment.reset(seed=0, options=FOCUS)
        _, reward, terminated, truncated, info = environment.step("focus on air")
    assert terminated and not truncated and info["score"] == -100 and not info["won"] and reward == 0.0
    with pytest.raises(RuntimeError, match="reset"):
        environment.step("look around")


@needs_scienceworld
def test_valid_actions_come_only_when_asked_for(environment):
    _, info = environment.reset(seed=1)
    assert "admissible_actions" not in info
    forms, objects = info["action_forms"][:-1], info["action_forms"][-1].removeprefix("where OBJ is one of: ").split(", ")
    assert {"open OBJ", "focus on OBJ", "use OBJ on OBJ"} <= set(forms) and "reset task" not in forms
    assert "agent" in objects and len(objects) > 5 and len(" ".join(info["action_forms"])) < 3000
    environment.admissible = True
    _, info = environment.reset(seed=1)
    environment.admissible = False
    assert len(info["admissible_actions"]) > 50 and all(info["admissible_actions"])
    observation, *_ = environment.step(info["admissible_actions"][0])
    assert "No known action" not in observation


@needs_scienceworld
def test_gold_paths_are_kept_on_disk(environment, tmp_path, monkeypatch):
    environment.reset(seed=0, options={"task": "lifespan-longest-lived", "variation": 0})
    actions = environment.expert_actions()
    monkeypatch.setenv("VERL_ENTROPY_CACHE", str(tmp_path))
    assert environment.expert_actions() == actions
    (file,) = tmp_path.rglob("lifespan-longest-lived/0.json")
    file.write_text(json.dumps(["from the disk"]))
    assert environment.expert_actions() == ["from the disk"]
    file.write_text("[broken")  # a bad file is made anew
    assert environment.expert_actions() == actions


@needs_scienceworld
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "cook"}, "options\\['task'\\]='cook'"),
        ({**FOCUS, "variation": 9999}, "variation.*9999"),
        ({"split": "attic"}, "options\\['split'\\]='attic'"),
        ({**FOCUS, "split": "test"}, "not of split 'test'"),
    ],
)
def test_a_wrong_row_is_named(environment, options, named):
    with pytest.raises(ValueError, match=named):
        environment.reset(seed=0, options=options)


@needs_scienceworld
def test_a_java_process_killed_in_the_middle_is_rebuilt_in_a_thread():
    """Without process isolation too: the dead simulator is one episode's failure."""
    opened = []

    def make():
        opened.append(envs.make("scienceworld", tasks=["find-living-thing"]))
        return opened[-1]

    async def main():
        pool = EnvPool(make)
        try:
            async with pool.lease() as lease:
                first = await lease.reset(3)
                opened[0]._jvm.process.kill()
                with pytest.raises(EnvironmentFailure, match="crash"):
                    await lease.step("look around")
                assert (await lease.reset(3)).observation == first.observation
            assert (pool.stats.built, pool.stats.crashes) == (2, 1)
        finally:
            await asyncio.get_running_loop().run_in_executor(None, functools.partial(pool.close, 10.0))

    asyncio.run(main())
    assert all(e._jvm.process.poll() is not None for e in opened)


def test_missing_java_is_one_message(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"java='not found'.*openjdk-17-jre-headless"):
        jvm.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="JAVA_HOME"):
        jvm.find_java()


@needs_scienceworld
def test_a_java_that_does_not_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'class file version 61.0' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"did not start \(class file version 61.0\).*Java 17"):
        jvm.Jvm(str(tmp_path / "a.jar"), memory_mb=256)


def test_a_cache_that_cannot_be_written_is_one_message(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="VERL_ENTROPY_CACHE"):
        cache.write(tmp_path / "file" / "x.json", "{}")
    cache.write(tmp_path / "y" / "x.json", "{}")
    assert [p.name for p in (tmp_path / "y").iterdir()] == ["x.json"]  # no part file is left
