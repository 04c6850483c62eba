# SPDX-License-Identifier: Apache-2.0
"""Work on checkpoints, offline."""
