# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy table``: the tables of the READMEs, from the registry and the table of commands."""

from __future__ import annotations

import argparse

from verl_entropy import cli
from verl_entropy.commands.output import markdown_table
from verl_entropy.methods import registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="?", default="algorithms", choices=sorted(TABLES), help="default: algorithms")


def run(args: argparse.Namespace) -> int:
    print(TABLES[args.which]())
    return 0


def algorithms() -> str:
    """One row per algorithm."""
    rows = [(f"`{a.name}`", a.kind, a.summary, a.when, a.cost, f"`{a.key}`", a.source) for a in registry.methods()]
    return markdown_table(("algorithm", "kind", "what it does", "when to use it", "cost", "key", "source"), rows)


def commands() -> str:
    """One row per command, with what exit code 1 means."""
    rows = [(f"`verl-entropy {c.name}`", c.help, c.found or "-") for c in cli.COMMANDS]
    return markdown_table(("command", "what it does", "exit code 1"), rows)


TABLES = {"algorithms": algorithms, "commands": commands}
