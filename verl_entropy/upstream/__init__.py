# SPDX-License-Identifier: Apache-2.0
"""Mends and speed-ups of verl and its libraries, each a file that says what it mends."""
