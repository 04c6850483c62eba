# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy strip-head SOURCE TARGET``."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="global_step_<n> folder")
    parser.add_argument("target", help="new folder")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.tools.checkpoint import strip_head

    count = strip_head(args.source, args.target)
    if args.json:
        print_json({"removed": count, "target": args.target})
    else:
        print(f"removed {count} tensors of the SEAL head; stock verl can load {args.target}")
    return 0
