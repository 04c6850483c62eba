# SPDX-License-Identifier: Apache-2.0
"""Hydra imports this by itself, from an editable install too: it puts our presets on Hydra's search path (``+entropy=<preset>``)."""

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class VerlEntropySearchPath(SearchPathPlugin):
    """Adds ``pkg://verl_entropy.config.conf``; what is composed for verl is read for choices of ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="verl_entropy", path="pkg://verl_entropy.config.conf")
        if "verl" in sys.modules:  # every other Hydra application is left alone
            from verl_entropy.hosts.install import absent

            absent.guard()
