# SPDX-License-Identifier: Apache-2.0
"""Traces of the controlled coefficients, from known entropies."""

from __future__ import annotations

import json
import math

import pytest

from verl_entropy.methods.common.controllers import TargetEntropyController

REPO_R = {"value": 1e-3, "low": 1e-5, "high": 1e-1}
REPO_D = {"value": 1e-3, "low": 1e-3, "high": 10.0}
ADAPO = {"value": 0.28, "low": 0.2, "high": 0.3, "factor": 1.01}


@pytest.mark.parametrize(
    ("settings", "entropies", "expected"),
    [
        (REPO_R, [0.5, 0.45, 0.40, 0.52, 0.48], [0.001, 0.002, 0.004, 0.002, 0.004]),
        (ADAPO, [0.5, 0.45, 0.40, 0.52, 0.60], [0.28, 0.2828, 0.285628, 0.2828, 0.28]),
        (REPO_R | {"bidirectional": True}, [0.5, 0.45, 0.40, 0.52, 0.60, 0.48], [1e-3, 2e-3, 4e-3, -1e-5, -2e-5, 1e-5]),
        (
            REPO_R | {"bidirectional": True, "flip": "keep"},
            [0.5, 0.45, 0.40, 0.52, 0.60, 0.48],
            [1e-3, 2e-3, 4e-3, -4e-3, -8e-3, 8e-3],
        ),
        # Bounds: REPO-D starts at its lower bound, REPO-R stops at .1, ADAPO at .3 and .2.
        (REPO_D, [0.5, 0.6, 0.7, 0.4], [1e-3, 1e-3, 1e-3, 2e-3]),
        (REPO_R, [0.5] + [0.1] * 8, [1e-3 * min(2**k, 100) for k in range(9)]),
        (ADAPO, [0.5] + [0.1] * 8, [min(0.28 * 1.01**k, 0.3) for k in range(9)]),
        (ADAPO | {"value": 0.201}, [0.5, 0.6, 0.6], [0.201, 0.2, 0.2]),
        (REPO_R | {"bidirectional": True, "high": 4e-3}, [0.5] + [0.4] * 3, [1e-3, 2e-3, 4e-3, 4e-3]),
        # The other direction; a given target moves the coefficient at once; equal entropy does not.
        (REPO_R | {"direction": "down"}, [0.5, 0.4, 0.6, 0.5], [1e-3, 5e-4, 1e-3, 1e-3]),
        (REPO_R | {"bidirectional": True, "direction": "down"}, [0.5, 0.6, 0.4, 0.5], [1e-3, 2e-3, -1e-5, -1e-5]),
        (REPO_R | {"target": 0.5}, [0.4, 0.5, 0.6], [2e-3, 2e-3, 1e-3]),
        # Non-finite entropies neither move it nor become the target.
        (REPO_R, [math.nan, math.inf, 0.5, math.nan, 0.4, -math.inf], [1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 2e-3]),
    ],
)
def test_trace(settings, entropies, expected):
    controller = TargetEntropyController(**settings)
    assert [controller.update(h) for h in entropies] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("settings", [REPO_R, ADAPO, REPO_R | {"bidirectional": True}], ids=["repo", "adapo", "both"])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_resume_through_json_is_bit_equal(settings, cut):
    entropies = [0.1 + 0.2, 0.27, 0.31, 0.299, 0.305, 0.1, 0.7]
    whole, first, second = (TargetEntropyController(**settings) for _ in range(3))
    expected = [whole.update(h) for h in entropies]
    head = [first.update(h) for h in entropies[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [second.update(h) for h in entropies[cut:]] == expected
    assert second.state_dict() == whole.state_dict()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"low": 0.0}, "low"),
        ({"low": 1.0}, "low"),
        ({"value": 0.5}, "value"),
        ({"value": -1e-3}, "value"),
        ({"factor": 1.0}, "factor"),
        ({"direction": "left"}, "direction"),
        ({"flip": "no"}, "flip"),
        ({"target": math.nan}, "target"),
    ],
)
def test_wrong_settings_are_refused(change, word):
    with pytest.raises(ValueError, match=word):
        TargetEntropyController(**(REPO_R | change))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"value": 1e-3},
        {"value": 7.0, "target": 0.5},
        {"value": 1e-3, "target": math.nan},
        {"value": math.nan, "target": 1.0},
        {"value": None, "target": 1.0},
    ],
)
def test_wrong_state_is_refused_and_changes_nothing(state):
    controller = TargetEntropyController(**REPO_R)
    controller.update(0.5)
    before = controller.state_dict()
    with pytest.raises(ValueError, match="state"):
        controller.load_state_dict(state)
    assert controller.state_dict() == before


def test_the_adaptive_bonus_has_repo_ds_bounds():
    """Footnote 3 of REPO: the H bonus follows 'the same adaptive algorithm as REPO-D'."""
    from verl_entropy.methods.regularizers.entropy_bonus import EntropyBonus
    from verl_entropy.methods.transforms.repo_d import RepoD

    bonus, repo_d = EntropyBonus(), RepoD()
    assert (bonus.coef_min, bonus.coef_max) == (repo_d.zeta_min, repo_d.zeta_max) == (1e-3, 10.0)
