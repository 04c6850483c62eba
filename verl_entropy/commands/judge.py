# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy judge RUN --endpoint URL --model NAME``: a language model scores the degeneracy of stored trajectories.

Exit codes: 0 done (or --dry-run), 1 some trajectories could not be judged, 2 wrong arguments or nothing confirmed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from verl_entropy.commands.output import json_option, labelled, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from verl_entropy.runs.judge import Endpoint

    parser.add_argument("run_path", metavar="run", help="folder of a run with stored trajectories")
    parser.add_argument("--endpoint", required=True, help="OpenAI-compatible base address, as https://host/v1")
    parser.add_argument("--model", required=True, help="name of the judging model at the endpoint")
    parser.add_argument(
        "--key-env", default="OPENAI_API_KEY", metavar="NAME", help="environment variable of the key; may be unset"
    )
    parser.add_argument("--key-over-http", action="store_true", help="send the key unencrypted to another host")
    parser.add_argument("--price-in", type=float, metavar="P", help="price of a million input tokens")
    parser.add_argument("--price-out", type=float, metavar="P", help="price of a million output tokens")
    parser.add_argument("--yes", action="store_true", help="go on after the estimate without asking")
    parser.add_argument("--dry-run", action="store_true", help="only the estimate; nothing is sent")
    parser.add_argument("--first", type=int, default=0, metavar="STEP", help="first step (default 0)")
    parser.add_argument("--last", type=int, metavar="STEP", help="last step (default: the run's)")
    parser.add_argument("--limit", type=int, default=0, help="trajectories at most, spread over the run (default: all)")
    parser.add_argument(
        "--rpm", type=float, default=Endpoint.per_minute, help="requests a minute at most; 0: no limit (default %(default)g)"
    )
    parser.add_argument("--workers", type=int, default=4, help="requests at a time (default 4)")
    parser.add_argument(
        "--retries", type=int, default=Endpoint.retries, help="further attempts of a failed request (default %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=Endpoint.timeout, help="seconds without an answer (default %(default)g)")
    parser.add_argument(
        "--max-output", type=int, default=Endpoint.max_output, help="tokens of an answer at most (default %(default)s)"
    )
    parser.add_argument("--body", default="{}", metavar="JSON", help="further fields of a request; null takes one of ours away")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.runs import judge
    from verl_entropy.runs.judge import costs, work

    endpoint = _endpoint(args)
    selected, problems = judge.tasks(args.run_path, first=args.first, last=args.last, limit=args.limit)
    left, scores, more = work.unjudged(args.run_path, selected, endpoint.model)
    for text in problems + more:
        print(f"problem: {text}", file=sys.stderr)
    plan = judge.estimate([task.text for task in left], args.price_in, args.price_out, args.max_output)
    record = {"selected": len(selected), "already_judged": len(scores), "estimate": plan.as_dict()}
    if not args.json or not (args.dry_run or args.yes):
        print(f"selected  {len(selected)} trajectories, {len(scores)} judged already\n{plan.render()}", file=_out(args))
    if args.dry_run:
        if args.json:
            print_json(record)
        return 0
    if left and not args.yes and not _confirmed():
        print("verl-entropy judge: not confirmed, nothing was sent. Pass --yes to go on.", file=sys.stderr)
        return 2
    outcome = judge.judge(
        args.run_path, selected, judge.Client(endpoint), workers=args.workers, progress=None if args.json else _progress
    )
    cost = costs.price(outcome.input_tokens, outcome.output_tokens, args.price_in, args.price_out)
    if args.json:
        print_json({**record, **asdict(outcome), "cost": cost})
    else:
        _print(outcome, cost)
    return int(bool(outcome.failed or outcome.stopped))


def _out(args: argparse.Namespace):
    return sys.stderr if args.json else sys.stdout


def _endpoint(args: argparse.Namespace):
    from verl_entropy.runs.judge import Endpoint, JudgeError

    for name in ("price_in", "price_out"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < 1e9:
            raise JudgeError(f"--{name.replace('_', '-')} {value}: must be at least 0. Give the price of a million tokens.")
    for name in ("limit", "first"):
        if getattr(args, name) < 0:
            raise JudgeError(f"--{name} {getattr(args, name)}: must be at least 0.")
    if not 1 <= args.workers <= 64:
        raise JudgeError(f"--workers {args.workers}: must be 1 to 64.")
    key = os.environ.get(args.key_env, "").strip()
    endpoint = Endpoint(
        args.endpoint,
        args.model,
        key,
        per_minute=args.rpm,
        timeout=args.timeout,
        retries=args.retries,
        max_output=args.max_output,
        body=_body(args.body),
    )
    if endpoint.exposes_key and not args.key_over_http:
        raise JudgeError(
            f"--endpoint is http: the key in {args.key_env} would cross the network unencrypted. Use https, name a variable that "
            "is not set (--key-env NONE) for a server without keys, or pass --key-over-http."
        )
    return endpoint


def _body(text: str) -> dict[str, Any]:
    from verl_entropy.runs.judge import JudgeError

    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise JudgeError('--body: not a JSON object. Write it as \'{"max_tokens": null, "max_completion_tokens": 500}\'.')
    return body


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("go on? [y/N] ").strip().lower() in ("y", "yes")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total or done % 50 == 0:
        end = "\n" if done == total or not sys.stderr.isatty() else ""
        print(f"\rjudged {done} of {total}", end=end, file=sys.stderr, flush=True)


def _print(outcome, cost: float | None) -> None:
    print(f"judged    {outcome.judged}, skipped {outcome.skipped}, failed {len(outcome.failed)}")
    print(f"tokens    {outcome.input_tokens} in, {outcome.output_tokens} out" + ("" if cost is None else f"; cost {cost:.4g}"))
    if outcome.mean is not None:
        print(f"score     {outcome.mean:.2f} of 10 on average (10: fully degenerate)")
    for text in outcome.failed[:5]:
        print(labelled("failed", text, 0, 10))
    if len(outcome.failed) > 5:
        print(f"failed    and {len(outcome.failed) - 5} more")
    if outcome.stopped:
        print(labelled("stopped", outcome.stopped, 0, 10))
    if outcome.failed or outcome.stopped:
        print("Run the same command again to judge the rest.")
