# SPDX-License-Identifier: Apache-2.0
"""A resolved configuration and its memory as text of 80 columns."""

from __future__ import annotations

from typing import Any

from verl_entropy.commands.output import fill, labelled
from verl_entropy.config import memory

COLUMN = 16


def _line(label: str, text: str) -> str:
    return labelled(label, text, column=COLUMN)


def _settings(choice: dict[str, Any] | None) -> str:
    if not choice:
        return ""
    values = ", ".join(f"{key} {value}" for key, value in choice["changed"].items())
    return f" ({values})" if values else " (the paper's settings)" if choice["settings"] else ""


def render_plan(d: dict[str, Any]) -> str:
    """The plan, a line per part."""
    base, loss, coeff, entropy = d["base"], d["policy_loss"], d["entropy_coeff"], d["entropy"]
    transforms = " -> ".join(f"{t['name']}{_settings(t)}" for t in d["transforms"]) or "none"
    clip = f"1 - {loss['clip_ratio_low']} to 1 + {loss['clip_ratio_high']}, dual clip {loss['clip_ratio_c']}"
    mover = d["clip_controller"]
    lines = [
        "plan",
        _line("presets", ", ".join(d["presets"]) or "none"),
        _line("advantage", f"{base['name']}, {base['from']}'s{_settings(d['estimator'])}"),
        _line("transforms", transforms),
        _line(
            "policy loss", f"{loss['name']}, {loss['from']}'s{_settings(loss['settings'])}, aggregated by {loss['aggregation']}"
        ),
        _line("clip", clip + (f"; the upper bound moves by {mover['name']}{_settings(mover)}" if mover else "")),
        _line("regularizer", _named(d["regularizer"])),
        _line("head", _head(d["head"])),
        *([_line("rollout", _named(d["rollout"]))] if d["rollout"] else []),
        _line("entropy_coeff", f"{coeff['value']:g} per nat, from {coeff['owner']}: {coeff['note']}"),
        _line("entropy", f"in {entropy['unit']}, of {entropy['of']}, temperature {entropy['temperature']}"),
        _line("computed by", _where(entropy)),
    ]
    lines.append(_line("diagnostics", _diagnostics(d["diagnostics"])))
    if d["state"]:
        lines.append(_line("state", f"{', '.join(d['state'])}: kept between steps, saved beside each checkpoint"))
    return "\n".join(lines)


def _diagnostics(s: dict[str, Any] | None) -> str:
    if not s or not s["enabled"]:
        return "off"
    costly = f"costly ones every {s['costly_every']} steps" if s["costly_every"] else "costly ones never"
    return f"every step, {costly}; on eruption: {s['on_eruption']}; run file: {s['run_file']['folder'] or 'none'}"


def _named(choice: dict[str, Any] | None) -> str:
    return f"{choice['name']}{_settings(choice)}" if choice else "none"


def _head(choice: dict[str, Any] | None) -> str:
    return f"{choice['name']}, alpha {choice['settings']['alpha']:g}{_settings(choice)}" if choice else "none"


def _where(entropy: dict[str, Any]) -> str:
    if entropy["path"] == memory.OTHER:
        return "verl's code for this training engine"
    what = memory.PATHS[entropy["path"]][0]
    if entropy["path"] in memory.WITHOUT_LOGITS:
        return what
    if entropy["log_probs"] != "auto":
        return f"{what} (log_probs={entropy['log_probs']})"
    found = "missing" if entropy["path"] == "chunked" else "installed"
    return f"{what} (log_probs=auto: flash-attn is {found} on this machine; the training machine decides)"


def size(number: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError


NAMES = {"old_log_prob": "old log-probs", "update": "update"}


def render_memory(d: dict[str, Any]) -> str:
    """The estimate: one row per path for each pass."""
    model = d["model"]
    lines = [
        "memory of entropy and log-probs, per GPU and micro-batch (estimate)",
        _line("model", f"vocabulary {model['vocab']}, hidden {model['hidden']} ({model['source']})"),
    ]
    for name, title in NAMES.items():
        if name not in d:
            lines.append(_line(title, "size not set (micro-batch size per GPU, or dynamic batch size)"))
            continue
        p = d[name]
        tokens = f"{p['tokens']} tokens, at most {p['response']} of responses, {8 * p['logit_bytes']}-bit logits"
        lines += ["", fill(f"{title}: {tokens}", "  ", "    ")]
        exists = f"{size(p['logits'])} of logits" + (", and as much for their gradient" if name == "update" else "")
        if d["path"] == "chunked" and p["packed"]:
            exists += f"; on the other paths with logits {size(p['logit_bytes'] * p['tokens'] * p['vocab'])}"
        lines.append(fill(f"needed in any case: {exists if p['logits'] else 'no logits on this path'}", "  ", "    "))
        lines.append(f"    {'kept':>9} {'transient':>10}  path")
        for path, cost in p["paths"].items():
            mark = "->" if path == d["path"] else "  "
            lines.append(f"  {mark}{size(cost['kept']):>9} {size(cost['transient']):>10}  {memory.PATHS[path][0]}")
    if d["extras"]:
        lines += ["", *(fill(f"{name}: {size(number)}", "  ", "    ") for name, number in d["extras"].items())]
    if not d["update_entropy"]:
        lines.append(fill("the update computes no entropy: no chosen method needs its gradient", "  ", "    "))
    return "\n".join(lines)
