# SPDX-License-Identifier: Apache-2.0
"""The presets on Hydra's search path, also where Hydra cannot discover its plugins (an editable install)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent / "conf" / "entropy"


def preset_names() -> list[str]:
    """Names for ``+entropy=<name>``."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def ensure_search_path(_: ModuleType | None = None) -> None:
    """Register our SearchPathPlugin unless Hydra's own discovery found it."""
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin
    from hydra_plugins.verl_entropy_searchpath import VerlEntropySearchPath

    plugins = Plugins.instance()
    if VerlEntropySearchPath not in plugins.discover(SearchPathPlugin):
        plugins.register(VerlEntropySearchPath)
