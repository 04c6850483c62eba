# SPDX-License-Identifier: Apache-2.0
"""Ranks that die by a signal are tried once more, as gloo's crashes are none of ours; a failed rank or a second crash is a failure."""

from pathlib import Path

import pytest
from ranks import run_ranks

SCRIPT = """
import os, pathlib, signal, sys
out, how = pathlib.Path(sys.argv[2]), sys.argv[3]
before = pathlib.Path(str(out) + ".before")
if how == "raises":
    print("said why")
    sys.exit(1)
if how == "always" or not before.exists():
    before.touch()
    os.kill(os.getpid(), signal.SIGSEGV)
import torch
torch.save({"value": 3}, f"{out}.{os.environ['RANK']}")
"""


def run(tmp_path: Path, how: str) -> list[dict]:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    return run_ranks(tmp_path, tmp_path / "out", [how], 1, str(script))


def test_one_crash_is_tried_again(tmp_path):
    assert run(tmp_path, "once") == [{"value": 3}]


@pytest.mark.parametrize(("how", "words"), [("always", "exit codes"), ("raises", "said why")])
def test_a_failure_stays_one(tmp_path, how, words):
    with pytest.raises(AssertionError, match=words):
        run(tmp_path, how)
