# SPDX-License-Identifier: Apache-2.0
"""Data sets of environments for verl: prompts for its RL trainer, expert turns as tokens for its SFT trainer."""
