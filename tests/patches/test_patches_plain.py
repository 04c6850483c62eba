# SPDX-License-Identifier: Apache-2.0
"""The plugin sees which series is applied, and its estimators work from verl's arguments alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from patch_tools import SERIES, apply_sh, git

from verl_entropy.batch.turns import build_turns
from verl_entropy.config.settings import ConfigError
from verl_entropy.hosts.install import patched
from verl_entropy.methods.estimators.loop import loop
from verl_entropy.methods.transforms.aem import aem


@pytest.fixture
def look_at(monkeypatch):
    """Let the detection look at a folder."""

    def look(root):
        for function in (patched.series, patched.features):
            function.cache_clear()
        monkeypatch.setattr(patched, "_root", lambda: root)

    yield look
    for function in (patched.series, patched.features):
        function.cache_clear()


def test_unpatched_source_shows_nothing(tree, series, look_at):
    look_at(tree)
    assert (patched.series(), patched.features(), patched.describe()) == (series, frozenset(), None)


def test_an_applied_series_is_seen_whole(tree, series, look_at):
    apply_sh(tree)
    look_at(tree)
    assert {"estimator_arguments", "entropy_and_row_ids", "loss_entropy"} <= patched.features()
    assert f"patches/{series}: applied" in patched.describe()


def test_part_of_a_series_is_called_so(tree, series, look_at):
    for patch in SERIES[series][:-1]:
        git(tree, "apply", str(patch))
    look_at(tree)
    assert patched.features()
    assert "only partly applied, without loss_entropy" in patched.describe()


def test_every_patch_gives_a_feature(tree, series, look_at):
    """Each patch turns on a feature of its own, so that none can be missing unseen."""
    seen = frozenset()
    for patch in SERIES[series]:
        git(tree, "apply", str(patch))
        look_at(tree)
        assert patched.features() > seen, patch.name
        seen = patched.features()


def test_another_version_or_no_verl_shows_nothing(tmp_path, look_at):
    for root in (None, tmp_path):
        look_at(root)
        assert patched.series() is None and patched.features() == frozenset() and patched.describe() is None


# ----------------------------------------------------------------------------- plain path

ROWS, WIDTH = 12, 5
GENERATOR = torch.Generator().manual_seed(0)
MASK = torch.arange(WIDTH) < torch.randint(1, WIDTH + 1, (ROWS, 1), generator=GENERATOR)
SCORE = torch.rand(ROWS, 1, generator=GENERATOR) * torch.nn.functional.one_hot(MASK.sum(-1) - 1, WIDTH)
ENTROPY = torch.rand(ROWS, WIDTH, generator=GENERATOR)
UID = np.array([f"u{i // 6}" for i in range(ROWS)], dtype=object)
IDS = np.array([f"u{i // 6}_s{i // 2 % 3}_{i % 2}" for i in range(ROWS)], dtype=object)


def turns():
    sessions, positions = zip(*(i.rsplit("_", 1) for i in IDS), strict=True)
    score_R, padding_R = SCORE.sum(-1), [False] * ROWS
    return build_turns(MASK, UID.tolist(), sessions, [int(p) for p in positions], padding_R, score_R, spans_mask_RT=MASK)


def plain(order=slice(None), name="loop", ids=IDS, uid=UID, **kwargs):
    return patched.advantages(name, SCORE[order], MASK[order], uid[order], ids[order], **kwargs)[0]


def wanted():
    t = turns()
    return t.to_tokens(loop(t, statistics="trajectory")[0])


def test_an_estimator_needs_only_verls_arguments():
    advantages = plain()
    assert torch.equal(advantages, wanted()) and advantages.abs().sum() > 0


def test_row_order_and_copies_change_nothing():
    """verl-agent fills a batch with copies of random rows and shuffles it."""
    order = torch.tensor([*torch.randperm(ROWS, generator=GENERATOR).tolist(), 3, 3, 7])
    assert torch.equal(plain(order), wanted()[order])


def test_padding_rows_get_nothing_and_count_for_nothing():
    uid, ids = UID.copy(), IDS.copy()
    uid[-1], ids[-1] = "pad1f", "pad1f_k_0"
    advantages = plain(uid=uid, ids=ids)
    assert not advantages[-1].any() and torch.equal(advantages[:6], wanted()[:6])
    raw = {"entropy": {"group_norm": {"singleton": "raw"}}}  # a real row alone in its group would get its score
    assert not plain(name="group_norm", uid=uid, ids=ids, config=raw)[-1].any()


def test_transforms_read_verls_entropy():
    t, config = turns(), {"entropy": {"transforms": ["aem"]}}
    advantages = plain(config=config, entropy=ENTROPY)
    settings = patched._plan("loop", config).transforms[0].settings
    keywords = {k: getattr(settings, k) for k in ("temperature", "min_range", "min_group")}
    assert torch.equal(advantages, aem(wanted(), t, ENTROPY, **keywords).advantages_RT) and not torch.equal(advantages, wanted())


def test_what_verls_arguments_cannot_give_is_refused_with_the_way_out():
    with pytest.raises(RuntimeError, match=r"aem needs the entropy.*bypass_mode=False"):
        plain(config={"entropy": {"transforms": ["aem"]}})
    with pytest.raises(ConfigError, match=r"entrocraft .*follows the step.*verl's own V1 trainer"):
        plain(config={"entropy": {"transforms": ["entrocraft"]}}, entropy=ENTROPY)
    with pytest.raises(ValueError, match="anchor"):
        plain(name="gigpo")
