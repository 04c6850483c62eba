# SPDX-License-Identifier: Apache-2.0
"""README's generated parts are up to date, its commands exist, and the project stands alone."""

import re
import subprocess
from pathlib import Path

import readme

from verl_entropy import cli
from verl_entropy.config import presets

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()


def test_generated_parts_are_up_to_date():
    assert readme.render(TEXT) == TEXT
    recipe = (readme.LEARNED / "README.md").read_text()
    assert readme.render_recipe(recipe) == recipe


def test_every_preset_that_is_named_exists():
    named = {n for group in re.findall(r"\+entropy=\[?([a-z_,]+)", TEXT) for n in group.split(",") if n}
    assert named <= set(presets.preset_names())


def test_every_subcommand_that_is_named_exists():
    commands = set(re.findall(r"verl-entropy ([a-z][a-z-]+)", TEXT)) - {"beside"}
    parser = cli.parser()
    choices = next(a for a in parser._actions if a.dest == "command").choices
    assert commands <= set(choices), commands - set(choices)


def test_scripts_that_are_named_parse():
    for script in set(re.findall(r"bash ([a-z/_]+\.sh)", TEXT)):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
