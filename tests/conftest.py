# SPDX-License-Identifier: Apache-2.0
"""Puts this folder on the import path, so that tests of every promise can share ``math_batches``."""
