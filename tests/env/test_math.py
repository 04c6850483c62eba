# SPDX-License-Identifier: Apache-2.0
"""Mathematics: only the last box counts, equality is mathematical, and hostile answers cost a bounded time."""

import asyncio
import time

import pytest

pytest.importorskip("math_verify")

from verl_entropy.agent.episode import EpisodeRunner
from verl_entropy.agent.pool import EnvPool
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.envs.worlds import math_verifier
from verl_entropy.envs.worlds.math import MathEnv, compute_score, last_boxed
from verl_entropy.envs.worlds.math_problems import SIZES, SPLITS, problems


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{1}, no, \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} and then \boxed{4", "3"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", None),
        ("42", None),
        ("\\boxed", None),
        (r"\boxed} \boxed{", None),
        (r"\boxed\{5\}", None),
        (r"} \boxed{\boxed{6}} {", "6"),
    ],
)
def test_the_last_complete_box_counts(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 100_000, "\\boxed{" * 50_000 + "}" * 50_000, "{}" * 200_000, "\\boxed{1} " * 50_000]
)
def test_a_degenerate_answer_is_read_in_linear_time(text):
    started = time.process_time()
    last_boxed(text)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("right", "answer", "equal"),
    [
        ("1/2", "0.5", True),
        (r"\frac{1}{2}", r"\dfrac12", True),
        (r"2\sqrt{5}", r"\sqrt{20}", True),
        ("033", "33", True),
        ("33", r"33\text{ apples}", True),
        ("(1, 2)", "(1,2)", True),
        ("12", "13", False),
        ("12", "", False),
        ("x", "\u2603", False),
        ("3", "{3", False),
    ],
)
def test_equality_is_mathematical(right, answer, equal):
    assert math_verifier.equal(right, answer, 5.0) == equal


def test_a_hostile_answer_is_wrong_in_bounded_time_and_the_next_one_is_judged():
    verifier = math_verifier.Verifier()
    try:
        assert verifier.equal("1/2", "0.5", 5.0)
        started = time.monotonic()
        assert not verifier.equal("7", "7^{7^{7^{7^{7}}}}", 0.5)
        assert time.monotonic() - started < 2.0 and verifier.kills == 1
        assert verifier.equal("1/2", "0.5", 5.0)
        assert not verifier.equal("1", "1+" * 2000 + "1", 0.5) and verifier.kills == 1  # too long: not even asked
        verifier._process.kill()
        verifier._process.wait()
        assert verifier.equal("1/2", "0.5", 5.0)  # killed from outside: started again
    finally:
        verifier.close()


def test_reward_and_end():
    env = MathEnv()
    for action, won in ((r"thus \boxed{%s}.", True), ("%s", False), (r"\boxed{no}", False)):
        observation, info = env.reset(seed=5)
        assert observation == env._problem.question and not info["won"]
        text = action % env._problem.answer if "%" in action else action
        _, reward, terminated, truncated, info = env.step(text)
        assert (reward, terminated, truncated, info["won"]) == (float(won), True, False, won)


@pytest.mark.parametrize(
    ("text", "won", "valid"),
    [
        (r"It is \boxed{%s}.", True, True),
        (r"<think> maybe \boxed{-1} </think> It is \boxed{%s}.", True, True),
        ("step by step " * 1000 + r"\boxed{%s}", True, True),  # far longer than a command
        (r"\boxed{%s}" + " as was to be shown" * 10, True, True),  # the box is not in the last characters
        (r"<think> \boxed{%s} </think> It is \boxed{-1}.", False, True),  # what follows the thought counts
        (
            r"<think> so \boxed{%s}" + " and again" * 10,
            False,
            False,
        ),  # a thought that does not end is no answer, in verl's own rollout as here
        (r"<action> \boxed{%s} </action>", True, True),
        ("%s", False, True),
    ],
)
def test_the_whole_answer_is_judged_in_the_agent_loop(text, won, valid):
    env = MathEnv()
    env.reset(seed=5)
    answer = text % env._problem.answer
    settings = AgentSettings.from_mappings({"name": "math", "action_format": "whole", "require_think": False})

    class Scripted:
        async def act(self, state):
            return answer

    async def main():
        pool = EnvPool(lambda: env, num_envs=1)
        try:
            return (await EpisodeRunner(settings, pool).run(Scripted, seed=5))[0]
        finally:
            pool.close()

    episode = asyncio.run(main())
    assert (episode.success, episode.episode_return, episode.turns[0].valid) == (won, float(won), valid)


def test_bundled_problems_are_right():
    by_kind = {}
    found = problems()
    assert {split: len(found[split]) for split in SPLITS} == SIZES
    texts = [p.question for split in SPLITS for p in found[split]]
    assert len(set(texts)) == len(texts)
    for problem in found["test"]:
        by_kind.setdefault(problem.kind, problem)
    assert len(by_kind) == 6
    for problem in by_kind.values():
        assert math_verifier.equal(problem.answer, problem.answer + " ", 5.0)
        assert not math_verifier.equal(problem.answer, problem.answer + " + 1", 5.0)


def test_the_reward_function_of_verls_own_rollout():
    right = compute_score(data_source="aime", solution_str=r"... \boxed{070}", ground_truth="70", extra_info={})
    assert right == {"score": 1.0, "acc": 1.0, "pred": "070"}
    assert compute_score("aime", "70", "70")["score"] == 0.0


def test_own_problems(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"problem": "1+1?", "answer": "$2$"}\n{"question": "x?", "answer": "so \\\\boxed{\\\\frac12}"}\n')
    rows = MathEnv.episodes("train", problems=str(file))
    assert sorted(row["prompt"].split("\n")[0] for row in rows) == ["1+1?", "x?"]
    env = MathEnv(problems=str(file))
    for row in rows:
        env.reset(seed=row["seed"], options=row["options"])
        assert env.step(env.expert_actions()[0])[1] == 1.0


def test_parquet_in_verls_layout(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    row = {"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2"}, "data_source": "aime"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "p.parquet")
    env = MathEnv(problems=str(tmp_path / "p.parquet"))
    assert env.reset(seed=0)[0] == "1+1?" and env.expert_actions() == [r"\boxed{2}"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('\n{"question": "b"}', "line 2: needs a non-empty 'answer'"),
        ('\n\n{"question": ', "line 3"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, says):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says):
        MathEnv(problems=str(tmp_path / "p.jsonl"))


def test_missing_math_verify_says_what_to_install(monkeypatch):
    monkeypatch.setattr(math_verifier.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'verl-entropy\[math\]'"):
        MathEnv()
