# SPDX-License-Identifier: Apache-2.0
"""Reports on finished or running runs: one HTML page with figures, differences of two runs, advice. Needs no torch."""

from verl_entropy.runs.report.advice import Advice, advise
from verl_entropy.runs.report.compare import Difference, diff
from verl_entropy.runs.report.page import build_report

__all__ = ["Advice", "Difference", "advise", "build_report", "diff"]
