# SPDX-License-Identifier: Apache-2.0
"""Keys, plan, composition, presets, checks, warnings and memory of a configuration. Never imports torch or verl."""
