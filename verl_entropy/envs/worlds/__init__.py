# SPDX-License-Identifier: Apache-2.0
"""The worlds that this package brings."""
