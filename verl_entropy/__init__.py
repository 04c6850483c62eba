# SPDX-License-Identifier: Apache-2.0
"""Entropy control for verl: advantage estimators, transforms, policy losses, regularisers and the SEAL head."""

import os
import sys

__version__ = "0.1.0"


def find_hydra_plugin() -> None:
    """In a checkout (``pip install -e``) the plugin that Hydra looks for lies in a folder that is on nobody's path: put it there.

    A wheel has no such folder.
    """
    folder = os.path.join(os.path.dirname(__file__), "_hydra")
    if os.path.isdir(folder) and folder not in sys.path:
        sys.path.append(folder)
