# SPDX-License-Identifier: Apache-2.0
"""GiGPO's step advantage in verl-agent's own code and in ours, same values, one thread.

    VERL_AGENT_HOME=<checkout of 796ed31> python tests/benchmarks/bench_verl_agent.py [--repeats 5] [--json FILE]

A step of an agent run: 16 tasks x 8 rollouts x 50 turns, 512 response tokens at most, observations of 1,200 characters of which 10
differ per task. "step advantage" is the discounted return of every turn, the grouping of observations and the statistics of the
groups; "all" adds the episode advantage and, on our side, everything from verl-agent's rows on (copies, turns, tokens).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from report import median_ms, parser, table, write

TASKS, ROLLOUTS, TURNS, TOKENS = 16, 8, 50, 512
GAMMA, PENALTY = 0.95, 0.1
BUDGET_MS = 20.0
"""For our step advantage; verl-agent's takes about a second."""


def make_rows() -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor]]:
    """Columns of verl-agent after its rollout: objects, and tensors."""
    rows = TASKS * ROLLOUTS * TURNS
    draw = np.random.default_rng(0)
    trajectory = np.arange(rows) // TURNS
    won = draw.integers(2, size=rows // TURNS)[trajectory] * 10.0
    last = np.arange(rows) % TURNS == TURNS - 1
    texts = [f"{x}{'.' * 1199}" for x in draw.integers(10, size=rows)]
    plain = {
        "uid": [f"uid{t // ROLLOUTS}" for t in trajectory],
        "traj_uid": [f"trajectory{t}" for t in trajectory],
        "anchor_obs": texts,
        "rewards": np.where(last, won, 0.0).tolist(),
        "episode_rewards": won.tolist(),
        "is_action_valid": (draw.random(rows) > 0.2).tolist(),
        "active_masks": [True] * rows,
    }
    length = torch.from_numpy(draw.integers(TOKENS // 10, TOKENS, rows))
    mask = torch.arange(TOKENS)[None] < length[:, None]
    scores = torch.zeros(rows, TOKENS)
    own = torch.tensor(won) - PENALTY * (1 - torch.tensor(plain["is_action_valid"]).float())
    scores[torch.arange(rows), length - 1] = own.float()
    objects = {name: np.array(values, dtype=object) for name, values in plain.items()}
    return objects, {"input_ids": mask.long(), "response_mask": mask.long(), "token_level_rewards": scores}


def theirs(plain: dict, tensors: dict) -> dict[str, Callable[[], Any]]:
    from gigpo import core_gigpo
    from verl import DataProto

    proto = DataProto.from_dict(tensors=tensors, non_tensors=plain)
    penalty = PENALTY * (1 - torch.from_numpy(plain["is_action_valid"].astype(np.float32)))
    mask = tensors["response_mask"]

    def step() -> torch.Tensor:
        returns = core_gigpo.compute_step_discounted_returns(proto, GAMMA) - penalty
        groups = core_gigpo.build_step_group(plain["anchor_obs"], plain["uid"])
        return core_gigpo.step_norm_reward(returns, mask, groups, remove_std=False)

    def everything() -> torch.Tensor:
        returns = core_gigpo.compute_step_discounted_returns(proto, GAMMA) - penalty
        ids = {"index": plain["uid"], "traj_index": plain["traj_uid"]}
        arguments = {"anchor_obs": plain["anchor_obs"], "mode": "mean_std_norm", **ids}
        return core_gigpo.compute_gigpo_outcome_advantage(tensors["token_level_rewards"], returns, mask, **arguments)[0]

    return {"step": step, "all": everything}


def ours(plain: dict, tensors: dict) -> dict[str, Callable[[], Any]]:
    from types import SimpleNamespace

    from verl_entropy.batch.numerics import center_by_group
    from verl_entropy.hosts.verl_agent import advantages, rows
    from verl_entropy.methods.estimators.gigpo import GiGPO, anchor_groups, step_returns

    data = SimpleNamespace(batch=dict(tensors), non_tensor_batch={**plain, **rows.tag(plain["traj_uid"], None)})
    settings = GiGPO(gamma=GAMMA, norm="mean_std", statistics="row")
    unique = rows.unique_rows(data.non_tensor_batch)
    fields = rows.read(data, unique, PENALTY)
    turns = fields.turns(fields.mask_UT, 0.0)

    def step() -> torch.Tensor:
        groups = anchor_groups(turns)
        values = center_by_group(step_returns(turns, GAMMA), groups, int(groups.max()) + 1, norm="mean_std")
        return turns.to_tokens(values.float())

    def everything() -> torch.Tensor:
        found = rows.unique_rows(data.non_tensor_batch)
        return advantages.row_estimate("gigpo", settings, data, found, rows.read(data, found, PENALTY))[0]

    return {"step": step, "all": everything}


def main() -> None:
    args = parser(__doc__).parse_args()
    home = os.environ.get("VERL_AGENT_HOME")
    if not home:
        print("VERL_AGENT_HOME is not set (a checkout of verl-agent 796ed31): not run")
        return
    sys.path.insert(0, home)
    torch.set_num_threads(1)
    plain, tensors = make_rows()
    mine, other = ours(plain, tensors), theirs(plain, tensors)
    found, difference = {}, {}
    for name in ("step", "all"):
        with contextlib.redirect_stdout(io.StringIO()):  # verl-agent prints the size of its groups
            difference[name] = float((mine[name]() - other[name]()).abs().max())
            found[name] = {
                "verl-agent ms": median_ms(other[name], max(1, args.repeats // 5)),
                "ours ms": median_ms(mine[name], args.repeats),
            }
    labels = {"step": "step advantage", "all": "all of GiGPO"}
    table(
        [
            {
                f"{TASKS * ROLLOUTS * TURNS:,} rows x {TOKENS}": labels[name],
                **ms,
                "ratio": ms["verl-agent ms"] / ms["ours ms"],
                "difference": f"{difference[name]:.1e}",
            }
            for name, ms in found.items()
        ]
    )
    verdict = "within" if found["step"]["ours ms"] <= BUDGET_MS else "OVER"
    print(f"step advantage: {found['step']['ours ms']:.1f} ms, {verdict} the budget of {BUDGET_MS:.0f} ms")
    if max(difference.values()) > 1e-6:
        raise SystemExit(f"values differ by more than 1e-6: {difference}")
    write(args.json, {"verl_agent": found, "difference": difference, "budget_ms": BUDGET_MS})


if __name__ == "__main__":
    main()
