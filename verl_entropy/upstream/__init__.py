# SPDX-License-Identifier: Apache-2.0
"""Mends and speed-ups of verl and its libraries. None is active unless a method or a key asks for it (``hosts/verl_engine/wiring.py``).

The docstring of each file says what it mends, in which versions, who asks for it, and how one sees that it is no longer needed.
"""
