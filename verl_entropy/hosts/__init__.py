# SPDX-License-Identifier: Apache-2.0
"""The trainers that this package runs in; one room each, and what they share."""
