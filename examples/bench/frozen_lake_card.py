# SPDX-License-Identifier: Apache-2.0
"""The frozen lake for a pretrained model on a card."""

from __future__ import annotations

import dataclasses
from functools import partial

from bench import card, frozen_lake

WORLD = dataclasses.replace(frozen_lake.WORLD, max_prompt=96, max_response=32, held_out=256, episodes=1500, warm_steps=150)
prepare, words = partial(card.prepare, WORLD), partial(card.words, WORLD)
