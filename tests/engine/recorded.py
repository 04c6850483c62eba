# SPDX-License-Identifier: Apache-2.0
"""One recorded batch in the words of no trainer, and the choices that run on it; for every host's part of ``test_hosts_agree``.

A choice is a string: ``transform.aem,loss.aepo`` are methods of the registry over our ``group_norm`` (or their own estimator),
``neutral/transform.aem`` is a method under its neutral settings over the host's own GRPO, ``aem,epo`` are presets over it,
and ``stock`` is the host without us (``stock/NAME`` on the batch that is recorded for the method NAME).
"""

from __future__ import annotations

import copy
import random

import torch
from omegaconf import OmegaConf

from verl_entropy.methods import registry
from verl_entropy.methods.method import Method

PENALTY = 0.1
"""Of an invalid turn; ``use`` sets it."""
PLAIN = ("entrocraft_switch",)
"""Methods that ask for scores of +1 or -1: no penalties."""
TEMPERATURE, STEP, STEPS = 0.8, 2, 10
EPISODES = (("u0", 1.0, 2), ("u0", -1.0, 1), ("u0", -1.0, 3), ("u1", -1.0, 2), ("u1", 1.0, 2), ("u1", 1.0, 1))
"""Group, return and number of turns."""
SESSIONS = 3
PADDING = 2
"""Rows at the end that train nothing, on the hosts that have such."""
WIDTH, PROMPT_WIDTH = 9, 13
"""Of padded responses and prompts: more than the longest, as in verl's configuration."""
STOCK = "stock"
SHOWN = {"siren": {"anchor": 0.5, "beta": 1.0}}
"""Settings with which a method does something in its first step, where its defaults do not."""


def use(choice: str) -> None:
    """Record the batch for this choice."""
    global PENALTY
    PENALTY = 0.0 if any(name in choice for name in PLAIN) else 0.1


def stock_of(choice: str) -> str:
    """The host without us on the batch of this choice."""
    return next((f"{STOCK}/{name}" for name in PLAIN if name in choice), STOCK)


def rows() -> list[dict]:
    """The turns, a row each: tokens, what the environment said, and how far the sampler's log-probs are from the actor's."""
    g, found = torch.Generator().manual_seed(1), []
    for number, (group, value, turns) in enumerate(EPISODES):
        session = number % SESSIONS
        invalid = [(session + turn) % 3 == 1 for turn in range(turns)]
        for turn in range(turns):
            prompt, length = (int(torch.randint(low, high, (1,), generator=g)) for low, high in ((5, 13), (1, 9)))
            found.append(
                {
                    "group": group,
                    "session": session,
                    "turn": turn,
                    "prompt": torch.randint(6, 64, (prompt,), generator=g),
                    "response": torch.randint(6, 64, (length,), generator=g),
                    "drift": 0.3 * torch.randn(length, generator=g),
                    "reward": value if turn == turns - 1 else 0.0,
                    "return": value,
                    "score": value - PENALTY * sum(invalid),
                    "valid": not invalid[turn],
                    "anchor": f"room {(session + turn) % 2}",
                    "success": value == 1.0,
                }
            )
    return found


def key(row: dict) -> str:
    """The row's key in the queue of verl's V1 trainer."""
    return f"{row['group']}_{row['session']}_{row['turn']}"


def extra(row: dict) -> dict:
    """What an agent loop of verl stores with the row, as if a rollout method had sampled it."""
    turn = {"reward": row["reward"], "penalty": 0.0 if row["valid"] else PENALTY, "valid": row["valid"], "anchor": row["anchor"]}
    turn |= {"entropy": 0.1 * (row["turn"] + 1), "origin": f"{row['session']}.0", "copied": False}
    return {"turns": [turn], "success": row["success"]}


# ----------------------------------------------------------------------------- choices


def word(method: Method) -> str:
    return f"{method.kind}.{method.name}"


def methods(choice: str) -> list[Method]:
    """The methods that a choice names."""
    words = choice.removeprefix("neutral/").split(",")
    return [m for m in registry.methods() if word(m) in words]


def overrides(choice: str) -> list[str]:
    """Overrides of verl's configuration, or of verl-agent's, that make a choice other than presets."""
    if choice.startswith(STOCK):
        return ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.entropy_coeff=0"]
    named, neutral = methods(choice), choice.startswith("neutral/")
    base = [] if any(m.kind == "estimator" for m in named) else [f"algorithm.adv_estimator={'grpo' if neutral else 'group_norm'}"]
    transforms = ",".join(m.name for m in named if m.kind == "transform")
    found = [
        *base,
        "actor_rollout_ref.actor.entropy_coeff=0",
        *([f"+algorithm.entropy.transforms=[{transforms}]"] * bool(transforms)),
    ]
    for method in named:
        found += [] if method.kind == "transform" else ["++" + method.key.lstrip("+")]
        # without it adv_estimator=gigpo is verl-agent's own
        found += [f"++algorithm.entropy.presets.{method.name}=true"] if method.kind == "estimator" else []
        settings = (method.neutral if neutral else {**method.example, **SHOWN.get(method.name, {})}) or {}
        found += [f"++{method.path}.{name}={'null' if value is None else value}" for name, value in settings.items()]
    if neutral:
        log_probs = "auto" if any("logits" in m.needs for m in named) else "verl"
        found += ["++algorithm.entropy.equal_returns=verl", f"++algorithm.entropy.log_probs={log_probs}"]
    return found


METHODS = [word(m) for m in registry.methods()]
NEUTRAL = [f"neutral/{word(m)}" for m in registry.methods() if m.neutral is not None]


def chosen(base, choice: str):
    """A copy of a composed configuration with the choice in it, as Hydra's overrides would put it there."""
    config = copy.deepcopy(base)
    for override in overrides(choice):
        name, _, value = override.lstrip("+").partition("=")
        OmegaConf.update(config, name, OmegaConf.create(f"x: {value}").x, force_add=True, merge=False)
    return config


def _excluded(named: list[Method]) -> bool:
    kinds, names = [m.kind for m in named if m.kind != "transform"], {m.name for m in named}
    return len(kinds) != len(set(kinds)) or any(other in names for m in named for other in m.conflicts)


def combinations(number: int) -> list[str]:
    """Random choices of two to five methods that go together; without the rollouts, which one host has."""
    rng, found = random.Random(1), []
    pool = [m for m in registry.methods() if m.kind != "rollout"]
    while len(found) < number:
        named = rng.sample(pool, rng.randint(2, 5))
        choice = ",".join(sorted(word(m) for m in named))
        if not _excluded(named) and choice not in found:
            found.append(choice)
    return found
