# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy watch RUN...``: the report's page while verl trains."""

from __future__ import annotations

import argparse

from verl_entropy.commands.output import json_option, print_json

PORT = 8265 + 100
"""Ray's dashboard has 8265."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The report's page for runs that go on: served on this machine (127.0.0.1), with new steps within seconds. It only reads; stop it "
        "with Ctrl-C at any time. From another machine: ssh -L 8365:127.0.0.1:8365 HOST."
    )
    parser.add_argument("runs", nargs="+", help="verl's file-logger .jsonl, or a run folder; finished runs too")
    parser.add_argument("--port", type=int, default=PORT, help=f"port on 127.0.0.1 (default {PORT}; 0: any free one)")
    parser.add_argument("--wait", action="store_true", help="wait for runs that have not begun")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.runs.report.live import Server, Watched

    if not 0 <= args.port < 65536:
        raise ValueError(f"--port {args.port}: must be 0 to 65535. Use 0 for any free one.")
    with Server(Watched(args.runs, wait=args.wait), args.port) as server:
        if args.json:
            print_json({"address": server.address})
        else:
            print(f"{server.address}  (Ctrl-C ends it; the training is not touched)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
    return 0
