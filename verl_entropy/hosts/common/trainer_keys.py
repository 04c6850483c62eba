# SPDX-License-Identifier: Apache-2.0
"""Names of what travels from the driver to the training workers."""

WORKER_INFO = "verl_entropy"
"""Non-tensor entry of each batch: step, corridor, coefficients."""

NUM_ROWS = "verl_entropy_num_rows"
"""Non-tensor entry set by the engine: rows of the global mini-batch that have a trained token."""

PAD_UID = "pad"
"""verl gives its synthetic padding rows a uid with this prefix."""

TOTALS = "verl_entropy_totals"
"""Non-tensor entry set by the engine: of each of our per-token columns over the global mini-batch, by name, [sum, rows above 0]."""

SAMPLE_CODE = "verl_entropy_sample_code"
"""Column: per response token the number of its sampled trajectory (``diagnostics.sampling.mark``)."""
SAMPLE_LEAD = "verl_entropy_sample_lead"
"""Column: j + 1 in the row that carries the result of sampled trajectory j, else 0."""
NUM_SAMPLED = "verl_entropy_num_sampled"
"""Non-tensor entry of the old-log-prob pass: number of sampled trajectories."""
SAMPLED = "verl_entropy_sampled"
"""Output of that pass: ``diagnostics.sampling.pack``."""

ROW = "verl_entropy_row"
"""Column in steps whose trajectories are stored: number of the row in the batch, from 1; the update reports its clipped tokens."""
CLIPPED = "verl_entropy/clipped_tokens"
"""Those, in the update's metrics: of each token its side (1 above, -1 below) times row * ROW_SIZE + place in the response; or 0."""
ROW_SIZE = 2**32

HEAD_LOGITS = "head_logits"
"""Output with a head: its outputs (N,), one per trained token in row order."""
HEAD_TOKENS, HEAD_ROWS = "head_tokens", "head_rows"
"""Beside it: where those tokens are in the columns of the response layout (indices into ``values()``), and their rows, (N,)."""


ACTOR_MASKS = {"response_mask": "verl_entropy_response_mask", "loss_mask": "verl_entropy_loss_mask"}
"""Columns with the actor's masks, where a transform dropped tokens: the critic and the head keep verl's."""
WHOLE_MASKS = {"response_mask": "verl_entropy_whole_response_mask", "loss_mask": "verl_entropy_whole_loss_mask"}
"""Columns with verl's masks, where the engine has put the actor's in their place."""

PREFIX = "verl_entropy_"
"""Of every column that we add, and of the methods' outputs of the log-prob pass."""
