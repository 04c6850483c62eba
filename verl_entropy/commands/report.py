# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy report RUN...``."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="verl's file-logger .jsonl, or a run folder")
    parser.add_argument("--out", default="report.html", help="the page; figures are put beside it")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.runs.report import build_report

    found = build_report(args.runs, args.out)
    if args.json:
        print_json(found.as_dict())
    else:
        print(found.render())
    return 0
