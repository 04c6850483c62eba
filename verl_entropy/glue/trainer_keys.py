# SPDX-License-Identifier: Apache-2.0
"""Names of what travels from the driver to the training workers."""

WORKER_INFO = "verl_entropy"
"""Non-tensor entry of each batch: step, corridor, coefficients."""

NUM_ROWS = "verl_entropy_num_rows"
"""Non-tensor entry set by the engine: rows of the global mini-batch that have a trained token."""

PAD_UID = "pad"
"""verl gives its synthetic padding rows a uid with this prefix."""
