# SPDX-License-Identifier: Apache-2.0
"""Row order, names, padding, masked garbage and layout change no advantage."""

import pytest
import torch
from episodes import lay_out, make_episodes

from verl_entropy.batch.turns import nested_token_weight
from verl_entropy.methods.estimators.gigpo import gigpo
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.heads.seal import mixed_group_weight, seal_loss, success_label
from verl_entropy.methods.regularizers.epo import TurnEntropyHistory, epo_regularizer
from verl_entropy.methods.transforms.aem import aem

SEEDS = range(4)


def results(batch, turns, entropy) -> dict[str, dict]:
    """Every advantage-side result by (group, trajectory, turn), bit for bit."""
    advantages = turns.to_tokens(gigpo(turns, similarity=0.9)[0])
    values = {
        "gigpo": turns.mean(advantages),
        "gigpo rows": gigpo(turns, statistics="row", norm="mean")[0],
        "loop": loop(turns)[0],
        "entropy": turns.mean(entropy),
        "aem": turns.mean(aem(advantages, turns, entropy).advantages_RT),
        "nested": turns.mean(nested_token_weight(turns)),
        "label": success_label(turns)[turns.row_K],
        "mixed": mixed_group_weight(turns)[turns.row_K],
    }
    return {name: batch.by_turn(turns, v) for name, v in values.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["step-wise", "one-row"])
def test_row_order_padding_and_width(seed, layout):
    episodes = make_episodes(seed)
    plain = lay_out(episodes, layout)
    expected = results(plain, plain.turns(), plain.entropy)
    for changes in (
        {"shuffle": 7},
        {"padding": 3},
        {"extra_width": 9},
        {"shuffle": 2, "padding": 1, "extra_width": 1},
    ):
        other = lay_out(episodes, layout, **changes)
        assert results(other, other.turns(), other.garbage) == expected, changes


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_agree(seed):
    episodes = make_episodes(seed)
    step_wise, one_row = lay_out(episodes, "step-wise"), lay_out(episodes, "one-row")
    assert results(step_wise, step_wise.turns(), step_wise.garbage) == results(one_row, one_row.turns(), one_row.garbage)


@pytest.mark.parametrize("seed", SEEDS)
def test_names_do_not_matter(seed):
    batch = lay_out(make_episodes(seed), "step-wise", shuffle=seed)
    names = {name: hash(name) for name in batch.rows["group_R"]}
    renamed = batch.turns(
        group_R=[names[g] for g in batch.rows["group_R"]],
        trajectory_R=[(t, "x") for t in batch.rows["trajectory_R"]],
    )
    assert results(batch, renamed, batch.entropy) == results(batch, batch.turns(), batch.entropy)


def test_padding_rows_are_never_read():
    episodes = make_episodes(1)
    batch, padded = lay_out(episodes, "step-wise"), lay_out(episodes, "step-wise", padding=2)
    rows = padded.rows
    rows["score_R"][-2:] = float("nan")
    rows["turn_fields"][-1] = [{"reward": float("inf")}] * 5
    padded.mask[-2:] = True
    turns = padded.turns()
    assert not turns.mask_RT[-2:].any() and (turns.turn_RT[-2:] == -1).all()
    assert results(padded, turns, padded.garbage) == results(batch, batch.turns(), batch.entropy)


def test_masked_garbage_reaches_no_loss_and_no_gradient():
    batch = lay_out(make_episodes(2), "one-row")
    mask, label = batch.mask, torch.tensor(batch.rows["success_R"])

    def run(entropy):
        x = entropy.clone().requires_grad_()
        loss = epo_regularizer(x, mask, hbar=0.5, beta=2.0)[0] + seal_loss(x, label, mask)
        loss.sum().backward()
        return loss.detach(), x.grad

    for ours, expected in zip(run(batch.garbage), run(batch.entropy), strict=True):
        assert torch.equal(ours, expected)
        assert not ours[~mask].any()


@pytest.mark.parametrize("layout", ["step-wise", "one-row"])
def test_thinned_mask_keeps_the_turns(layout):
    """Rejected tokens (rollout correction) leave the mask; the response mask still defines the turns."""
    batch = lay_out(make_episodes(4), layout)
    full = batch.turns()
    thinned = batch.mask & (torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0)) < 0.6)
    turns = batch.turns(mask_RT=thinned, spans_mask_RT=batch.mask)
    assert torch.equal(turns.mask_RT, thinned)
    for name in ("turn_RT", "row_K", "index_K", "trajectory_K", "reward_K"):
        assert torch.equal(getattr(turns, name), getattr(full, name))
    weight = nested_token_weight(turns)
    assert float(weight[thinned].double().mean()) == pytest.approx(1.0, abs=1e-6)
    assert not weight[~thinned].any()


def test_turn_history_does_not_depend_on_row_order():
    means = []
    for shuffle in (None, 1, 2):
        batch, history = lay_out(make_episodes(3), "step-wise", shuffle=shuffle), TurnEntropyHistory()
        turns = batch.turns()
        history.append(turns.mean(batch.garbage), turns.index_K)
        means.append(history.mean())
    assert means[1] == pytest.approx(means[0], abs=1e-12) and means[2] == pytest.approx(means[0], abs=1e-12)
