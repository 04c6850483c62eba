# SPDX-License-Identifier: Apache-2.0
"""Turns, packed tokens and numerics of a batch. Imports torch and nothing else of this package."""
