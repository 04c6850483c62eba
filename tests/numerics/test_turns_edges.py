# SPDX-License-Identifier: Apache-2.0
"""What ``build_turns`` finds, and what it refuses."""

import dataclasses

import pytest
import torch

from verl_entropy.batch.turns import Packed, build_turns

MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [1, 1, 1, 1]])
ROWS = {
    "group_R": ["g", "h", "g"],
    "trajectory_R": ["a", "a", "b"],
    "position_R": [0, 0, 0],
    "padding_R": [False, False, False],
    "score_R": torch.tensor([1.0, 2.0, 0.0]),
}


def test_turns_of_three_rows():
    turns = build_turns(MASK, **ROWS)
    assert turns.turn_RT.tolist() == [[0, 0, -1, 1], [-1, 2, 2, -1], [3, 3, 3, 3]]
    assert turns.row_K.tolist() == [0, 0, 1, 2]
    assert turns.index_K.tolist() == [0, 1, 0, 0]
    assert turns.trajectory_K.tolist() == [0, 0, 1, 2]  # "a" of g and "a" of h are two trajectories
    assert turns.group_J.tolist() == [0, 1, 0]
    assert turns.group_K.tolist() == [0, 0, 1, 0]
    assert turns.lengths_K.tolist() == [2, 1, 2, 4]
    assert turns.score_J.tolist() == [1.0, 2.0, 0.0]
    assert turns.success_J.tolist() == [True, True, False]
    assert (turns.num_turns, turns.num_trajectories, turns.num_groups) == (4, 3, 2)
    assert turns.reward_K is turns.penalty_K is turns.valid_K is turns.anchor_K is None


def test_sums_means_and_spreading():
    turns = build_turns(MASK, **ROWS)
    x = torch.arange(12.0).view(3, 4)
    assert turns.sum(x).tolist() == [1.0, 3.0, 11.0, 38.0]
    assert turns.mean(x).tolist() == [0.5, 3.0, 5.5, 9.5]
    assert turns.to_tokens(torch.tensor([1.0, 2.0, 3.0, 4.0]), fill=-1.0).tolist() == [
        [1, 1, -1, 2],
        [-1, 3, 3, -1],
        [4, 4, 4, 4],
    ]


@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 2]])  # row 0 has two turns, the others one
def test_scale(rows):
    columns = {k: v[rows] if isinstance(v, torch.Tensor) else [v[r] for r in rows] for k, v in ROWS.items()}
    turns = build_turns(MASK[rows], **columns)
    x, factor = torch.randn(len(rows), 4), torch.arange(2.0, 2 + turns.num_turns)
    inside = turns.turn_RT >= 0
    assert torch.equal(turns.scale(x, factor)[inside], (x * turns.to_tokens(factor))[inside])


def test_means_have_gradients():
    turns = build_turns(MASK, **ROWS)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: turns.to_tokens(turns.mean(y).square()), x)


def test_rows_of_a_trajectory_are_sorted_by_position_and_the_last_one_scores():
    rows = {**ROWS, "group_R": ["g"] * 3, "trajectory_R": ["a"] * 3, "position_R": [2, 0, 1]}
    turns = build_turns(MASK, **rows, success_R=[False, True, True], success_threshold=0.5)
    assert turns.row_K.tolist() == [1, 2, 0, 0]
    assert turns.index_K.tolist() == [0, 1, 2, 3]
    assert turns.score_J.tolist() == [1.0]
    assert turns.success_J.tolist() == [False]


def test_success_from_the_score():
    assert build_turns(MASK, **ROWS, success_threshold=1.5).success_J.tolist() == [False, True, False]


def test_fields_follow_the_turns():
    def turn(k):
        return {"reward": float(k), "penalty": 0.1 * k, "valid": k != 1, "anchor": f"s{k}", "extra": None}

    fields = [[turn(3)], [turn(2)], [turn(0), turn(1)]]
    turns = build_turns(
        MASK[[2, 1, 0]],
        **{**ROWS, "group_R": ["g", "h", "g"], "trajectory_R": ["b", "a", "a"]},
        turn_fields=fields,
    )
    assert turns.row_K.tolist() == [0, 1, 2, 2]
    assert turns.reward_K.tolist() == [3, 2, 0, 1]
    assert turns.valid_K.tolist() == [True, True, True, False]
    assert turns.anchor_K.tolist() == ["s3", "s2", "s0", "s1"]
    torch.testing.assert_close(turns.penalty_K, torch.tensor([0.3, 0.2, 0.0, 0.1]))


def fields(*counts, **values):
    return [[{"reward": 0.0, **values} for _ in range(n)] for n in counts]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"turn_fields": fields(1, 1, 1)}, r"turn_fields\[0\] has 1 entries, expected 2.*row 0"),
        ({"turn_fields": [*fields(2, 1), None]}, r"turn_fields\[2\] has 0 entries, expected 1"),
        ({"turn_fields": fields(2, 1, 1, penalty=-0.1)}, "'penalty' is -0.1.*must be >= 0"),
        ({"turn_fields": [*fields(2, 1), [{"anchor": "s"}]]}, "'reward' is missing for a turn of row 2"),
        ({"turn_fields": fields(2, 1, 1, reward=float("nan"))}, "'reward' of a turn of row 0 is nan"),
        ({"score_R": torch.tensor([1.0, float("inf"), 0.0])}, "score_R of row 1 is inf"),
        ({"group_R": ["g"]}, "group_R has 1 rows, mask_RT has 3"),
        (
            {"group_R": ["g"] * 3, "trajectory_R": ["a"] * 3},
            "rows 0 and 1 hold position 0 of the same trajectory",
        ),
        ({"spans_mask_RT": torch.zeros(3, 4)}, "spans_mask_RT leaves out tokens"),
    ],
)
def test_wrong_batches_name_the_row(changes, message):
    with pytest.raises(ValueError, match=message):
        build_turns(MASK, **{**ROWS, **changes})


def test_packed_tokens_are_kept_until_the_tensor_changes():
    turns = build_turns(torch.tensor([[1, 1, 0], [0, 1, 1]]), [0, 1], [0, 1], [0, 0], [False, False], torch.zeros(2))
    x_RT = torch.arange(6.0).view(2, 3)
    first = turns.pack(x_RT)
    assert turns.pack(x_RT) is first
    x_RT[0, 0] = 9.0
    assert turns.pack(x_RT).tolist() == [9.0, 1.0, 4.0, 5.0]
    assert turns.unpack(turns.pack(x_RT)).tolist() == [[9.0, 1.0, 0.0], [0.0, 4.0, 5.0]]
    with pytest.raises(ValueError, match="other turns"):
        dataclasses.replace(turns).pack(Packed(first, turns))
