# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy glossary``: the metrics, from the code that computes them."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from verl_entropy.commands.output import json_option, labelled, markdown_table, print_json
from verl_entropy.diagnostics import glossary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", nargs="?", default="", help="a logged metric, or a word of its key or formula")
    parser.add_argument("--markdown", action="store_true", help="a Markdown table")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    entries = sorted(glossary.GLOSSARY, key=lambda e: e.key)
    logged = glossary.find(args.word) if args.word else None  # turn_entropy/3 is an instance of turn_entropy/<k>
    entries = [e for e in entries if e is logged or args.word.lower() in f"{e.key} {e.formula}".lower()]
    if not entries:
        raise ValueError(f"no metric with {args.word!r} in its key or formula. `verl-entropy glossary` prints all.")
    if args.json:
        print_json([asdict(e) for e in entries])
    elif args.markdown:
        rows = [(f"`{e.key}`", e.formula, e.unit, e.source) for e in entries]
        print(markdown_table(("metric", "formula", "unit", "source"), rows))
    else:
        for e in entries:
            print(f"{e.key}  [{e.unit}]")
            print(labelled("", e.formula, column=0))
            print(labelled("source:", e.source, column=8))
    return 0
