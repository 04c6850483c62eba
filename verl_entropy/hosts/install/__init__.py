# SPDX-License-Identifier: Apache-2.0
"""Which verl is there, whether it can be extended, and the import hooks that do it."""
