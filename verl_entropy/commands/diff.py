# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy diff A B``: as diff(1), 0 means no difference and 1 means some."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help="verl's file-logger .jsonl, or a run folder")
    parser.add_argument("b", help="the other run")
    parser.add_argument("--rtol", type=float, default=0.0, help="relative difference that counts as equal (default 0)")
    parser.add_argument("--atol", type=float, default=0.0, help="absolute difference that counts as equal (default 0)")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.runs.report import diff

    found = diff(args.a, args.b, rtol=args.rtol, atol=args.atol)
    if args.json:
        print_json(found.as_dict())
    else:
        print(found.render())
    return int(found.differs)
