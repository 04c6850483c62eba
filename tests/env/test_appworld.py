# SPDX-License-Identifier: Apache-2.0
"""The AppWorld adapter against a stand-in (its tasks need a download): protocol, reward, one world per process, messages."""

import sys
import threading
import types

import pytest

from verl_entropy.envs import make
from verl_entropy.envs.simulators import appworld


class Supervisor:
    first_name, last_name, email, phone_number = "Ann", "Lee", "ann@mail.com", "123"


class World:
    """AppWorld's calls as the adapter makes them."""

    opened = 0

    def __init__(self, task_id, experiment_name, timeout_seconds):
        self.task_id, self.task = task_id, types.SimpleNamespace(instruction=f"do {task_id}", supervisor=Supervisor)
        self.done, self.ran = False, []
        World.opened += 1

    def execute(self, code):
        self.ran.append(code)
        self.done = "complete_task" in code
        return f"ran {len(self.ran)}\n"

    def task_completed(self):
        return self.done

    def evaluate(self):
        passed = 4 if "right()" in self.ran else 1
        return types.SimpleNamespace(num_tests=4, pass_count=passed, success=passed == 4)

    def close(self):
        World.opened -= 1


@pytest.fixture
def installed(monkeypatch, tmp_path):
    (tmp_path / "data/tasks/abc_1/ground_truth").mkdir(parents=True)
    (tmp_path / "data/datasets").mkdir()
    for split, ids in {"train": ["abc_1", "abc_2", "def_1"], "dev": ["xyz_1"]}.items():
        (tmp_path / f"data/datasets/{split}.txt").write_text("\n".join(ids))
    package = types.ModuleType("appworld")
    package.AppWorld, package.update_root = World, lambda root: root
    package.load_task_ids = lambda split: (tmp_path / f"data/datasets/{split}.txt").read_text().split()
    monkeypatch.setitem(sys.modules, "appworld", package)
    return str(tmp_path)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "appworld", None)
    with pytest.raises(ValueError, match=r"pip install appworld.*appworld install.*appworld download data"):
        make("appworld")


def test_missing_data_says_what_to_download(installed, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"empty.*no data/tasks.*appworld download data"):
        make("appworld", root=str(empty))
    with pytest.raises(ValueError, match=r"test_normal.txt.*appworld download data"):
        make("appworld", root=installed, split="test_normal")


@pytest.mark.parametrize(
    ("actions", "kind", "paid", "won"),
    [
        (["right()", "apis.supervisor.complete_task()"], "fraction", 1.0, True),
        (["apis.supervisor.complete_task()"], "fraction", 0.25, False),
        (["apis.supervisor.complete_task()"], "success", 0.0, False),
        (["x = 1", "right()", "y = 2"], "fraction", 1.0, True),  # cut at the limit: evaluated as it is
    ],
)
def test_reward_is_the_fraction_of_unit_tests(installed, actions, kind, paid, won):
    env = make("appworld", root=installed, reward=kind, max_turns=3)
    observation, info = env.reset(seed=0, options={"task": 0})
    assert "Ann Lee" in observation and info["task"] == "do abc_1" and info["task_type"] == "abc"
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
    assert (reward, info["won"], terminated or truncated) == (paid, won, True)
    assert terminated == ("complete_task" in actions[-1])
    env.close()
    assert World.opened == 0


def test_a_half_installed_package_says_what_to_run(installed, monkeypatch):
    def fail(self, **kwargs):
        raise ModuleNotFoundError("No module named 'appworld.apps.admin'")

    monkeypatch.setattr(World, "__init__", fail)
    env = make("appworld", root=installed)
    for _ in range(2):  # and the place in this process is free again
        with pytest.raises(ValueError, match=r"apps.admin.*appworld install"):
            env.reset(seed=0)


def test_code_in_a_fence_is_unwrapped(installed):
    assert appworld.code_of("Sure:\n```python\nx = 1\nprint(x)\n```\nDone.") == "x = 1\nprint(x)"
    assert appworld.code_of("print(1)") == "print(1)"


def test_one_world_per_process_and_main_thread_only(installed):
    a, b = make("appworld", root=installed), make("appworld", root=installed)
    a.reset(seed=0)
    a.reset(seed=1)  # its own old world is closed first
    assert World.opened == 1 and a._experiment != b._experiment
    with pytest.raises(ValueError, match="isolation=process"):
        b.reset(seed=0)
    a.close()
    b.reset(seed=0)
    b.close()
    errors = []

    def play():
        try:
            a.reset(seed=0)
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]


def test_rows_and_wrong_settings(installed):
    rows = appworld.AppWorldEnv.episodes("train", root=installed)
    assert sorted(row["prompt"] for row in rows) == ["AppWorld task abc_1", "AppWorld task abc_2", "AppWorld task def_1"]
    assert World.opened == 0  # no world is opened for a list
    for settings, named in (({"split": "mars"}, "split"), ({"reward": "x"}, "reward"), ({"experiment": "a/b"}, "experiment")):
        with pytest.raises(ValueError, match=named):
            make("appworld", root=installed, **settings)


def test_the_real_package_has_what_the_adapter_calls():
    real = pytest.importorskip("appworld")
    import inspect

    assert {"task_id", "experiment_name", "timeout_seconds"} <= set(inspect.signature(real.AppWorld.__init__).parameters)
    for name in ("execute", "task_completed", "evaluate", "close"):
        assert callable(vars(real.AppWorld)[name])
    assert callable(real.load_task_ids) and callable(real.update_root)
    from appworld.evaluator import TestTracker

    tracker = TestTracker()
    tracker.passes, tracker.failures = [{"requirement": "a", "label": None}], [{"requirement": "b", "label": None, "trace": ""}]
    assert appworld.score(tracker) == (0.5, False)
