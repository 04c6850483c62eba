# SPDX-License-Identifier: Apache-2.0
"""The launcher starts only a verl-agent whose functions are the known ones, and says what to do otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import verl_entropy
from verl_entropy.hosts.verl_agent import fingerprints

SOURCE = """
class Actor:
    def step(self):
        # a comment
        return 1

    @staticmethod
    def other():
        return 2


def run():
    return 3
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with one watched file, and the table that knows it."""
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").touch()
    (tmp_path / "agent_system").mkdir()
    file = tmp_path / "verl/actor.py"
    file.write_text(SOURCE)
    monkeypatch.setattr(fingerprints, "WATCHED", {"verl/actor.py": ("Actor.step", "run")})
    known = {f: {n: [d] for n, d in names.items()} for f, names in fingerprints.measure(tmp_path).items()}
    monkeypatch.setattr(fingerprints, "accepted", lambda: known)
    monkeypatch.setattr(fingerprints, "home", lambda: tmp_path)
    return file


def test_known_tree_is_accepted_whatever_its_comments_and_unwatched_functions(tree):
    tree.write_text(SOURCE.replace("# a comment", "# another\n\n").replace("return 2", "return 22"))
    assert fingerprints.check() == tree.parents[1]


@pytest.mark.parametrize(
    ("change", "named"),
    [(("return 1", "return 1.0"), "verl/actor.py: Actor.step"), (("def run", "def run2"), "verl/actor.py: run (missing)")],
)
def test_changed_function_is_refused_by_name_and_can_be_allowed(tree, change, named):
    tree.write_text(SOURCE.replace(*change))
    with pytest.raises(fingerprints.NotVerlAgent) as refused:
        fingerprints.check()
    assert named in str(refused.value) and "--allow-changed=" in str(refused.value)
    name = named.split(": ")[1].removesuffix(" (missing)")
    assert fingerprints.check([name]) == tree.parents[1]


def test_every_watched_function_has_a_known_fingerprint():
    table = fingerprints.accepted()
    assert {f: set(names) for f, names in table.items()} == {f: set(n) for f, n in fingerprints.WATCHED.items()}
    assert all(len(d) == 16 for names in table.values() for digests in names.values() for d in digests)


def test_launcher_refuses_verl_itself(tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").touch()
    package = os.path.dirname(os.path.dirname(verl_entropy.__file__))
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{package}"}
    command = [sys.executable, "-m", "verl_entropy.verl_agent", "algorithm.adv_estimator=grpo"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode != 0
    assert "is not verl-agent" in done.stderr and "python -m verl.trainer.main_ppo" in done.stderr
    assert "Traceback" not in done.stderr
