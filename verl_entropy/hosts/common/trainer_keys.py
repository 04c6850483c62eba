# SPDX-License-Identifier: Apache-2.0
"""Names of what travels from the driver to the training workers."""

WORKER_INFO = "verl_entropy"
"""Non-tensor entry of each batch: step, corridor, coefficients."""

NUM_ROWS = "verl_entropy_num_rows"
"""Non-tensor entry set by the engine: rows of the global mini-batch that have a trained token."""

PAD_UID = "pad"
"""verl gives its synthetic padding rows a uid with this prefix."""

VOCAB_CENTRE = "verl_entropy_vocab_centre"
NUCLEUS_ENTROPY = "verl_entropy_nucleus_entropy"
NUM_PEAK_ROWS = "verl_entropy_num_peak_rows"
"""Non-tensor entry set by the engine: rows of the global mini-batch that have a peak (SIREN)."""

SAMPLE_CODE = "verl_entropy_sample_code"
"""Column: per response token the number of its sampled trajectory (``diagnostics.sampling.mark``)."""
SAMPLE_LEAD = "verl_entropy_sample_lead"
"""Column: j + 1 in the row that carries the result of sampled trajectory j, else 0."""
NUM_SAMPLED = "verl_entropy_num_sampled"
"""Non-tensor entry of the old-log-prob pass: number of sampled trajectories."""
SAMPLED = "verl_entropy_sampled"
"""Output of that pass: ``diagnostics.sampling.pack``."""

SEAL_LOGITS = "seal_logits"
"""Output with a head: its logits (N,), one per trained token in row order."""
SEAL_TOKENS, SEAL_ROWS = "seal_tokens", "seal_rows"
"""Beside it: where those tokens are in the columns of the response layout (indices into ``values()``), and their rows, (N,)."""


def extra_outputs(plan) -> list[str]:
    """Outputs of our log-prob pass, beyond verl's, that the plan's methods read."""
    wanted = {"vocab_centre": VOCAB_CENTRE, "nucleus": NUCLEUS_ENTROPY}
    return [name for need, name in wanted.items() if need in plan.needs]
