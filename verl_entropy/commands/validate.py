# SPDX-License-Identifier: Apache-2.0
"""``verl-entropy validate [WORD...]``: would this run start, what would it do, and what memory does entropy need.

The same composition and checks as ``python -m verl.trainer.main_ppo`` with these overrides, without Ray and a GPU.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from verl_entropy.commands import planned
from verl_entropy.commands.output import fill, json_option, print_json
from verl_entropy.config import memory
from verl_entropy.config.settings import lookup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="override (+entropy=[gigpo,aem], a.b=c), preset (gigpo,aem) or recipe.yaml"
    )
    parser.add_argument("--recipe", metavar="FILE", help="a recipe's YAML; the words override it")
    parser.add_argument("--vocab", type=_positive, help="vocabulary size, if the model's config.json is not on this machine")
    parser.add_argument("--hidden", type=_positive, help="hidden size, if the model's config.json is not on this machine")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a warning")
    json_option(parser)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer >= 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from verl_entropy.config import compose
    from verl_entropy.hosts.verl_engine import resolved

    config = compose.compose(args.words, args.recipe)
    found = resolved.check(config)
    path = lookup(found.raw, "actor_rollout_ref.model.path")
    model = memory.model_size(path, args.vocab, args.hidden)
    other = memory.path_of(found.raw, "auto", True) == memory.OTHER
    needed = estimate(found, model) if model and not other else None
    if args.json:
        print_json({**found.as_dict(), "memory": needed})
    else:
        print(render(found, needed, path, other))
    if found.verl is not None:  # as what we refuse: the run would not start
        print(f"verl-entropy validate: verl would stop the run: {found.verl}", file=sys.stderr)
        return 2
    return int(args.strict and bool(found.warnings))


def estimate(found: Any, model: memory.Size) -> dict[str, Any]:
    """The memory estimate of a resolved configuration."""
    from verl_entropy.hosts.verl_engine.resolved import has_flash

    plan = found.plan
    layers = getattr(plan.head.settings, "layers", 0) if plan.head else 0
    chunks = {f"{c.name}: {c.method.logits_bytes[1]}": c.method.logits_bytes[0] for c in plan.choices if c.method.logits_bytes}
    live = plan.diagnostics
    sampled = live.sample_trajectories * live.sample_tokens if plan.active and live.enabled and live.costly_every else 0
    return memory.estimate(found.raw, model, plan.entropy.log_probs, has_flash(), chunks, layers, sampled)


def render(found: Any, needed: dict[str, Any] | None, path: str | None, other: bool = False) -> str:
    """Plan, memory, and what there is to say about them."""
    parts = [planned.render_plan(found.as_dict()["plan"])]
    if needed:
        parts.append(planned.render_memory(needed))
    elif other:
        parts.append("memory: estimated for FSDP alone")
    else:
        parts.append(fill(f"memory: no config.json in {path} on this machine; give --vocab and --hidden for an estimate"))
    notes = [fill(f"warn  {text}", rest=" " * 6) for text in found.warnings]
    if found.verl is None:
        notes.append("ok    verl's own checks and verl-entropy's pass")
    else:
        notes += ["ok    verl-entropy's checks pass", fill(f"FAIL  verl would stop the run: {found.verl}", rest=" " * 6)]
    return "\n\n".join([*parts, "\n".join(notes)])
