# SPDX-License-Identifier: Apache-2.0
"""Rows of verl-agent: turns are recovered and copies change nothing, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agent_batch import PENALTY, arranged, rollout, scored
from agent_config import agent_config

from verl_entropy.hosts.common.state import Run
from verl_entropy.hosts.verl_agent import advantages, rows, settings


def run_of(presets, overrides=()):
    config = agent_config(presets, overrides)
    return Run(settings.prepare(config))


def base(data, **_):
    """A base of verl-agent's kind: one number per row, the same for a copy."""
    number = torch.from_numpy(data.non_tensor_batch[rows.ROW].astype(np.int64))
    data.batch["advantages"] = torch.sin(number.float())[:, None] * data.batch["response_mask"]
    return data


def computed(batch, presets, overrides=()):
    data = scored(batch)
    return advantages.compute(base, run_of(presets, overrides), 1, 10, PENALTY, data, {})


def test_tags_number_the_turns_of_a_trajectory():
    tags = rows.tag(np.array(["a", "a", "b", "c", "c", "c"], dtype=object), {"a": 1.0, "b": 0.0, "c": 1.0})
    assert tags[rows.TURN].tolist() == [0, 1, 0, 0, 1, 2]
    assert tags[rows.SUCCESS].tolist() == [1, 1, 0, 1, 1, 1]
    with pytest.raises(RuntimeError, match="do not follow each other"):
        rows.tag(np.array(["a", "b", "a"], dtype=object), None)


def test_turns_of_a_shuffled_batch_with_copies_are_those_of_the_rollout():
    batch = rollout()
    plain = batch["plain"]
    data = scored(arranged(batch, copies=3, shuffle=True))
    found = rows.unique_rows(data.non_tensor_batch)
    fields = rows.read(data, found, PENALTY)
    turns = fields.turns(fields.mask_UT, 0.0)
    assert found.copies == 3
    assert turns.index_K.tolist() == plain[rows.TURN].tolist()
    assert turns.num_trajectories == len(set(plain["traj_uid"])) and turns.num_groups == 2
    for j in range(turns.num_trajectories):
        own = [r for r, k in enumerate(turns.trajectory_K.tolist()) if k == j]
        invalid = sum(not plain["is_action_valid"][r] for r in own)
        assert float(turns.score_J[j]) == pytest.approx(plain["episode_rewards"][own[0]] - PENALTY * invalid, abs=1e-5)
        assert bool(turns.success_J[j]) == (plain["episode_rewards"][own[0]] > 0)


@pytest.mark.parametrize(
    "presets",
    [
        ["gigpo"],
        ["loop"],
        ["group_norm"],
        ["gigpo", "aem"],
        ["aem"],
        ["ea", "repo_r"],
        ["repo_d"],
        ["aepo_update"],
        ["clip_b"],
        ["clip_v"],
        ["entrocraft"],
    ],
    ids="+".join,
)
def test_copies_and_order_change_no_advantage(presets):
    overrides = [] if presets[0] in ("gigpo", "loop", "group_norm") else ["algorithm.adv_estimator=grpo"]
    batch = rollout(groups=3)
    plain, metrics = computed(batch, presets, overrides)
    copied = arranged(batch, copies=5, shuffle=True)
    data, other = computed(copied, presets, overrides)
    index = torch.from_numpy(copied["index"])
    assert torch.equal(data.batch["advantages"], plain.batch["advantages"][index])
    if advantages.KEEP in plain.batch:
        assert torch.equal(data.batch[advantages.KEEP], plain.batch[advantages.KEEP][index])
    assert {k: v for k, v in other.items() if k != "verl_entropy/copied_rows"} == pytest.approx(
        {k: v for k, v in metrics.items() if k != "verl_entropy/copied_rows"}, nan_ok=True
    )
    assert other["verl_entropy/copied_rows"] == 5


@pytest.mark.parametrize("presets", [["seal"], ["seal", "epo"], ["siren"], ["steer"], ["adapo"]], ids="+".join)
def test_columns_and_state_for_the_workers_cover_the_copies(presets):
    copied = arranged(rollout(groups=3), copies=5, shuffle=True)
    data, _ = computed(copied, presets)
    assert data.meta_info["verl_entropy"]["step"] == 1
    if "seal" in presets:
        won = copied["plain"][rows.SUCCESS].astype(float)
        assert data.batch["verl_entropy_label"].tolist() == won.tolist()
    if "epo" in presets:
        weight, mask = data.batch["verl_entropy_token_weight"], data.batch["response_mask"].bool()
        assert bool((weight[mask] > 0).all()) and bool((weight[~mask] == 0).all())
    if "siren" in presets:
        assert data.batch["verl_entropy_peak"].shape == data.batch["response_mask"].shape
    if "steer" in presets:
        assert data.meta_info["verl_entropy"]["steer"]["omega_max"] > 0
    if "adapo" in presets:
        assert data.meta_info["verl_entropy"]["adapo"]["eps_high"] == 0.28


def row_by_row(data, gamma, singleton_raw=True):
    """GiGPO as verl-agent's code does it, over rows with copies, from its description: plain loops in fp64."""
    plain, tensors = data.non_tensor_batch, data.batch
    score = tensors["token_level_rewards"].double().sum(-1).tolist()
    step = []
    for r in range(len(score)):
        later = {
            int(plain[rows.TURN][k]): float(plain["rewards"][k])
            for k in range(len(score))
            if plain["traj_uid"][k] == plain["traj_uid"][r] and plain[rows.TURN][k] >= plain[rows.TURN][r]
        }
        total = sum(gamma ** (t - plain[rows.TURN][r]) * reward for t, reward in later.items())
        step.append(total - PENALTY * (not plain["is_action_valid"][r]))

    def normed(values, keys, alone):
        out = []
        for r, key in enumerate(keys):
            group = np.array([v for v, k in zip(values, keys, strict=True) if k == key])
            if len(group) == 1:
                out.append(values[r] / (1 + 1e-6) if alone == "raw" else 0.0)
            else:
                out.append((values[r] - group.mean()) / (group.std(ddof=1) + 1e-6))
        return np.array(out)

    episode = normed(score, list(plain["uid"]), "raw")
    anchors = list(zip(plain["uid"], plain["anchor_obs"], strict=True))
    return torch.from_numpy(episode + normed(step, anchors, "zero"))[:, None] * tensors["response_mask"]


def test_row_statistics_are_verl_agents_with_copies_counted():
    data, _ = computed(arranged(rollout(groups=3), copies=5, shuffle=True), ["gigpo"], ["algorithm.entropy.gigpo.statistics=row"])
    torch.testing.assert_close(data.batch["advantages"].double(), row_by_row(data, 0.95), rtol=0, atol=1e-6)


def test_a_row_without_tokens_keeps_its_first_one_for_means_over_rows():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    first = torch.tensor([[1, 0, 0], [1, 0, 0]]).bool()
    kept, adv = advantages.keep_every_row(mask, first, torch.ones(2, 3))
    assert kept.tolist() == [[True, True, False], [True, False, False]]
    assert adv.tolist() == [[1, 1, 1], [0, 0, 0]]
