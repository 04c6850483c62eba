# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the import path, so that tests of every promise can share ``math_batches``."""

import os
from pathlib import Path

import pytest

SLOW = ("engine", "cpu/test_cpu_engine.py", "env/test_conformance.py", "env/test_alfworld.py", "env/test_scienceworld.py")
"""Under this folder: what builds engines or starts simulators."""


@pytest.fixture(autouse=True)
def _choices_end_with_their_test():
    """A configuration of verl that is composed in a test tells the processes of its run what it chose, and no later ones."""
    before = os.environ.get("VERL_ENTROPY_CHOSEN")
    yield
    if before is None:
        os.environ.pop("VERL_ENTROPY_CHOSEN", None)
    else:
        os.environ["VERL_ENTROPY_CHOSEN"] = before


TEXTS = {
    "alfworld": (
        "{current_observation}: [{admissible_actions}]",
        "{task_description}: {step_count}, last {history_length}: {action_history}",
    ),
    "webshop": ("{task_description}: {available_actions}", "last {history_length}: {action_history}: {available_actions}"),
    "search": ("{task_description}", "{task_description}: {memory_context}"),
    "appworld": ("{supervisor_email}: {task_description}", "{current_step}: {action_history}"),
}
"""First and later turns, with the places of verl-agent's own texts, which tests/verl_agent compares where a checkout is."""


@pytest.fixture(scope="session")
def verl_agent_folder(tmp_path_factory):
    """Stands for a checkout of verl-agent as far as ``data.env.prompt_template=verl_agent`` reads one."""
    home = tmp_path_factory.mktemp("verl-agent")
    folder = home / "agent_system/environments/prompts"
    folder.mkdir(parents=True)
    for kind, (first, later) in TEXTS.items():
        names = (f"{kind.upper()}_TEMPLATE_NO_HIS", f"{kind.upper()}_TEMPLATE")
        lines = [
            f"{name} = {f'{kind} {when}: {text}'!r}"
            for name, when, text in zip(names, ("first", "later"), (first, later), strict=True)
        ]
        (folder / f"{kind}.py").write_text("\n".join(lines) + "\n")
    return home


@pytest.fixture(autouse=True)
def verl_agent_texts(request, monkeypatch, verl_agent_folder):
    """The recipes of papers that build on verl-agent start without a checkout; tests/verl_agent needs the real one."""
    if request.path.parent.name != "verl_agent":
        monkeypatch.setenv("VERL_AGENT_HOME", str(verl_agent_folder))


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        path = Path(item.path).relative_to(here).as_posix()
        if path.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
