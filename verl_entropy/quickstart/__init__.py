# SPDX-License-Identifier: Apache-2.0
"""A run of minutes on a CPU: a tiny model, a household, a warm start, entropy-controlled RL, and a picture of it."""
