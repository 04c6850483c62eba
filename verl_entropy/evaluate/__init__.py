# SPDX-License-Identifier: Apache-2.0
"""Evaluation: episodes of an environment's splits, played by a checkpoint or an OpenAI-compatible endpoint."""
