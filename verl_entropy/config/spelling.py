# SPDX-License-Identifier: Apache-2.0
"""Slips in our own keys, on verl's and on verl-agent's route; imports neither verl nor torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from omegaconf import DictConfig, OmegaConf

from verl_entropy.config.settings import ConfigError

OUR_KEYS = {
    "": ("entropy",),
    "algorithm": ("entropy",),
    "actor_rollout_ref.actor": ("seal", "head"),
    "actor_rollout_ref.actor.policy_loss": ("regularizer", "clip_controller"),
}
"""Keys of ours by section; ``+entropy=`` at the top is the group of presets."""
SIMILAR = 0.8
"""Share of letters in common above which an unknown key is taken for a slip."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` Did you mean X?`` with the nearest of ``known``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def check_spelling(config: DictConfig) -> None:
    """Hydra takes ``+entropi=aem`` or ``+algorithm.entrop.transforms=[aem]`` for new keys, and the run would be without the method."""
    for section, names in OUR_KEYS.items():
        node = OmegaConf.select(config, section) if section else config
        for key in map(str, node) if isinstance(node, DictConfig) else ():
            meant = difflib.get_close_matches(key, names, n=1, cutoff=SIMILAR)
            if meant and key not in names:
                path = f"{section}.{key}" if section else key
                raise ConfigError(
                    f"{path}: no key of verl or verl-entropy. Write {path.removesuffix(key)}{meant[0]}, or take it out."
                )
