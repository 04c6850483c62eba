# SPDX-License-Identifier: Apache-2.0
"""verl 0.9's V1 trainer."""
