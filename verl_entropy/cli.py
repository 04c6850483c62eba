# SPDX-License-Identifier: Apache-2.0
"""The ``verl-entropy`` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from verl_entropy import __version__, compat, presets, registry


def _list(_: argparse.Namespace) -> int:
    print(f"verl-entropy {__version__}\n")
    for kind in registry.KINDS:
        entries = [a for a in registry.ALGORITHMS if a.kind == kind]
        if not entries:
            continue
        print({"loss": "policy losses", "clip": "clip controllers"}.get(kind, f"{kind}s"))
        for a in entries:
            print(f"  {a.name:<18}{a.summary}")
            print(f"  {'':<18}{a.key}   settings: {a.path}.*   [{a.source}]")
        print()
    print("presets: " + ", ".join(f"+entropy={name}" for name in presets.preset_names()))
    print("several: +entropy=[gigpo,aem,seal]")
    return 0


def _explain(args: argparse.Namespace) -> int:
    entries = [a for a in registry.ALGORITHMS if a.name == args.name]
    if not entries:
        known = ", ".join(a.name for a in registry.ALGORITHMS)
        print(f"no algorithm {args.name!r}. Known: {known}.", file=sys.stderr)
        return 2
    for a in entries:
        print(f"{a.name} ({a.kind}): {a.summary}")
        for label, text in (("source", a.source), ("when", a.when), ("cost", a.cost), ("key", a.key)):
            print(f"  {label:<8}{text}")
        for field in a.settings.__dataclass_fields__.values():
            print(f"  {a.path}.{field.name} = {getattr(a.settings(), field.name)}\n      {field.metadata['doc']}")
    return 0


def table() -> str:
    """The README's table of algorithms, from the registry."""
    lines = ["| algorithm | kind | what it does | when to use it | cost | key | source |", "|---|---|---|---|---|---|---|"]
    for kind in registry.KINDS:
        for a in registry.ALGORITHMS:
            if a.kind == kind:
                cells = (f"`{a.name}`", a.kind, a.summary, a.when, a.cost, f"`{a.key}`", a.source)
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _table(_: argparse.Namespace) -> int:
    print(table())
    return 0


def _doctor(_: argparse.Namespace) -> int:
    """What is installed and whether the plugin can work with it; 1 if it cannot."""
    print(f"verl-entropy {__version__}, verl {compat.verl_version()}, python {sys.version.split()[0]}")
    reason = compat.unsupported_reason()
    if reason is not None:
        print(f"FAIL  {reason}")
        return 1
    print(f"ok    verl version (supported: {', '.join(compat.SUPPORTED)})")
    missing = compat.missing_symbols()
    number = sum(map(len, compat.SYMBOLS.values()))
    print(f"FAIL  missing in verl: {'; '.join(missing)}" if missing else f"ok    {number} symbols of verl")
    import importlib.metadata

    points = [p.name for p in importlib.metadata.entry_points(group="verl.plugins")]
    found = "verl_entropy" in points
    print(f"{'ok   ' if found else 'FAIL '} entry point verl.plugins: {', '.join(points) or 'none'}")
    return 0 if found and not missing else 1


def _strip(args: argparse.Namespace) -> int:
    from verl_entropy.checkpoint import CheckpointError, strip_head

    try:
        count = strip_head(args.source, args.target)
    except CheckpointError as error:
        print(f"verl-entropy strip-head: {error}", file=sys.stderr)
        return 2
    print(f"removed {count} tensors of the SEAL head; stock verl can load {args.target}")
    return 0


def _report(args: argparse.Namespace) -> int:
    from verl_entropy.report import build_report

    print(build_report(args.runs, args.out).render())
    return 0


def _show(result, as_json: bool) -> int:
    print(json.dumps(result.as_dict(), indent=1) if as_json else result.render())
    return 0


def _diff(args: argparse.Namespace) -> int:
    from verl_entropy.report import diff

    return _show(diff(args.a, args.b, rtol=args.rtol, atol=args.atol), args.json)


def _advise(args: argparse.Namespace) -> int:
    from verl_entropy.report import advise

    return _show(advise(args.run_path), args.json)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="verl-entropy", description="Entropy control for verl.")
    root.add_argument("--version", action="version", version=__version__)
    commands = root.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is registered, with keys and sources").set_defaults(run=_list)
    commands.add_parser("table", help="the README's table of algorithms").set_defaults(run=_table)
    explain = commands.add_parser("explain", help="one algorithm and its settings")
    explain.add_argument("name")
    explain.set_defaults(run=_explain)
    commands.add_parser("doctor", help="check the installation against the installed verl").set_defaults(run=_doctor)
    strip = commands.add_parser("strip-head", help="copy a checkpoint without the SEAL head, for stock verl")
    strip.add_argument("source", help="global_step_<n> folder")
    strip.add_argument("target", help="new folder")
    strip.set_defaults(run=_strip)
    report = commands.add_parser("report", help="one HTML page with figures on one or more runs")
    report.add_argument("runs", nargs="+", help="verl's file-logger .jsonl, or a run folder")
    report.add_argument("--out", default="report.html", help="the page; figures are put beside it")
    report.set_defaults(run=_report)
    diff = commands.add_parser("diff", help="where two runs part")
    diff.add_argument("a")
    diff.add_argument("b")
    diff.add_argument("--rtol", type=float, default=0.0)
    diff.add_argument("--atol", type=float, default=0.0)
    diff.add_argument("--json", action="store_true")
    diff.set_defaults(run=_diff)
    advise = commands.add_parser("advise", help="symptoms of a run, and methods meant for them")
    advise.add_argument("run_path", metavar="run")
    advise.add_argument("--json", action="store_true")
    advise.set_defaults(run=_advise)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except ValueError as error:  # ConfigError, RunFileError: the message says what to do
        print(f"verl-entropy: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
