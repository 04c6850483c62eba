# SPDX-License-Identifier: Apache-2.0
"""Adapters of real simulators, which their users install."""
