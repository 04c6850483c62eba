# SPDX-License-Identifier: Apache-2.0
"""Entropy control for verl: advantage estimators, transforms, policy losses, regularisers and the SEAL head."""

__version__ = "0.1.0"
