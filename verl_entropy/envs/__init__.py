# SPDX-License-Identifier: Apache-2.0
"""Environments with Gymnasium's reset / step interface, and `make`, which builds one by name or class path."""

from __future__ import annotations

import importlib
from typing import Any

ENVIRONMENTS = {
    "household": "verl_entropy.envs.worlds.household:HouseholdEnv",
    "alfworld": "verl_entropy.envs.simulators.alfworld:AlfworldEnv",
    "scienceworld": "verl_entropy.envs.simulators.scienceworld:ScienceWorldEnv",
    "textworld_express": "verl_entropy.envs.simulators.textworld_express:TextWorldExpressEnv",
    "webshop": "verl_entropy.envs.simulators.webshop:WebShopEnv",
    "webshop_like": "verl_entropy.envs.worlds.webshop_like:WebShopLikeEnv",
    "search": "verl_entropy.envs.worlds.search:SearchEnv",
    "appworld": "verl_entropy.envs.simulators.appworld:AppWorldEnv",
    "math": "verl_entropy.envs.worlds.math:MathEnv",
    "swe": "verl_entropy.envs.worlds.swe:SweEnv",
    "frozenlake": "gymnasium:FrozenLake-v1",
    "sokoban": "gem:game:Sokoban-v0-easy",
}
BY_ID = ("gem", "reasoning_gym", "textarena", "gymnasium")
"""Collections whose environments are named COLLECTION:ID (`verl_entropy/envs/simulators/by_id.py`)."""


def resolve(name: str) -> Any:
    """The class (or factory) behind a registered name, a `COLLECTION:ID` or a `package.module:Class` path."""
    path = ENVIRONMENTS.get(name, name)
    module, _, attribute = path.partition(":")
    if module in BY_ID and attribute:
        return importlib.import_module("verl_entropy.envs.simulators.by_id").adapter(module, attribute)
    expected = (
        f"use one of {', '.join(sorted(ENVIRONMENTS))}, {', '.join(f'{name}:ID' for name in BY_ID)} or a class path "
        "'package.module:Class'"
    )
    if not module or not attribute:
        raise ValueError(f"environment={name!r} is not known; {expected}")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"environment={name!r}: module {module!r} does not import ({error}); {expected}") from error
    if attribute not in vars(imported):
        raise ValueError(f"environment={name!r}: module {module!r} has no {attribute!r}; {expected}")
    return vars(imported)[attribute]


def make(name_or_class_path: str, **kwargs: Any) -> Any:
    """Build an environment: `make("household", split="train")` or `make("package.module:Class", ...)`."""
    return resolve(name_or_class_path)(**kwargs)
