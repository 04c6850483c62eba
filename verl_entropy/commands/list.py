# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy list``: what can be chosen, and the key that chooses it."""

from __future__ import annotations

import argparse
from typing import Any

from verl_entropy import __version__
from verl_entropy.commands.output import fill, json_option, labelled, print_json
from verl_entropy.config import presets
from verl_entropy.methods import registry

TITLES = {
    "estimator": "advantage estimators",
    "transform": "advantage transforms, in the order in which they apply",
    "loss": "policy losses",
    "clip": "clip controllers",
    "regularizer": "regularizers",
    "head": "heads",
    "rollout": "rollouts: how the leaves of a prompt are sampled",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=registry.FOLDERS, metavar="KIND", help=f"only this kind: {', '.join(registry.FOLDERS)}")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    kinds = [args.kind] if args.kind else list(registry.FOLDERS)
    if args.json:
        print_json(_as_dict(kinds))
    else:
        print(_render(kinds))
    return 0


def _as_dict(kinds: list[str]) -> dict[str, Any]:
    fields = ("name", "kind", "summary", "when", "cost", "source", "key", "path", "origin")
    methods = [{f: getattr(m, f) for f in fields} for kind in kinds for m in registry.methods(kind)]
    return {
        "version": __version__,
        "algorithms": methods,
        "presets": {name: presets.summary(name) for name in presets.preset_names()},
    }


def _render(kinds: list[str]) -> str:
    lines = [f"verl-entropy {__version__}", ""]
    for kind in kinds:
        lines.append(TITLES[kind])
        for m in registry.methods(kind):
            origin = "" if m.origin == "verl-entropy" else f", from {m.origin}"
            lines += [labelled(m.name, f"{m.summary} [{m.source}{origin}]", column=19), labelled("", m.key, column=19)]
        lines.append("")
    lines.append("presets (a paper's settings; several: +entropy=[gigpo,aem,seal])")
    lines += [fill(", ".join(presets.preset_names()), "  ", "  "), ""]
    lines.append("verl-entropy explain NAME: equation, settings, what it combines with")
    return "\n".join(lines)
