# SPDX-License-Identifier: Apache-2.0
"""Pieces that several methods share: clipped loss, controller, centring, dropping tokens, equal returns."""
