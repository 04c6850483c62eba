# SPDX-License-Identifier: Apache-2.0
"""Controllers of the clip bounds: one file per method."""
