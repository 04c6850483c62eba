# SPDX-License-Identifier: Apache-2.0
"""Auxiliary heads on the policy's hidden states."""
