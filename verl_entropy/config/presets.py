# SPDX-License-Identifier: Apache-2.0
"""The presets on Hydra's search path, also where Hydra cannot discover its plugins (an editable install)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_entropy import find_hydra_plugin
from verl_entropy.config.settings import POLICY_LOSS_PATH, SEAL_PATH, lookup
from verl_entropy.methods import registry

FOLDER = Path(__file__).parent / "conf" / "entropy"


def preset_names() -> list[str]:
    """Names for ``+entropy=<name>``."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def text(name: str) -> str:
    """The preset's YAML, with the source of each value in its comments."""
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """The comment that heads the preset's YAML, in one line."""
    lines = text(name).splitlines()
    heading = []
    for line in lines[1:]:  # the first line is Hydra's package directive
        if not line.startswith("#"):
            break
        heading.append(line.lstrip("# "))
    return " ".join(heading)


def ensure_search_path() -> None:
    """Register our SearchPathPlugin unless Hydra's own discovery found it."""
    find_hydra_plugin()
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from hydra_plugins.verl_entropy_searchpath import VerlEntropySearchPath

    plugins = Plugins.instance()
    if VerlEntropySearchPath not in plugins.discover(SearchPathPlugin):
        plugins.register(VerlEntropySearchPath)


_YIELDS = re.compile(r"\$\{oc\.select:[\w.]+,(\w+)\}")
"""A value that a preset of the same list may replace: ${oc.select:key,value}."""


def chain(name: str) -> list[str]:
    """The preset and those that it extends, the outermost base first."""
    content = yaml.safe_load(text(name))
    bases = [entry for entry in content.get("defaults", []) if entry != "_self_"]
    return [found for base in bases for found in chain(base)] + [name]


def verl_values(name: str) -> dict[str, Any]:
    """The keys of verl that the preset sets, with its paper's values: what makes the method whole beside its own settings."""
    ours = ("algorithm.entropy.", f"{SEAL_PATH}.", *(f"{POLICY_LOSS_PATH}.{key}" for key in ("regularizer", "clip_controller")))
    ours += tuple(f"{m.path}." for m in registry.methods())
    found: dict[str, Any] = {}
    for part in chain(name):
        found.update(_flat(yaml.safe_load(text(part)), ""))
    return {key: value for key, value in found.items() if not key.startswith(ours)}


def _flat(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = prefix + str(key)
        if path == "defaults":
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        elif isinstance(value, str) and (yields := _YIELDS.fullmatch(value)):
            yield path, yields.group(1)
        else:
            yield path, value


def outermost(names: Iterable[str]) -> list[str]:
    """The chosen presets without those that another of them extends."""
    chosen = [name for name in names if name in preset_names()]
    return [name for name in chosen if not any(name in chain(other) for other in chosen if other != name)]


def replaced(names: Iterable[str], raw: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any, str | None]]:
    """Values of verl's keys that a chosen preset sets and this run has otherwise: preset, key, its value, the run's, and the chosen
    preset that the run's comes from (None: an override, or a recipe)."""
    chosen = outermost(names)
    for name in chosen:
        for key, value in verl_values(name).items():
            now = lookup(raw, key)
            if "${" in str(value) or _same(value, now):
                continue
            others = [other for other in chosen if other != name and _same(verl_values(other).get(key), now)]
            yield name, key, value, now, others[0] if others else None


def _same(one: Any, other: Any) -> bool:
    """Equal, also where Hydra left a number as a string."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return one == other
