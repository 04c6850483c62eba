# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy explain NAME``: an algorithm from the registry and its function's docstring, or a preset's file.

Docstrings are read from the source, so that nothing here imports torch.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from verl_entropy.commands.output import WIDTH, fill, json_option, labelled, print_json
from verl_entropy.config import engines, presets
from verl_entropy.config import settings as config
from verl_entropy.config.spelling import did_you_mean
from verl_entropy.methods import registry
from verl_entropy.methods.method import NEEDS, Method

COMBINES = {
    "estimator": "any transforms, policy loss, regularizer and head; one estimator per run",
    "transform": "any estimator of verl or ours, other transforms (place {order} in the default order), any policy loss, "
    "regularizer and head",
    "loss": "any estimator, transforms, clip controller, regularizer and head; one policy loss per run",
    "clip": "any clipped policy loss, verl's included; any estimator, transforms, regularizer and head",
    "regularizer": "any estimator, transforms, policy loss and head; one regularizer per run, and actor.entropy_coeff must be 0",
    "head": "any estimator, transforms, policy loss and regularizer; not with LoRA, Ulysses sequence parallelism or fused kernels",
    "rollout": "any estimator, transforms, policy loss, regularizer and head; the agent loops stepwise_env and span_env; one per run",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="algorithm or preset; `verl-entropy list` has them")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    entries = [registry.find(args.name)] if registry.is_reference(args.name) else registry.methods(name=args.name)
    if entries:
        found = [describe(a) for a in entries]
        text = "\n\n".join(_render(d) for d in found)
    elif args.name in presets.preset_names():
        found = [
            {
                "name": args.name,
                "kind": "preset",
                "key": f"+entropy={args.name}",
                "yaml": presets.text(args.name),
                "sets": presets.verl_values(args.name),
            }
        ]
        text = f"{args.name} (preset): +entropy={args.name}\n\n{presets.text(args.name).rstrip()}\n{_sets(args.name)}".rstrip()
    else:
        raise config.ConfigError(_unknown(args.name))
    if args.json:
        print_json(found)
    else:
        print(text)
    return 0


def _sets(name: str) -> str:
    """verl's keys that a preset sets, and what replaces them."""
    values = presets.verl_values(name)
    if not values:
        return ""
    lines = [
        "",
        fill("sets of verl's own keys (an override of yours, a recipe's own value or a later preset of the list replaces it):"),
    ]
    lines += [f"  {key}={_yaml(value)}" for key, value in values.items()]
    if "adv_estimator: ${" in "".join(map(presets.text, presets.chain(name))):
        lines.append(
            fill(
                "An estimator's preset in the same list (gigpo, group_norm, loop), before it or after it, keeps its own adv_estimator."
            )
        )
    return "\n".join(lines)


def _unknown(name: str) -> str:
    known = sorted({m.name for m in registry.methods()} | set(presets.preset_names()))
    return f"no method or preset {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."


def describe(a: Method) -> dict[str, Any]:
    """Everything that is known about an algorithm, as plain values."""
    defaults = a.settings()
    others = [(o.name, reason) for o in registry.methods() for name, reason in o.conflicts.items() if name == a.name]
    return {
        "name": a.name,
        "kind": a.kind,
        "summary": a.summary,
        "equation": [line for function in (a.function, *a.equations) for line in equation(function)],
        "source": a.source,
        "when": a.when,
        "cost": a.cost,
        "key": a.key,
        "preset": f"+entropy={a.name}" if a.name in presets.preset_names() else None,
        "preset_sets": presets.verl_values(a.name) if a.name in presets.preset_names() else {},
        "variants": [n for n in presets.preset_names() if n != a.name and f"\n  - {a.name}\n" in presets.text(n)],
        "settings": [
            {"key": f"{a.path}.{f.name}", "default": getattr(defaults, f.name), **_bounds(f.metadata)}
            for f in a.settings.__dataclass_fields__.values()
        ],
        "needs": [NEEDS[n] for n in NEEDS if n in a.needs],
        "engines": engines.where(a),
        "state": a.state is not None,
        "origin": a.origin,
        "metrics": {f"verl_entropy/{a.name}/{name}": f"{m.formula} [{m.unit}]" for name, m in a.metrics.items()},
        "combines": COMBINES[a.kind].format(order=getattr(a, "order", "")),
        "refused_with": dict((*a.conflicts.items(), *others)),
        "function": a.function,
    }


def _bounds(meta) -> dict[str, Any]:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    allowed = [f"{sign} {meta[name]:g}" for name, sign in signs.items() if meta.get(name) is not None]
    if meta.get("choices"):
        allowed = ["one of " + ", ".join(map(str, meta["choices"]))]
    return {"doc": meta["doc"], "allowed": " and ".join(allowed)}


def _docstring(function: str) -> str:
    module, _, name = function.rpartition(".")
    source = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
    nodes = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef))
    return ast.get_docstring(next(n for n in nodes if n.name == name)) or ""


def equation(function: str) -> list[str]:
    """The indented blocks before the sections of the function's docstring; its first line where there is none."""
    doc = re.split(r"\n(?:Args|Returns|Raises):", _docstring(function))[0]
    blocks = [line[4:].rstrip() for line in doc.splitlines() if line.startswith("    ")]
    return blocks or [doc.splitlines()[0]]


def _formula(line: str) -> str:
    """A line of an equation as it stands, or with its columns closed up and wrapped where it is too wide."""
    if len(line) + 4 <= WIDTH:
        return "    " + line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return fill(re.sub(r" {3,}", "   ", line.strip()), indent, indent + "    ")


def _yaml(value: Any) -> str:
    """A default as an override takes it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _render(d: dict[str, Any]) -> str:
    lines = [fill(f"{d['name']} ({d['kind']}): {d['summary']}"), ""]
    lines += [_formula(line) for line in d["equation"]]
    lines.append("")
    for label in ("source", "when", "cost", "key", "preset"):
        if d[label]:
            lines.append(labelled(label, d[label]))
    if d["preset_sets"]:
        sets = ", ".join(f"{key}={_yaml(value)}" for key, value in d["preset_sets"].items())
        lines.append(labelled("", f"it sets {sets}; an override of yours replaces the value"))
    if d["variants"]:
        lines.append(labelled("variants", ", ".join(d["variants"])))
    lines += [labelled("needs" if i == 0 else "", need) for i, need in enumerate(d["needs"])]
    lines.append(labelled("engines", d["engines"]))
    if d["state"]:
        lines.append(labelled("state", "kept between steps and saved beside each checkpoint (verl_entropy.json)"))
    lines.append(labelled("with", d["combines"]))
    lines += [labelled("not with", f"{name}: {reason}") for name, reason in d["refused_with"].items()]
    lines.append(labelled("code", d["function"]))
    if d["settings"]:
        lines += ["", "  settings"]
    for s in d["settings"]:
        lines += [
            f"    {s['key']}={_yaml(s['default'])}",
            fill(s["doc"] + (f" ({s['allowed']})" if s["allowed"] else ""), " " * 8, " " * 8),
        ]
    return "\n".join(lines)
