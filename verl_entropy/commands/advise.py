# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy advise RUN``: symptoms, the figure that shows each, and the methods meant for it."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="run", help="verl's file-logger .jsonl, or a run folder")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.runs.report import advise

    found = advise(args.run_path)
    if args.json:
        print_json(found.as_dict())
    else:
        print(found.render())
    return int(bool(found.items))
