# SPDX-License-Identifier: Apache-2.0
"""The presets on Hydra's search path, also where Hydra cannot discover its plugins (an editable install)."""

from __future__ import annotations

import sys
from pathlib import Path

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


def make_findable() -> None:
    """In a checkout (``pip install -e``) Hydra's plugins lie in a folder that is on nobody's path: put it there. A wheel has none."""
    folder = Path(__file__).parents[1] / "_hydra"
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))


def ensure_search_path() -> None:
    """Register our SearchPathPlugin unless Hydra's own discovery found it."""
    make_findable()
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from hydra_plugins.verl_entropy_searchpath import VerlEntropySearchPath

    plugins = Plugins.instance()
    if VerlEntropySearchPath not in plugins.discover(SearchPathPlugin):
        plugins.register(VerlEntropySearchPath)
