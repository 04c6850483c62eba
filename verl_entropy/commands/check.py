# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy check NAME``: the contract of ``methods/contract.py`` on a method, ours or anybody's."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from verl_entropy.commands.output import json_option, labelled, print_json
from verl_entropy.methods import registry
from verl_entropy.methods.method import ConfigError, Method


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="+", help="a method that `verl-entropy list` shows, or package.module:NAME")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.methods import contract

    found = [(method, contract.check(method)) for word in args.name for method in _methods(word)]
    if args.json:
        print_json([{"name": m.name, "kind": m.kind, "origin": m.origin, "checks": [asdict(r) for r in rs]} for m, rs in found])
    else:
        for method, results in found:
            print(f"{method.name} ({method.kind}, from {method.origin})")
            for r in results:
                print(labelled(f"  {r.verdict}", f"{r.check}{': ' + r.detail if r.detail else ''}", column=8))
            print()
    return int(any(r.verdict == "FAIL" for _, results in found for r in results))


def _methods(word: str) -> list[Method]:
    import torch  # noqa: F401  (the registry then gives methods that run)

    if registry.is_reference(word):
        method = registry.find(word)
        return [registry.get(method.kind, word)]
    found = registry.methods(name=word)
    if not found:
        known = sorted({m.name for m in registry.methods()})
        raise ConfigError(f"no method {word!r}. Known: {', '.join(known)}; or name one as package.module:NAME.")
    return found
