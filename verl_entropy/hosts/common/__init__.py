# SPDX-License-Identifier: Apache-2.0
"""What every host needs: contexts, the two sides of a step, state between steps, diagnostics. Knows no trainer."""
