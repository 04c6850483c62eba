# SPDX-License-Identifier: Apache-2.0
"""Quantities that explain what entropy does in a run; pure functions, none of them changes training."""
